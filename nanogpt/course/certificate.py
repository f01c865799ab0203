"""A certificate of the reader's own cache: a page of text that a command recomputes.

It lists its checks. Every name in the lesson is checked again, the referee tests the classes in
several models, and the loop generates a text up to the trained model's last position with each
cache. The page, the lesson and the weights stand in one folder, which may be moved.
"""

from __future__ import annotations

import contextlib
import datetime
import io
import os
from pathlib import Path

import torch
from torch import Tensor

from ..config import GPTConfig
from ..decoder.checkpoint import Checkpoint, load_checkpoint, save_checkpoint
from ..files import check_file, sha256, write_whole
from ..kv_referee.report import VERDICTS, Judgement, Report, Verdict
from ..model import GPT, LanguageModel
from ..sampling import draw_noise, sample
from ..verify.referee import referee
from .blanks import BLANKS
from .lesson import Lesson, LessonError, Scope, lesson_path, read_lesson
from .limits import TooLong, limit
from .practice import model_with, write

CACHES = ("KVCache", "StaticKVCache")
SEEDS = 5  # models and texts for the referee
TOKENS = 160  # tokens of the text on the page
REFEREE = 600  # time limit in seconds for one of these models
# For a correct cache, one process may say "equal" and another "rounding", because kernels differ.
SOUND = ("equal", "rounding")
SPINE = [name for name, one in BLANKS.items() if one.notebook <= "06"]  # the blanks that it covers
COMMAND = "python -m nanogpt verify certificate certificate.txt, in the folder of this page"
TITLE = "The certificate of a KV cache"
QUOTE = "  | "  # begins each line of the text


def certificate(
    trained: Checkpoint, *, speed: str, rung: str, equal: bool, name: str = ""
) -> dict[str, str]:
    """Check the lesson, write the certificate, and print it. Returns its facts, by name.

    `speed` and `rung` are the notebook's measurements as text: "420 tokens a second [410 to 430]",
    "rung 2 of 8"; `equal` is whether the reader's loop produced the right tokens there. `name` is
    the reader's; "" takes it from NANOGPT_NAME or an earlier page. The page is certificate.txt next
    to the lesson, with a copy of the weights beside it. Returns {} and writes nothing if the reader
    has written no cache. Raises LessonError for a lesson with a bug, and keeps an earlier page;
    ValueError if an unrelated file has that name.
    """
    lesson = read_lesson().check()
    if not (_broken(lesson) or {*CACHES} & {*lesson.yours}):
        print("No certificate: both caches are the solution's. Fill in KVCache or StaticKVCache")
        print("in notebook 02 to get one.")
        return {}
    if not equal:
        raise LessonError("no certificate: your loop produced different tokens on the ladder")
    path = lesson_path().with_name("certificate.txt")
    check_file(path, path.is_file() and path.read_bytes().startswith(TITLE.encode()))
    facts = examine(lesson, trained)
    reader = name or os.environ.get("NANOGPT_NAME", "") or facts_at(path).get("name", "")
    reader = " ".join(reader.split())
    about = {"name": reader} if reader else {}
    about |= {"date": datetime.date.today().isoformat(), "speed": f"{speed}; {rung}"}
    weights = path.with_suffix(".safetensors")
    save_checkpoint(weights.with_suffix(""), trained.model, trained.meta)
    facts = {"text": facts.pop("text")} | about | facts
    facts |= {"its weights": sha256(weights), "to check it": COMMAND}
    write_whole(path, page_of(facts).encode())
    print(page_of(facts))
    print(f"written: {path}")
    return facts


def examine(lesson: Lesson, trained: Checkpoint) -> dict[str, str]:
    """The page's facts that can be recomputed. Raises LessonError for a bug."""
    for fault in _broken(lesson):
        raise LessonError(f"no certificate: {fault}")
    reports, text = _computed(lesson, trained)
    worst = max(reports, key=lambda report: VERDICTS.index(report.verdict))
    if worst.verdict == "bug":
        raise LessonError(f"no certificate: the referee finds a {worst.bugs[0]}")
    if worst.verdict not in SOUND:
        raise LessonError(f"no certificate: the referee cannot decide: {worst}")
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
            "with each of the two caches, the tokens of the plain pass up to the last position of "
            "the model below"
        ),
        "the model": f"{trained.meta['corpus']['name']}, validation loss "
        f"{trained.meta['losses']['val']:.3f}",
        "my code": sha256(lesson.path) if lesson.path else "none",
    }


def _broken(lesson: Lesson) -> list[str]:
    """A line for each spine exercise that fails; the page does not cover others."""
    return [lesson.broken[name] for name in SPINE if name in lesson.broken]


def _computed(lesson: Lesson, trained: Checkpoint) -> tuple[list[Report], str]:
    """The referee's reports over the seeds, and the text. Raises LessonError for a fault."""
    try:
        return [report_on(lesson.scope, seed) for seed in range(SEEDS)], _text(lesson, trained)
    except TooLong as error:
        raise LessonError(f"no certificate: {error}") from None


def judge_file(path: Path, seed: int) -> tuple[list[str], Report]:
    """The lines to print on a reader's classes in their file, and the referee's report on them.

    A failed check is a bug among its findings. Raises OSError, and LessonError for a file in which
    the reader has written nothing.
    """
    # 1. What the checks of the blanks say.
    lesson = read_lesson(path)
    output = io.StringIO()
    with contextlib.redirect_stdout(output):
        lesson.say(BLANKS)
    lines = [output.getvalue().rstrip()]
    if not lesson.yours and not lesson.broken:
        raise LessonError(f"{path} contains none of your code yet: fill in a blank first")
    # 2. What the referee says of the classes.
    report = Report(str(path))
    if lesson.yours:
        try:
            report = report_on(lesson.written, seed)  # missing names come from the solutions
            report.model = str(path)
            lines.append(str(report))
        except KeyboardInterrupt:
            raise
        except BaseException as error:  # a lesson may call exit(), and TooLong is no Exception
            words = f"the referee cannot run your Head: {type(error).__name__}: {error}"
            lines.append(f"BUG: {words}")
            report.findings.append(Judgement("your Head", Verdict.BUG, words))
    # 3. The failed checks, already among the lines, join its findings.
    for name, line in lesson.broken.items():
        report.findings.append(Judgement(f"the check of {name}", Verdict.BUG, line))
    return lines, report


def report_on(scope: Scope, seed: int) -> Report:
    """The referee's report on a lesson's classes, in a small model."""
    shape = GPTConfig(vocab_size=17, block_size=64, n_layer=2, n_head=2, n_embd=16)
    model = GPT(shape, scope["Head"], torch.Generator().manual_seed(seed)).eval()
    for weight in model.parameters():
        weight.data *= 9 if weight.ndim > 1 else 1  # so that a wrong mask has a visible effect
    caches = [scope[name] for name in CACHES]
    with limit(REFEREE, "the referee, with your Head, KVCache and StaticKVCache, did not finish"):
        return referee(model, seed=seed, caches=caches)


@torch.no_grad()
def _text(lesson: Lesson, trained: Checkpoint) -> str:
    """The text from the reader's loop, heads and cache, up to the trained model's last position.

    Raises LessonError if the package's model generates a different text without a cache, and for a
    model with another architecture than the lecture's.
    """
    c = trained.model.config
    device = trained.model.lm_head.weight.device
    prompt = torch.zeros(1, 1, dtype=torch.long).to(device)
    generator = torch.Generator().manual_seed(1337)
    noise = draw_noise(c.block_size, 1, c.vocab_size, generator).to(device)
    theirs = model_with(lesson, trained.model)
    for name in CACHES:
        tokens = write(lesson, theirs, prompt, noise, lesson.scope[name])
        if not _is_plain(trained.model, prompt, noise, tokens):
            raise LessonError(f"no certificate: with {name} the text is different")
    return trained.tokenizer.decode(tokens[0, :TOKENS])


def _is_plain(model: LanguageModel, prompt: Tensor, noise: Tensor, text: Tensor) -> bool:
    """Whether a text is the uncached model's.  (B, T), (n, B, V), (B, n)

    One pass suffices, because a causal model's logits at a token do not depend on later tokens. By
    induction, a token is right if all tokens before it are and the noise selects it from its
    logits.
    """
    if text.shape != (len(prompt), len(noise)):
        return False
    n = len(noise)
    T = prompt.shape[1]
    logits = model(torch.cat([prompt, text], dim=1)[:, :-1])[0][:, T - 1 :]  # (B, n, V)
    return torch.equal(text, torch.cat([sample(logits[:, t], noise[t]) for t in range(n)], dim=1))


# ------------------------------------------------------------------ the page


def page_of(facts: dict[str, str]) -> str:
    """The page: the text, then a line for each other fact; `facts_at` reads it back."""
    lines = [TITLE, "=" * len(TITLE), ""]
    lines += [QUOTE + line for line in facts["text"].split("\n")]
    lines.append("")
    lines += [f"{name}: {words}" for name, words in facts.items() if name != "text"]
    return "\n".join(lines) + "\n"


def facts_at(path: Path) -> dict[str, str]:
    """The facts of the certificate at `path`, by name; {} if it is not one."""
    page = path.read_bytes().decode(errors="replace") if path.is_file() else ""
    if not page.startswith(TITLE):
        return {}
    lines = page.split("\n")
    text = [line.removeprefix(QUOTE) for line in lines if line.startswith(QUOTE)]
    rest = [line.partition(": ") for line in lines if not line.startswith(QUOTE)]
    return {"text": "\n".join(text)} | {name: words for name, colon, words in rest if colon}


# ------------------------------------------------------------------ the check


def recomputed(path: Path) -> tuple[dict[str, str], list[str]]:
    """Recompute a certificate from the lesson and the weights in its folder.

    Returns its facts, and why it no longer holds. Raises LessonError for a page that cannot be
    read, CheckpointError for weights that cannot.
    """
    facts = facts_at(path)
    if "its weights" not in facts:
        raise LessonError(
            f"{path} {'is not a certificate' if path.is_file() else 'does not exist'}: the last "
            "cell of notebook 06 writes one"
        )
    weights = path.with_suffix(".safetensors")
    trained = load_checkpoint(weights)
    try:
        now = examine(read_lesson(path.with_name("lesson.py")).check(), trained)
    except LessonError as error:
        return facts, [str(error)]
    now["its weights"] = trained.sha256
    changed = [key for key in now if now[key] != facts.get(key)]
    return facts, [
        f"{key} has changed: it is now {now[key]:.200}; the page says {facts.get(key, ''):.200}"
        for key in changed
    ]
