"""A page that says what the reader's own cache does, and can be checked: text, verdict, speed.

It says what was checked. Each name of the lesson is judged again, the referee tries the classes in
several models, the loop writes to the last position with each cache, and training moves the weights
as the package does.
"""

from __future__ import annotations

import hashlib
import html
import math
import re
import textwrap
from pathlib import Path

import torch

from ..checkpoint import Checkpoint
from ..config import GPTConfig
from ..files import check_file, sha256, write_whole
from ..model import GPT
from ..sampling import draw_noise
from ..verify.referee import referee
from ..verify.report import VERDICTS, Report
from . import mine, proof
from .blanks import TooLong
from .plots import style
from .plots.canvas import note, page
from .proof import CACHES
from .session import Run

SEEDS = 5  # models and texts that the referee tries
TOKENS = 160  # of the text on the page
VERDICT = {"equal": "the same logits", "rounding": "no difference but rounding"}
TITLE = "The certificate of a KV cache"
MARK = b"nanogpt-notebooks certificate"  # behind the picture's end, where readers stop
HTML = f"""\
<!doctype html><html lang="en"><meta charset="utf-8"><title>{TITLE}</title>
<style>body{{font:16px/1.5 system-ui,sans-serif;max-width:44em;margin:3em auto;padding:0 1em}}
dt{{font-weight:bold}}dd{{white-space:pre-wrap;overflow-wrap:anywhere}}</style>
<h1>{TITLE}</h1><dl>
"""


def certificate(
    run: Run, trained: Checkpoint, *, speed: str, rung: str, equal: bool
) -> dict[str, str]:
    """Judge the lesson, write the certificate, and show it. Returns what it says.

    `speed` and `rung` are what the notebook measured, in words: "420 tokens a second [410 to 430]",
    "rung 2 of 9"; `equal` says whether the reader's loop gave the right tokens there. The page goes
    to outputs/mine as certificate.html and certificate.png. Without a cache of the reader's there
    is none, {}. Raises LessonError for a lesson with a bug: an earlier page stays. ValueError
    where another file is in the way.
    """
    lesson = mine.load()
    if not (lesson.broken or {*CACHES} & {*lesson.yours}):
        print("No certificate: the caches are the solutions'. Fill in KVCache or StaticKVCache")
        print("in notebook 02 to have one.")
        return {}
    if not equal:
        raise mine.LessonError("no certificate: your loop gave other tokens on the ladder")
    facts = examine(lesson, trained) | {"speed": f"{speed}; {rung}"}
    path = mine.lesson_path().with_name("certificate.html")
    picture = path.with_suffix(".png")
    check_file(path, path.is_file() and path.read_bytes().startswith(HTML[:50].encode()))
    check_file(picture, picture.is_file() and picture.read_bytes().endswith(MARK))
    write_whole(picture, style.to_png(draw(facts)) + MARK)
    write_whole(path, render(facts).encode())
    print(f"written: {path}, and the same as .png")
    run.figure(draw(facts), "certificate", "; ".join(map(": ".join, facts.items())))
    return facts


def examine(lesson: mine.Lesson, trained: Checkpoint) -> dict[str, str]:
    """All that the page says but the speed, computed again. Raises LessonError for a bug."""
    if lesson.broken:
        raise mine.LessonError(f"no certificate: {next(iter(lesson.broken.values()))}")
    for seed in range(SEEDS):
        for fault in proof.faults(lesson.scope, seed):
            raise mine.LessonError(f"no certificate: {fault}")
    reports = [report_on(lesson.scope, seed) for seed in range(SEEDS)]
    worst = max(reports, key=lambda report: VERDICTS.index(report.verdict))
    if worst.verdict == "bug":
        raise mine.LessonError(f"no certificate, the referee finds a {worst.bugs[0]}")
    if worst.verdict not in VERDICT:
        raise mine.LessonError(f"no certificate, the referee cannot decide: {worst}")
    rest = ", ".join(name for name in mine.blanks() if name not in lesson.yours)
    ways = sum(len(report.findings) for report in reports)
    return {
        "text": _text(lesson, trained).strip("\n"),
        "written by me": ", ".join(lesson.yours),
        "by the solutions": rest or "nothing",
        "each name": "accepted by its judge today",
        "the referee": f"{VERDICT[worst.verdict]} with the cache as without it, in {ways} ways to "
        f"read, over {SEEDS} seeds",
        "the loop": f"with each of the two caches, the tokens and logits of the plain pass to the "
        f"last position of models of {_words(size for size, *_ in proof.TEXTS)}, over {SEEDS} "
        f"seeds; the tokens of the model below; past the capacity no wrong token",
        "training": f"{proof.STEPS} steps of one_step with these heads move every weight as the "
        f"package's do, in float64, over {SEEDS} seeds",
        "the model": f"{trained.meta['corpus']['name']}, validation loss "
        f"{trained.meta['losses']['val']:.3f}",
        "its weights": trained.sha256,
        "my code": sha256(lesson.path),
        "to check it": "python -m nanogpt verify certificate",
    }


def _words(numbers) -> str:
    *most, last = map(str, numbers)
    return f"{', '.join(most)} and {last}"


def report_on(scope: dict, seed: int) -> Report:
    """What the referee finds in the classes of a lesson, in a small model."""
    shape = GPTConfig(vocab_size=17, block_size=64, n_layer=2, n_head=2, n_embd=16)
    model = GPT(shape, scope["Head"], torch.Generator().manual_seed(seed)).eval()
    for weight in model.parameters():
        weight.data *= 9 if weight.ndim > 1 else 1  # so that a wrong mask shows
    return referee(model, seed=seed, caches=[scope[name] for name in CACHES], seconds=math.inf)


@torch.no_grad()
def _text(lesson: mine.Lesson, trained: Checkpoint) -> str:
    """What the reader's loop, heads and cache write, to the last position of the trained model.

    Raises LessonError where the package's model writes another text without a cache.
    """
    c, device = trained.model.config, trained.model.lm_head.weight.device
    n_new, prompt = c.block_size, torch.zeros(1, 1, dtype=torch.long).to(device)
    noise = draw_noise(n_new, 1, c.vocab_size, torch.Generator().manual_seed(1337)).to(device)
    try:
        theirs = proof.with_heads(lesson.scope, trained.model)
        for name in CACHES:
            found = proof.write(lesson.scope, theirs, prompt, noise, lesson.scope[name])
            if not proof.is_plain(trained.model, prompt, noise, found):
                raise mine.LessonError(f"no certificate: with {name} the text is another one")
    except (proof.Fault, TooLong) as fault:
        raise mine.LessonError(f"no certificate: {fault}") from None
    return trained.tokenizer.decode(found[0, :TOKENS])


# ------------------------------------------------------------------ the page


def render(facts: dict[str, str]) -> str:
    """The page, with a digest by which `read` sees what was changed."""
    rows = ((name, html.escape(words)) for name, words in facts.items())
    text = HTML + "".join(f"<dt>{name}</dt><dd>{words}</dd>\n" for name, words in rows)
    return f"{text}<!-- sha256 {hashlib.sha256(text.encode()).hexdigest()} -->\n"


@style.styled
def draw(facts: dict[str, str]):
    """The page as a figure, without the end of a long text."""
    lines = []
    for name, words in facts.items():
        for line in words.splitlines()[:8]:
            lines += textwrap.wrap(f"{name:17} {line}", 92, subsequent_indent=" " * 18) or [""]
            name = ""
    figure, axes = page(0.19 * len(lines) + 0.2, TITLE)
    note(axes, 0.1, 0.1, "\n".join(lines), size=9, family=style.MONO)
    return figure


# ------------------------------------------------------------------ the check


def read(path: Path) -> dict[str, str] | None:
    """What the certificate at `path` says; None for one that was changed."""
    text = path.read_bytes().decode(errors="replace") if path.is_file() else ""
    rows = re.findall("<dt>([^<]*)</dt><dd>([^<]*)</dd>", text)  # words are escaped: no "<"
    facts = {name: html.unescape(words) for name, words in rows}
    return facts if render(facts) == text else None


def check(path: Path, trained: Checkpoint) -> tuple[dict[str, str], list[str]]:
    """What the certificate says, and why it does not hold today; computes all of it again.

    Raises LessonError where there is none that can be read, or other weights are needed.
    """
    if (said := read(path)) is None:
        why = "was changed by hand" if path.is_file() else "is not there"
        raise mine.LessonError(f"{path} {why}: the last cell of notebook 06 writes it")
    weights = said.get("its weights", "none that it names")
    if weights != trained.sha256:
        need = "".join(c if c.isprintable() else "?" for c in weights[:12])
        raise mine.LessonError(f"it is of other weights, {need}…: name their checkpoint")
    try:
        now = examine(mine.load(path.with_name("lesson.py")), trained)
    except mine.LessonError as error:
        return said, [str(error)]
    return said, [f"{key} is another one now" for key in now if now[key] != said.get(key)]
