"""Every architecture of transformers, small, before the referee: a table, and scripts for its bugs.

The scripts use transformers alone, so that a maintainer can paste them.
"""

from __future__ import annotations

import signal
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from enum import Enum
from pathlib import Path
from typing import Any

from ..console import first_line
from ..files import read_json, write_json, write_whole
from .by_hand import BY_HAND, Hand, report_name
from .huggingface import ALLOCATED, HuggingFace, NotBuilt, small
from .offers import STOPS
from .referee import referee
from .report import CachedRun, Finding, Report, Verdict
from .subjects import NotOffered
from .texts import cut, text, total

SECONDS = 6.0  # for each kind
LATE = 5  # times as long, and a kind is given up
MODEL = '''\
"""{name} ({kind}) of transformers {version}: {way}.

{words}
"""

import torch
from transformers import AutoConfig, AutoModelForCausalLM, DynamicCache, StaticCache

config = AutoConfig.for_model({kind!r}, **{sizes})
torch.manual_seed({seed})
model = AutoModelForCausalLM.from_config(config{eager})
for p in model.parameters():
    if p.ndim > 1:
        torch.nn.init.normal_(p, std=0.3)
model = model.eval().double()
ids = torch.tensor({ids})
'''
CACHED = """
# What is read in turn: tokens, or how many of the last ones are taken back.
pieces = {pieces}
state, kept = {{{state}}}, []
with torch.no_grad():
    for piece in pieces:
{crop}        out = model(torch.tensor(piece), use_cache=True, **state)
        kept.append(out.logits)
{record}        for name in {fields}:
            if getattr(out, name, None) is not None:
                state = {{name: out[name]}}
                break
    wanted = model(ids, use_cache=False).logits
got = torch.cat(kept, 1)
print("logits:", tuple(got.shape), "of a text:", tuple(wanted.shape))
n = min(got.shape[1], wanted.shape[1])
print((got[:, :n] - wanted[:, :n]).abs().amax((0, 2)))  # one difference for each token
"""
CROP = """\
        if isinstance(piece, int):
            state[{argument!r}].crop(-piece)
            kept = [torch.cat(kept, 1)[:, :-piece]]
            continue
"""
RECORD = """\
        if len(kept) == 1:  # as generation does before drafts
            state[{argument!r}].activate_past_recording()
"""
PLAIN = """
# Two passes without a cache: over the first tokens, and over all.
with torch.no_grad():
    got = model(ids[:, :{ends}], use_cache=False).logits
    wanted = model(ids, use_cache=False).logits
print((got - wanted[:, :{ends}]).abs().amax((0, 2)))  # one difference for each token
"""
HEAD = """\
# The referee on every causal architecture of transformers

{made}; {kinds} kinds, {seconds:.0f} seconds of one core each: {counted}.
Each is built small, with random weights. A bug here is a difference between a cached and a plain
pass in float64 that rounding does not explain; the script shows it in transformers alone. *left*
counts ways for which no time was left. Made by `python -m nanogpt verify kinds`.

*By hand* is what a person found who read the code: {by_hand}. These sentences are kept in
nanogpt/verify/by_hand.py, with the versions that were examined.
"""
COLUMNS = (
    "kind",
    "verdict",
    "by hand",
    "ways",
    "left",
    "what shows it, or why not",
    "size",
    "script",
)


Row = dict[str, Any]  # of the table


class Unjudged(str, Enum):
    """Why an architecture has no verdict."""

    NOT_REACHED = "not reached"
    NOT_BUILT = "not built"
    REFUSED = "refused"
    STOPPED = "stopped"
    TIMED_OUT = "timed out"

    def __str__(self) -> str:
        return self.value


def kinds() -> list[str]:
    """The names of all causal architectures that transformers knows."""
    from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING_NAMES

    return sorted(MODEL_FOR_CAUSAL_LM_MAPPING_NAMES)


def survey(
    names: Iterable[str], minutes: float, seconds: float, say: Callable[[str], object]
) -> Iterator[Row]:
    """The row of each kind, for so many minutes; what was not reached has a row as well."""
    end = time.monotonic() + 60 * minutes
    for kind in names:
        if time.monotonic() > end:
            yield {"kind": kind, "verdict": Unjudged.NOT_REACHED}
            continue
        row = _row(kind, seconds)
        say(f"{kind:28} {row['verdict']:12} {row.get('way') or row.get('why', '')}"[:110])
        yield row


def _row(kind: str, seconds: float) -> Row:
    """What the referee says of one architecture, as plain data."""
    began = time.monotonic()
    row: Row = {"kind": kind}
    try:
        with _alarm(LATE * seconds):
            subject = small(kind)
            report = referee(subject, seconds=seconds)
    except TimeoutError:
        reason = f"no answer in {LATE * seconds:.0f} s"
        return row | {"verdict": Unjudged.TIMED_OUT, "why": reason}
    except NotBuilt as error:
        return row | {"verdict": Unjudged.NOT_BUILT, "why": first_line(error)}
    except (ValueError, NotOffered) as error:
        return row | {"verdict": Unjudged.REFUSED, "why": first_line(error)}
    except (MemoryError, *STOPS) as error:
        reason = f"{type(error).__name__}: {first_line(error)}"
        return row | {"verdict": Unjudged.STOPPED, "why": reason}
    row |= {"verdict": report.verdict, "ways": len(report.findings)}
    row |= {"left": len(report.unreached), "seconds": round(time.monotonic() - began, 1)}
    if report.verdict is Verdict.BUG:
        row |= _evidence(subject, report)
    return row


def _evidence(subject: HuggingFace, report: Report) -> Row:
    """The simplest way that convicts, its size, and a script; a wrong plain pass comes first."""
    bugs = [f for f in report.findings if f.verdict is Verdict.BUG]
    first = min(bugs, key=_length)
    size = first.size if first.size < float("inf") else None
    row = {"way": first.way, "size": size, "words": first.words}
    return row | {"bugs": len(bugs), "code": script(subject, first)}


def _length(finding: Finding) -> int:
    """Tokens that show a bug; the most for what has no script."""
    if finding.how is None:
        return 10**9
    return total(finding.how.lengths) if isinstance(finding.how, CachedRun) else 0


def script(subject: HuggingFace, finding: Finding) -> str:
    """Lines that show a bug in transformers alone; "" for what is no way to read one batch."""
    import transformers

    how = finding.how
    if how is None:
        return ""
    ids = text(subject, seed=how.seed, length=how.length)
    if not isinstance(how, CachedRun):
        template = MODEL + PLAIN
        ids = ids[:1]
        more: dict[str, Any] = {"ends": how.ends}
    else:
        template = MODEL + CACHED
        ids = ids[: how.rows]
        pieces = cut(ids, how.lengths, subject.vocab_size)
        ids = ids[:, : total(how.lengths)]
        shown = [x if isinstance(x, int) else x.tolist() for x in pieces]
        more = {"pieces": shown, "state": "", "record": "", "crop": ""}
        taken_back = any(isinstance(piece, int) for piece in pieces)
        if taken_back:
            more["crop"] = CROP.format(argument=subject.argument)
        if taken_back and hasattr(transformers.DynamicCache, "activate_past_recording"):
            more["record"] = RECORD.format(argument=subject.argument)
        if how.cache == ALLOCATED:
            room = how.length + 8
            made = f"StaticCache(config=config, max_cache_len={room})"
            more["state"] = f"{subject.argument!r}: {made}"
        elif taken_back:
            more["state"] = f"{subject.argument!r}: DynamicCache(config=config)"
    eager = any("expert" in name for name in subject.sizes)
    return template.format(
        name=subject.name,
        kind=subject.model.config.model_type,
        version=transformers.__version__,
        way=finding.way,
        words=finding.words,
        sizes=subject.sizes,
        eager=', experts_implementation="eager"' if eager else "",
        seed=0,
        fields=subject.fields,
        ids=ids.tolist(),
        **more,
    )


@contextmanager
def _alarm(seconds: float) -> Iterator[None]:
    """Raise TimeoutError in the with-block after so long, where the system has such a clock."""
    if not hasattr(signal, "setitimer"):
        yield
        return

    def ring(number: int, frame: object) -> None:
        raise TimeoutError

    before = signal.signal(signal.SIGALRM, ring)
    signal.setitimer(signal.ITIMER_REAL, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


def write(folder: Path, rows: list[Row], seconds: float) -> None:
    """The table as kinds.json and README.md, and a script for each bug that has one."""
    import torch
    import transformers

    folder.mkdir(parents=True, exist_ok=True)
    versions = {"transformers": transformers.__version__, "torch": torch.__version__}
    write_json(
        folder / "kinds.json", {"what": "kinds", **versions, "seconds": seconds, "rows": rows}
    )
    render(folder)


def render(folder: Path) -> None:
    """README.md and the scripts from kinds.json, with the verdicts by hand.

    A bug has a generated script unless the folder has a report on it.
    """
    data = read_json(folder / "kinds.json")
    rows = data["rows"]
    scripts = {}
    for row in rows:
        report = report_name(row["kind"])
        if (folder / report).is_file():
            scripts[row["kind"]] = report
        elif row.get("code"):
            scripts[row["kind"]] = _script_name(row)
            write_whole(folder / _script_name(row), row["code"].encode())
    write_whole(folder / "README.md", table(rows, data, data["seconds"], scripts).encode())


def _script_name(row: Row) -> str:
    """Not the kind alone: a script named xlstm.py would be imported for the package xlstm."""
    return f"{row['kind']}_shown.py"


def table(
    rows: list[Row], versions: dict[str, str], seconds: float, scripts: dict[str, str]
) -> str:
    """The survey as a page of Markdown. `scripts` has the file name of each kind's script."""
    counts = Counter(row["verdict"] for row in rows)
    counted = ", ".join(f"{n} {verdict}" for verdict, n in counts.most_common())
    made = f"transformers {versions['transformers']}, torch {versions['torch']}"
    hands = Counter(BY_HAND[row["kind"]].verdict for row in rows if row["kind"] in BY_HAND)
    by_hand = ", ".join(f"{hands[verdict]} {verdict}" for verdict in Hand)
    head = HEAD.format(
        made=made, kinds=len(rows), seconds=seconds, counted=counted, by_hand=by_hand
    )
    lines = [*head.splitlines(), "", f"| {' | '.join(COLUMNS)} |", "|---" * len(COLUMNS) + "|"]
    rank = {verdict: i for i, verdict in enumerate(reversed(Verdict))}  # worst first
    for row in sorted(rows, key=lambda row: (rank.get(row["verdict"], 9), row["kind"])):
        reason = (row.get("way") or row.get("why") or "").replace("|", "/")
        size = "" if row.get("size") is None else f"{row['size']:.1e}"
        hand = BY_HAND.get(row["kind"])
        script = scripts.get(row["kind"])
        cells = [
            row["kind"],
            row["verdict"],
            hand.cell(versions["transformers"]) if hand else "",
            row.get("ways", ""),
            row.get("left", ""),
            reason,
            size,
            f"[{script}]({script})" if script else "",
        ]
        lines.append(f"| {' | '.join(map(str, cells))} |")
    return "\n".join(lines) + "\n"
