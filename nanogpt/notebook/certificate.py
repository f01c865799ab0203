"""A page that says what the reader's own cache does, and can be checked: text, verdict, speed.

It cannot be had with a bug. Each name of the lesson is judged again, the referee tries the classes
in several models, and the text is compared with that of the model without a cache.
"""

from __future__ import annotations

import html
import json
import re
import textwrap
from dataclasses import replace
from pathlib import Path

import torch

from ..config.shapes import GPTConfig
from ..decoding.generate import complete
from ..decoding.sampling import draw_noise
from ..model.checkpoint import Checkpoint
from ..model.gpt import GPT
from ..system.files import check_file, sha256, write_whole
from ..verify.referee import referee
from ..verify.report import VERDICTS
from . import mine
from .plots import style
from .plots.canvas import note, page
from .session import Run

SEEDS = 5  # models and texts that the referee tries
CACHES = ("KVCache", "StaticKVCache")
TOKENS = 160  # of the text on the page
COMMAND = "python -m nanogpt verify certificate"
HTML = """\
<!doctype html><html lang="en"><meta charset="utf-8"><title>{title}</title>
<style>body{{font:16px/1.5 system-ui,sans-serif;max-width:44em;margin:3em auto;padding:0 1em}}
pre{{padding:1em;background:#f3f4f6;white-space:pre-wrap}}dt{{font-weight:bold}}</style>
<h1>{title}</h1><pre>{text}</pre><dl>{rows}</dl><p>To check it: <code>{command}</code></p>
<script type="application/json">{facts}</script></html>
"""


def certificate(run: Run, trained: Checkpoint, *, speed: str, rung: str) -> dict:
    """Judge the lesson, write the certificate, and show it. Returns what it says.

    `speed` and `rung` are what the notebook measured, in words: "420 tokens a second [410 to 430]",
    "rung 2 of 9". The page goes to outputs/mine as certificate.html and certificate.png; where
    nothing of the reader's runs, there is only the figure, a specimen. Raises LessonError for a
    lesson with a bug: an earlier page stays. ForeignFiles where another file is in the way.
    """
    lesson = mine.load() if mine.uses_mine() else mine.solutions()
    facts = examine(lesson, trained) | {"speed": speed, "rung": rung}
    alt = f"A certificate: {title(facts)}. " + "; ".join(": ".join(row) for row in rows(facts))
    if lesson.yours:
        path = mine.lesson_path().with_name("certificate.html")
        ours, picture = read(path) is not None, path.with_suffix(".png")
        check_file(path, ours)
        check_file(picture, ours)
        write_whole(picture, style.to_png(draw(facts)))
        write_whole(path, render(facts).encode())
        print(f"written: {mine.shown(path)}, and the same as .png")
    else:
        print("A specimen, made by the solutions. Fill in the blanks of 01 and 02 to have yours.")
    run.figure(draw(facts), "certificate", alt)
    return facts


def examine(lesson: mine.Lesson, trained: Checkpoint) -> dict:
    """All that the page says but the speed, computed again. Raises LessonError for a bug."""
    if lesson.broken:
        raise mine.LessonError(f"no certificate: {next(iter(lesson.broken.values()))}")
    caches = [lesson[name] for name in CACHES]
    reports = [referee(tiny(lesson["Head"], i), seed=i, caches=caches) for i in range(SEEDS)]
    worst = max(reports, key=lambda report: VERDICTS.index(report.verdict))
    if worst.verdict == "bug":
        raise mine.LessonError(f"no certificate, the referee finds a {worst.bugs[0]}")
    names = list(mine.blanks())
    return {
        "text": _text(lesson, trained),
        "verdict": worst.verdict,
        "seeds": SEEDS,
        "ways": sum(len(report.findings) for report in reports),
        "yours": lesson.yours,
        "solutions": [name for name in names if name not in lesson.yours],
        "lesson": sha256(lesson.path) if lesson.yours else "",
        "weights": trained.sha256,
        "corpus": trained.meta["corpus"]["name"],
        "loss": trained.meta["losses"]["val"],
    }


def tiny(head: type, seed: int) -> GPT:
    """A small model with heads of this class; its weights are large, so that a wrong mask shows."""
    shape = GPTConfig(vocab_size=17, block_size=64, n_layer=2, n_head=2, n_embd=16)
    model = GPT(shape, head, torch.Generator().manual_seed(seed))
    with torch.no_grad():
        for weight in model.parameters():
            weight.mul_(9 if weight.ndim > 1 else 1)
    return model.eval()


@torch.no_grad()
def _text(lesson: mine.Lesson, trained: Checkpoint) -> str:
    """What the reader's loop, heads and cache write. Raises LessonError where that is another text.

    The same weights, in the package's model and without a cache, must write it too.
    """
    c, device = trained.model.config, trained.model.lm_head.weight.device
    own = GPT(replace(c, per_head=True), lesson["Head"]).to(device).eval()
    own.load_state_dict(trained.model.state_dict())
    n_new, prompt = min(TOKENS, c.block_size - 1), torch.zeros(1, 1, dtype=torch.long).to(device)
    noise = draw_noise(n_new, 1, c.vocab_size, torch.Generator().manual_seed(1337)).to(device)
    loop = lesson["generate_with_cache"]
    texts = [torch.cat(list(loop(own, prompt, noise, lesson[name])), 1)[0] for name in CACHES]
    plain = complete(trained.model, prompt, n_new, cache=None, noise=noise)[0, 1:]
    for name, tokens in zip(CACHES, texts, strict=True):
        if (wrong := (tokens != plain).nonzero()).numel():
            at = f"from new token {int(wrong[0])} on"
            raise mine.LessonError(f"no certificate: with {name} the text is another one {at}")
    return trained.tokenizer.decode(plain)


# ------------------------------------------------------------------ the page


def title(facts: dict) -> str:
    """Of the page, and of its picture."""
    return "My own KV cache writes this text" if facts["yours"] else "A KV cache writes this text"


def rows(facts: dict) -> list[tuple[str, str]]:
    """What the page says below the text: pairs of words."""
    own, rest = ", ".join(facts["yours"]), ", ".join(facts["solutions"])
    found = {"equal": "the same logits", "rounding": "no difference but rounding"}
    verdict = f"{found[facts['verdict']]} with the cache as without it"
    return [
        (
            "written by",
            "; ".join([f"my {own}"] * bool(own) + [f"the solution's {rest}"] * bool(rest)),
        ),
        ("the referee", f"{verdict}: {facts['ways']} ways to read, {facts['seeds']} seeds"),
        ("the model", f"{facts['corpus']}, validation loss {facts['loss']:.3f}"),
        ("speed", f"{facts['speed']}; {facts['rung']}"),
        ("digests", f"my code {facts['lesson'][:12] or 'none'}, weights {facts['weights'][:12]}"),
    ]


def render(facts: dict) -> str:
    """The page, with the facts as data for `check`."""
    said = "".join(f"<dt>{a}</dt><dd>{html.escape(b)}</dd>" for a, b in rows(facts))
    data = json.dumps(facts, ensure_ascii=False).replace("<", "\\u003c")
    words = {"title": title(facts), "text": html.escape(facts["text"]), "rows": said}
    return HTML.format(**words, command=COMMAND, facts=data)


@style.styled
def draw(facts: dict):
    """The page as a figure."""
    lines = facts["text"].strip("\n").splitlines()[:8]
    said = [(name, textwrap.wrap(words, 88)) for name, words in rows(facts)]
    y, deep = 0.27 * len(lines) + 0.45, sum(0.14 + 0.18 * len(words) for _, words in said)
    figure, axes = page(y + deep + 0.3, title(facts))
    note(axes, 0.1, 0.15, "\n".join(lines), size=11, family=style.MONO)
    for name, words in said:
        note(axes, 0.1, y, name, size=9, color=style.GREY)
        note(axes, 1.1, y, "\n".join(words), size=9)
        y += 0.14 + 0.18 * len(words)
    note(axes, 0.1, y, f"To check it: {COMMAND}", size=9, family=style.MONO)
    return figure


# ------------------------------------------------------------------ the check


def read(path: Path) -> dict | None:
    """What the certificate at `path` says; None for one that was changed."""
    try:
        text = path.read_text(encoding="utf-8")
        facts = json.loads(re.search(r'json">(.*)</script>', text)[1])
        return facts if render(facts) == text else None
    except (OSError, ValueError, TypeError, KeyError):
        return None


def check(path: Path, trained: Checkpoint) -> list[str]:
    """Why the certificate does not hold today: nothing, where it does. Computes it all again.

    Raises LessonError where there is none that can be read, or other weights are needed.
    """
    if not path.is_file() or (said := read(path)) is None:
        why = "was changed by hand" if path.is_file() else "is not there"
        raise mine.LessonError(f"{path} {why}: the last cell of notebook 06 writes it")
    if said["weights"] != trained.sha256:
        raise mine.LessonError(
            f"it is of the weights {said['weights'][:12]}…, and these are {trained.sha256[:12]}…: "
            f"name its checkpoint"
        )
    try:
        now = examine(mine.load(path.with_name("lesson.py")), trained)
    except mine.LessonError as error:
        return [str(error)]
    names = {"lesson": "the code", "text": "the text", "verdict": "the verdict", "yours": "whose"}
    return [f"{names[key]} is another one now" for key in names if now[key] != said[key]]
