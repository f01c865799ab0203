"""Bugs as scripts that run without this project: they import torch and what was judged."""

from __future__ import annotations

import inspect
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from .contract import Given
from .huggingface import ALLOCATED, HuggingFace
from .offers import Offered
from .subjects import Subject
from .texts import Length, cut, high_water
from .yardstick import Yardstick

SCRIPT = '''\
"""{name}: {way}.

In the report: {words}
The text below is the shortest one found that still shows it: there, size and tokens may differ.
"""

{imports}

{model}
ids = torch.tensor({ids})
# Read in order: token ids, or an integer: how many of the last tokens to take back.
pieces = {pieces}

with torch.no_grad():
{reads}
moved = {moved}
# Per token: how far two logits have moved relative to each other; a cache must not move them.
print(moved.amax(-1) - moved.amin(-1))
'''
LOOP = """\
kept = []
for piece in pieces:
    if isinstance(piece, int):
        {rewind}
        kept = [torch.cat(kept, 1)[:, :-piece]]
        continue
    {read}
got = torch.cat(kept, 1)
"""
_ALONE = "wanted = torch.cat([{plain} for row in ids])[:, : got.shape[1]]\n"
TRANSFORMERS = """\
out = model(torch.tensor(piece), use_cache=True, **state)
    kept.append(out.logits)
    held = next(x for x in (getattr(out, name, None) for name in {fields}) if x is not None)
    state = {{next(name for name in {fields} if getattr(out, name, None) is not None): held}}"""


Parts = tuple[list[str], str, str]  # imports, code that builds the model, code that reads


def script(
    subject: Subject,
    way: str,
    words: str,
    ids: Tensor,
    lengths: Sequence[Length],
    cache: str,
    yard: Yardstick,
) -> str:
    """A Python script that reads these texts in these pieces and prints the differences.  (B, T)"""
    pieces = cut(ids, lengths, subject.vocab_size)
    if isinstance(subject, Offered):
        pieces = subject.readable(pieces)
        subject = subject.subject
    if isinstance(subject, HuggingFace):
        parts = _of_transformers(subject, pieces, cache, yard.dtype)
    elif isinstance(subject, Given):
        parts = _of_an_adapter(subject, yard.dtype, ids)
    else:
        parts = _of_a_subject(subject, yard.dtype, cache)
    moved = "got.double() - wanted.double()"
    if yard.columns is not None and not bool(yard.columns.all()):
        keep = yard.columns.nonzero()[:, 0].tolist()
        if keep == list(range(len(keep))):
            moved = f"({moved})[..., :{len(keep)}]  # the others are never chosen"
        else:
            moved = f"({moved})[..., {keep}]  # the others are never chosen"
    return _filled(subject.name, way, words, parts, ids, pieces, moved)


def plain_script(
    subject: Subject, way: str, words: str, ids: Tensor, ends: int, dtype: torch.dtype
) -> str:
    """A script that compares a pass over the first tokens with one over all; no cache.  (1, T)"""
    subject = subject.subject if isinstance(subject, Offered) else subject
    if isinstance(subject, HuggingFace):
        imports, model, _ = _of_transformers(subject, [ids], "", dtype)
        call = "model({}, use_cache=False).logits"
    elif isinstance(subject, Given):
        imports, model, _ = _of_an_adapter(subject, dtype, ids)
        with torch.no_grad():
            call = _form_of(subject.given.plain(subject.moved(ids))).format("MODEL.plain({})")
    else:
        imports, model, _ = _of_a_subject(subject, dtype, "")
        call = "SUBJECT.plain({})"
    reads = f"got = {call.format(f'ids[:, :{ends}]')}\nwanted = {call.format('ids')}[:, :{ends}]\n"
    moved = "got.double() - wanted.double()"
    return _filled(subject.name, way, words, (imports, model, reads), ids, [ids[:, :ends]], moved)


def _filled(
    name: str,
    way: str,
    words: str,
    parts: Parts,
    ids: Tensor,
    pieces: Sequence[Tensor | int],
    moved: str,
) -> str:
    """Fill the script template with these parts; `moved` is the difference that it prints."""
    imports, model, reads = parts
    return SCRIPT.format(
        name=name,
        way=way,
        words=words,
        imports="\n".join(["import torch", *imports]),
        model=model,
        ids=ids.tolist(),
        pieces=[piece if isinstance(piece, int) else piece.tolist() for piece in pieces],
        reads=_indented(reads),
        moved=moved,
    )


def _indented(lines: str) -> str:
    return "".join(f"    {line}\n" if line else "\n" for line in lines.splitlines()).rstrip("\n")


def _of_an_adapter(subject: Given, dtype: torch.dtype, ids: Tensor) -> Parts:
    """The parts for your own object, called through its own methods.  (B, T)"""
    given = subject.given
    imports, model = _made(given)
    if dtype == torch.float64:
        if callable(getattr(given, "to", None)):
            model += "MODEL = MODEL.to(torch.float64) or MODEL\n"
        elif subject.model is not None:
            name = next(name for name, x in vars(given).items() if x is subject.model)
            model += f"MODEL.{name}.double()\n"
    with torch.no_grad():
        forms = _form_of(given.plain(subject.moved(ids[:1])))
    plain = forms.format("MODEL.plain(row[None])")
    if not subject.starts:
        named = f", {subject.caches[0]!r}" if hasattr(given, "caches") else ""
        pieces = "[p if isinstance(p, int) else torch.tensor(p) for p in pieces]"
        reads = f"got = {forms.format(f'MODEL.cached({pieces}{named})')}\n"
        return imports, model, reads + _ALONE.format(plain=plain)
    read = f"kept.append({forms.format('session.read(torch.tensor(piece))')})"
    loop = LOOP.format(rewind="session.rewind(piece)", read=read)
    return imports, model, f"session = MODEL.start(len(ids))\n{loop}" + _ALONE.format(plain=plain)


def _form_of(out: object) -> str:
    """A format string that takes the logits from what a call returned."""
    if isinstance(out, Tensor):
        return "{}"
    if isinstance(out, dict):
        return '{}["logits"]'
    if isinstance(out, (tuple, list)):
        return "{}[0]"
    if getattr(out, "logits", None) is not None:
        return "{}.logits"
    return "torch.as_tensor({})"


def _made(given: Any) -> tuple[list[str], str]:
    """The import of an object's class and the line that constructs it, if they can be known."""
    kind = type(given)
    importable = kind.__module__ not in ("__main__", "builtins", "types")
    if not importable or "<" in kind.__qualname__:
        return [], "# MODEL: the object that was judged\n"
    top = kind.__qualname__.split(".")[0]
    imports = [f"from {kind.__module__} import {top}"]
    try:
        required = [
            p
            for p in inspect.signature(kind).parameters.values()
            if p.default is p.empty and p.kind not in (p.VAR_POSITIONAL, p.VAR_KEYWORD)
        ]
    except (TypeError, ValueError):
        required = []
    if required:
        names = ", ".join(p.name for p in required)
        return imports, f"MODEL = {kind.__qualname__}(…)  # construct it as usual, with {names}\n"
    return imports, f"MODEL = {kind.__qualname__}()\n"


def _of_transformers(
    subject: HuggingFace, pieces: Sequence[Tensor | int], cache: str, dtype: torch.dtype
) -> Parts:
    """The parts for a transformers model, without this package."""
    imports = []
    lines = subject.plainly or "# model: the transformers model that was judged\n"
    if subject.plainly:
        imports.append("from transformers import AutoConfig, AutoModelForCausalLM")
    convert = f".{'double' if dtype == torch.float64 else 'float'}()"
    model = f"{lines}model = model.eval(){convert}\n"
    taken_back = any(isinstance(piece, int) for piece in pieces)
    state = "state = {}\n"
    if cache == ALLOCATED:
        room = high_water(pieces) + 8
        imports.append("from transformers import StaticCache")
        held = f"StaticCache(config=model.config, max_cache_len={room})"
        state = f"state = {{{subject.argument!r}: {held}}}\n"
    elif taken_back:
        imports.append("from transformers import DynamicCache")
        state = f"state = {{{subject.argument!r}: DynamicCache(config=model.config)}}\n"
    read = TRANSFORMERS.format(fields=subject.fields)
    if taken_back:
        read += "\n    if len(kept) == 1 and hasattr(held, 'activate_past_recording'):\n"
        read += "        held.activate_past_recording()  # as generation does before drafts"
    loop = LOOP.format(rewind="held.crop(-piece)", read=read)
    plain = "model(row[None], use_cache=False).logits"
    return imports, model, state + loop + _ALONE.format(plain=plain)


def _of_a_subject(subject: Subject, dtype: torch.dtype, cache: str) -> Parts:
    """The parts for a Subject, which your own code imports."""
    if subject.wraps:
        imports: list[str] = []
        model = f"{subject.wraps}.to({dtype})\n"
    else:
        imports, model = _made(subject)
        model += f"SUBJECT = MODEL.to({dtype})\n"
    pieces = "[p if isinstance(p, int) else torch.tensor(p) for p in pieces]"
    reads = f"got = SUBJECT.cached({pieces}, {cache!r})\n"
    return imports, model, reads + _ALONE.format(plain="SUBJECT.plain(row[None])")
