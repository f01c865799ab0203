"""A verifiable certificate of the reader's own cache: text, verdict, speed.

It lists its checks. Every name in the lesson is checked again, the referee tests the classes in
several models, the loop generates up to the last position with each cache, and training updates the
weights exactly as the package does.
"""

from __future__ import annotations

import contextlib
import datetime
import html
import io
import math
import os
import re
from collections.abc import Iterable
from pathlib import Path

import torch
from IPython.core.error import StdinNotImplementedError
from IPython.core.getipython import get_ipython
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle

from ..config import GPTConfig
from ..decoder.checkpoint import Checkpoint, load_checkpoint
from ..decoder.pack import unpack_heads
from ..files import KEEPER, LECTURE_FORM, ROOT, check_file, sha256, write_whole
from ..model import GPT
from ..sampling import draw_noise
from ..verify.referee import referee
from ..verify.report import VERDICTS, Report
from . import lesson as mine
from . import proof
from .blanks import BLANKS
from .limits import TooLong, limit
from .plots import style
from .plots.canvas import note, page, page_width
from .proof import CACHES
from .session import Run

SEEDS = 5  # models and texts for the referee
TOKENS = 160  # tokens of the text on the page
REFEREE = 600  # time limit in seconds for one of these models
# For a correct cache, one process may say "equal" and another "rounding", because kernels differ.
SOUND = ("equal", "rounding")
DIGESTS = ("its weights", "my code")  # facts that are a sha256, shown in monospace
SPINE = [
    name for name, one in BLANKS.items() if one.notebook <= "06"
]  # the exercises that it covers
CLAIMS = ("name", "date", "speed")  # what the page states but cannot be recomputed
_TITLE = "The certificate of a KV cache"
SERIF = "DejaVu Serif"
_MARK = b"nanogpt-notebooks certificate"  # after the end of the picture data, ignored by viewers
HTML = f"""\
<!doctype html><html lang="en"><meta charset="utf-8"><title>{_TITLE}</title>
<meta name="viewport" content="width=device-width, initial-scale=1"><style>
:root{{color-scheme:light}}
body{{font:17px/1.5 Charter,Georgia,"DejaVu Serif",serif;color:{style.INK};background:{style.PAPER};
max-width:42em;margin:3em auto;padding:2.5em;border:9px double {style.BLUE};box-sizing:border-box}}
h1{{margin:0 0 1em;text-align:center;font-weight:normal;font-size:2.1em;line-height:1.2}}
dl{{display:grid;grid-template-columns:9em 1fr;gap:.7em 1.4em;margin:0}}
dt{{color:{style.GREY};font-size:.85em;text-align:right}}
dd{{margin:0;white-space:pre-wrap;overflow-wrap:anywhere}}
dt:first-of-type{{display:none}}
dd:first-of-type{{grid-column:1/-1;margin:0 0 1em;padding:1em 1.5em;background:#f6f6f4;
font:.88em/1.5 ui-monospace,Menlo,"DejaVu Sans Mono",monospace}}
@media(max-width:40em){{body{{margin:.5em;padding:1.2em}}dl{{display:block}}dt{{text-align:left}}}}
@media(max-width:40em){{dd{{margin:0 0 .8em}}}}
@page{{margin:1.5cm}}@media print{{body{{margin:0 auto;print-color-adjust:exact}}}}
</style>
<h1>{_TITLE}</h1><dl>
"""


def certificate(
    run: Run, trained: Checkpoint, *, speed: str, rung: str, equal: bool, name: str = ""
) -> dict[str, str]:
    """Check the lesson, write the certificate, and show it. Returns its facts, by name.

    `speed` and `rung` are the notebook's measurements as text: "420 tokens a second [410 to 430]",
    "rung 2 of 9"; `equal` is whether the reader's loop produced the right tokens there. `name` is
    the reader's; "" takes it from NANOGPT_NAME, an earlier page or a prompt. The page is written
    to outputs/mine as certificate.html and certificate.png, with the weights unless they are the
    bundled ones. Returns {} and writes nothing if the reader has written no cache. Raises
    LessonError for a lesson with a bug, and keeps an earlier page; ValueError if an unrelated file
    has that name.
    """
    lesson = mine.read_lesson().check()
    if not (_broken(lesson) or {*CACHES} & {*lesson.yours}):
        print("No certificate: both caches are the solution's. Fill in KVCache or StaticKVCache")
        print("in notebook 02 to get one.")
        return {}
    if not equal:
        raise mine.LessonError("no certificate: your loop produced different tokens on the ladder")
    path = mine.lesson_path().with_name("certificate.html")
    picture = path.with_suffix(".png")
    facts = examine(lesson, trained)
    reader = " ".join((name or known_name(path)).split())
    about = {"name": reader} if reader else {}
    about |= {"date": datetime.date.today().isoformat(), "speed": f"{speed}; {rung}"}
    facts = {"text": facts.pop("text")} | about | facts
    check_file(path, path.is_file() and path.read_bytes().startswith(HTML[:50].encode()))
    check_file(picture, picture.is_file() and picture.read_bytes().endswith(_MARK))
    _keep_weights(run, trained, path.with_name("certificate.safetensors"))
    write_whole(picture, style.to_png(draw(facts)) + _MARK)
    write_whole(path, page_of(facts).encode())
    print(f"written: {path}, and the same as .png")
    run.figure(draw(facts), "certificate", "; ".join(map(": ".join, facts.items())))
    return facts


def known_name(page: Path) -> str:
    """The reader's name: from NANOGPT_NAME, an earlier page, or a prompt; "" without one."""
    said = os.environ.get("NANOGPT_NAME", "").strip() or facts_at(page).get("name", "")
    kernel = getattr(get_ipython(), "kernel", None)
    if said or mine.headless() or kernel is None:
        return said
    with contextlib.suppress(EOFError, StdinNotImplementedError):
        return input("Your name as it should appear on the certificate (Enter: none): ").strip()
    return ""


def _keep_weights(run: Run, trained: Checkpoint, path: Path) -> None:
    """Keep the page's weights next to it, unless they are already there or bundled."""
    found = weights_of(path, trained.sha256, [run.checkpoint(run.profile.size).parent])
    if found and found.parent not in (path.parent, LECTURE_FORM.parent):
        write_whole(path, found.read_bytes())


def weights_of(page: Path, digest: str, more: Iterable[Path] = ()) -> Path | None:
    """The weights file with that sha256: next to the page, bundled, from a run, or in `more`."""
    runs = sorted((ROOT / "outputs" / "run").glob("*/checkpoints"))
    for folder in [page.parent, LECTURE_FORM.parent, KEEPER.parent, *more, *runs]:
        for path in sorted(folder.glob("*.safetensors")):
            if not path.name.endswith(".state.safetensors") and sha256(path) == digest:
                return path
    return None


def examine(lesson: mine.Lesson, trained: Checkpoint) -> dict[str, str]:
    """The page's facts without CLAIMS, recomputed. Raises LessonError for a bug."""
    for fault in _broken(lesson):
        raise mine.LessonError(f"no certificate: {fault}")
    reports, text = _computed(lesson, trained)
    worst = max(reports, key=lambda report: VERDICTS.index(report.verdict))
    if worst.verdict == "bug":
        raise mine.LessonError(f"no certificate: the referee finds a {worst.bugs[0]}")
    if worst.verdict not in SOUND:
        raise mine.LessonError(f"no certificate: the referee cannot decide: {worst}")
    rest = ", ".join(name for name in SPINE if name not in lesson.yours)
    ways = sum(len(report.findings) for report in reports)
    return {
        "text": text.strip("\n"),
        "written by me": ", ".join(lesson.yours),
        "by the solutions": rest or "nothing",
        "each name": "accepted by its check today",
        "the referee": (
            f"only rounding differences between the plain pass and the cached one, on {ways} "
            f"decoding paths, over {SEEDS} seeds"
        ),
        "the loop": (
            "with each of the two caches, the tokens and logits of the plain pass up to the last "
            f"position in models with {_words(size for size, *_ in proof.TEXTS)} positions, over "
            f"{SEEDS} seeds; the tokens of the model below; no wrong token past the capacity"
        ),
        "training": (
            f"{proof.STEPS} steps of one_step with these heads update every weight as the "
            f"package's do, in float64, over {SEEDS} seeds"
        ),
        "the model": f"{trained.meta['corpus']['name']}, validation loss "
        f"{trained.meta['losses']['val']:.3f}",
        "its weights": trained.sha256,
        "my code": sha256(lesson.path) if lesson.path else "none",
        "to check it": "python -m nanogpt verify certificate",
    }


def _broken(lesson: mine.Lesson) -> list[str]:
    """A line for each spine exercise that fails; the page does not cover others."""
    return [lesson.broken[name] for name in SPINE if name in lesson.broken]


def _computed(lesson: mine.Lesson, trained: Checkpoint) -> tuple[list[Report], str]:
    """The referee's reports over the seeds, and the text. Raises LessonError for a fault."""
    for seed in range(SEEDS):
        for fault in proof.faults(lesson.scope, seed):
            raise mine.LessonError(f"no certificate: {fault}")
    try:
        reports = [report_on(lesson.scope, seed) for seed in range(SEEDS)]
    except TooLong as error:
        raise mine.LessonError(f"no certificate: {error}") from None
    return reports, _text(lesson, trained)


def judge_file(path: Path, seed: int) -> tuple[list[str], set[str]]:
    """Report lines on a reader's classes in their file, with the verdicts.

    A failed check also counts as a bug. Raises OSError, and LessonError for a file in which the
    reader has written nothing.
    """
    lesson = mine.read_lesson(path)
    verdict = "bug"
    output = io.StringIO()
    with contextlib.redirect_stdout(output):
        lesson.say(BLANKS)
    lines = [output.getvalue().rstrip()]
    if not lesson.yours:
        if not lesson.broken:
            raise mine.LessonError(f"{path} contains none of your code yet: fill in a blank first")
        return lines, {"bug"}
    wrong = [f"BUG in your {fault}" for fault in proof.faults(lesson.written, seed)]
    try:
        report = report_on(lesson.written, seed)  # missing names come from the solutions
        lines.append(str(report))
        verdict = report.verdict
    except KeyboardInterrupt:
        raise
    except BaseException as error:  # a lesson may call exit(), and TooLong is no Exception
        wrong.append(f"BUG: the referee cannot run your Head: {type(error).__name__}: {error}")
    return lines + wrong, {verdict} | ({"bug"} if lesson.broken or wrong else set())


def _words(numbers: Iterable[int]) -> str:
    *most, last = map(str, numbers)
    return f"{', '.join(most)} and {last}"


def report_on(scope: mine.Scope, seed: int) -> Report:
    """The referee's report on a lesson's classes, in a small model."""
    shape = GPTConfig(vocab_size=17, block_size=64, n_layer=2, n_head=2, n_embd=16)
    model = GPT(shape, scope["Head"], torch.Generator().manual_seed(seed)).eval()
    for weight in model.parameters():
        weight.data *= 9 if weight.ndim > 1 else 1  # so that a wrong mask has a visible effect
    caches = [scope[name] for name in CACHES]
    with limit(REFEREE, "the referee, with your Head, KVCache and StaticKVCache, did not finish"):
        return referee(model, seed=seed, caches=caches, seconds=math.inf)


@torch.no_grad()
def _text(lesson: mine.Lesson, trained: Checkpoint) -> str:
    """The text from the reader's loop, heads and cache, up to the trained model's last position.

    Raises LessonError if the package's model generates a different text without a cache, and
    ValueError for a model with another architecture than the lecture's.
    """
    c = trained.model.config
    device = trained.model.lm_head.weight.device
    n_new = c.block_size
    prompt = torch.zeros(1, 1, dtype=torch.long).to(device)
    noise = draw_noise(n_new, 1, c.vocab_size, torch.Generator().manual_seed(1337)).to(device)
    lecture = trained.model if isinstance(trained.model, GPT) else unpack_heads(trained.model)
    try:
        theirs = proof.with_heads(lesson.scope, lecture)
        for name in CACHES:
            tokens = proof.write(lesson.scope, theirs, prompt, noise, lesson.scope[name])
            if not proof.is_plain(lecture, prompt, noise, tokens):
                raise mine.LessonError(f"no certificate: with {name} the text is different")
    except (proof.Fault, TooLong) as fault:
        raise mine.LessonError(f"no certificate: {fault}") from None
    return trained.tokenizer.decode(tokens[0, :TOKENS])


# ------------------------------------------------------------------ the page


def page_of(facts: dict[str, str]) -> str:
    """The page: one row per fact, which `facts_at` can read back."""
    rows = ((name, html.escape(words)) for name, words in facts.items())
    return HTML + "".join(f"<dt>{name}</dt><dd>{words}</dd>\n" for name, words in rows)


@style.styled
def draw(facts: dict[str, str]) -> Figure:
    """The page as a framed picture; long texts are cut off."""
    small = style.narrow()
    wide = page_width()
    indent = 0.3 if small else 1.75  # inches: where the values begin, after the names
    lines = facts["text"].splitlines()[:8]
    text = style.wrapped("\n".join(lines), 9.5, wide - 1.1, bold=True)  # or as wide
    rows = []
    for name, words in facts.items():
        rows.append((name, style.wrapped(words, 9.5, wide - indent - 0.45, bold=name in DIGESTS)))
    title = style.wrapped(_TITLE, 19, wide - 0.7)
    top = 0.6 + 0.34 * title.count("\n")
    middle = 0.21 * (text.count("\n") + 1)
    gap = 0.27 if small else 0.09
    heights = [0.21 * (words.count("\n") + 1) + gap for _, words in rows[1:]]
    height = top + middle + sum(heights) + 1.1
    figure, axes = page(height, "")
    for edge, line in ((0.04, 2.4), (0.11, 0.7)):
        size = wide - 2 * edge, height - 2 * edge
        axes.add_patch(Rectangle((edge, edge), *size, fill=False, edgecolor=style.BLUE, lw=line))
    look: style.Look = {"family": SERIF, "ha": "center", "linespacing": 1.2}
    axes.text(wide / 2, 0.35, title, fontsize=19, va="top", **look)
    panel: style.Look = {"facecolor": "#f6f6f4", "lw": 0}
    axes.add_patch(Rectangle((0.3, top + 0.25), wide - 0.6, middle + 0.2, **panel))
    note(axes, 0.45, top + 0.36, text, size=9.5, family=style.MONO)
    y = top + middle + 0.7
    for (name, words), high in zip(rows[1:], heights, strict=True):
        place = (0.3, "left") if small else (indent - 0.18, "right")
        note(axes, place[0], y, name, size=8.5, color=style.GREY, ha=place[1])
        note(axes, indent, y + 0.19 * small, words, size=9.5, family=SERIF)
        y += high
    return figure


# ------------------------------------------------------------------ the check


def facts_at(path: Path) -> dict[str, str]:
    """The facts of the certificate at `path`, by name; {} if it is not one."""
    text = path.read_bytes().decode(errors="replace") if path.is_file() else ""
    rows = re.findall("<dt>([^<]*)</dt><dd>([^<]*)</dd>", text)  # values are escaped: no "<"
    return {name: html.unescape(words) for name, words in rows}


def recomputed(path: Path, checkpoint: str | Path = "") -> tuple[dict[str, str], list[str]]:
    """Recompute a certificate. Returns its facts, and why it no longer holds.

    `checkpoint` is its weights; "" finds those with the stated sha256 by `weights_of`.
    Raises LessonError for a page that cannot be read, or whose weights are not found.
    """
    facts = facts_at(path)
    if "its weights" not in facts:
        raise mine.LessonError(
            f"{path} {'is not a certificate' if path.is_file() else 'does not exist'}: the last "
            "cell of notebook 06 writes one"
        )
    weights = facts["its weights"]
    digest = "".join(c if c.isprintable() else "?" for c in weights[:12])
    found = checkpoint or weights_of(path, weights)
    if not found:
        raise mine.LessonError(
            f"its weights, sha256 {digest}…, are neither next to it nor from a run here: pass "
            "their file with --checkpoint"
        )
    trained = load_checkpoint(found)
    if weights != trained.sha256:
        raise mine.LessonError(f"it was made with other weights, {digest}…: pass their checkpoint")
    try:
        now = examine(mine.read_lesson(path.with_name("lesson.py")).check(), trained)
    except mine.LessonError as error:
        return facts, [str(error)]
    changed = [key for key in now if now[key] != facts.get(key)]
    return facts, [
        f"{key} has changed: it is now {_cut(now[key])} (the page says {_cut(facts.get(key, ''))})"
        for key in changed
    ]


def _cut(words: str) -> str:
    """The beginning of a fact, on one line."""
    words = " ".join(words.split())
    return f"{words[:70]}…" if len(words) > 70 else words or "nothing"
