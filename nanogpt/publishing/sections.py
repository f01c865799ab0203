"""What the pages say, in plain words: their sections for the search, and the time to read them.

Works on the blocks of html.py; knows no notebook and no folder.
"""

from __future__ import annotations

import html
import re

WORDS_A_MINUTE, LINES_A_MINUTE = 200, 20
HEADING = re.compile(r'<h[1-6] id="([^"]+)">(.*?)</h[1-6]>', re.S)
FOLDED = re.compile(r"<details.*?</details>", re.S)
NAME = re.compile(r"[A-Za-z_]\w{3,}")


def plain(text: str) -> str:
    """HTML as words on one line."""
    spaced = re.sub(r"</(?:p|li|h\d|td|th|pre|summary)>", " ", text)
    return " ".join(html.unescape(re.sub(r"<[^>]+>", "", spaced)).split())


def minutes(blocks: list[dict]) -> int:
    """How long a page takes to read: its prose and its open code, folded parts left out."""
    prose = [FOLDED.sub(" ", block["html"]) for block in blocks if block["kind"] == "prose"]
    words = sum(len(plain(part).split()) for part in prose)
    code = [block["source"] for block in blocks if block["kind"] == "code" and not block["folded"]]
    lines = sum(bool(line.strip()) for source in code for line in source.split("\n"))
    return max(1, round(words / WORDS_A_MINUTE + lines / LINES_A_MINUTE))


def sections(blocks: list[dict]) -> list[dict]:
    """A page by heading, as {id, heading, text, names}: its prose, and the names in its code."""
    found: list[dict] = []
    for block in blocks:
        if block["kind"] == "code":
            if found:
                found[-1]["names"] |= dict.fromkeys(NAME.findall(block["source"]))
            continue
        before, *parts = HEADING.split(block["html"])
        if found:
            found[-1]["text"] += f" {plain(before)}"
        for name, heading, text in zip(parts[::3], parts[1::3], parts[2::3], strict=True):
            section = {"id": name, "heading": plain(heading), "text": plain(text), "names": {}}
            found.append(section)
    return [{**s, "text": s["text"].strip(), "names": " ".join(s["names"])} for s in found]
