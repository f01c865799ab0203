"""Data for the interactive figures: plain numbers of a run, for the scripts in figures/.

Pass the name of the script and its data to `run.figure(…, moving=(name, data))`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.modules.module import register_module_forward_pre_hook
from torch.overrides import TorchFunctionMode

from .. import attention
from ..config import GPTConfig
from ..decoder.model import CausalSelfAttention, Decoder
from ..decoder.pack import as_decoder
from ..model import GPT, LanguageModel

FigureData = dict[str, Any]  # plain data for a script
Query = tuple[str, int, int]  # a character, the position passed to the model, its index in the text
_Key = tuple[str, int, int | None]  # the same; the index is None for a key from an earlier text

NUMBERS_SHOWN = 8  # numbers shown of a query, a key or a value
# A letter for each cell of a mask: correct cells, then mistakes.
SEEN = "."
HIDDEN = "-"
AHEAD = "a"  # it sees a later token
OTHER = "o"  # … a token of another text
TWICE = "t"  # … a token for the second time
PLACE = "p"  # … a token, at a wrong position
UNSEEN = "u"  # it hides a token that must be seen


# ------------------------------------------------------------------ decode: one step


@torch.no_grad()
def decode(model: GPT | Decoder, tokens: Tensor, chars: str) -> FigureData:
    """Weights, queries, keys and values of every head on a text.  (1, T), and its characters

    `weights[layer][head][t]` are the t + 1 weights of query t. Queries, keys and values are cut to
    their first NUMBERS_SHOWN numbers.
    """
    copied, attentions = recording(model)
    copied(tokens)
    layers = [_heads(*module.seen) for module in attentions]
    return {
        "chars": chars,
        "size": model.config.head_size,
        "weights": [[head["weights"] for head in heads] for heads in layers],
        "queries": [[head["queries"] for head in heads] for heads in layers],
        "keys": [[head["keys"] for head in heads] for heads in layers],
        "values": [[head["values"] for head in heads] for heads in layers],
    }


class Recording(CausalSelfAttention):
    """Attention that stores the queries, keys and values of its last pass in `seen`."""

    seen: tuple[Tensor, Tensor, Tensor]

    def attend(
        self, q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None, dropout: float = 0.0
    ) -> Tensor:
        self.seen = (q, k, v)
        return super().attend(q, k, v, mask, dropout)


def recording(model: LanguageModel) -> tuple[Decoder, list[Recording]]:
    """A model with the same weights, and its attention modules, which record."""
    decoder = as_decoder(model)
    copied = Decoder(decoder.config, Recording)
    copied.load_state_dict(decoder.state_dict(), assign=True)  # the same tensors, in their dtype
    copied.eval()
    return copied, [module for module in copied.modules() if isinstance(module, Recording)]


def _heads(q: Tensor, k: Tensor, v: Tensor) -> list[FigureData]:
    """Weights, queries, keys and values of each head.  3 × (1, H, T, hs)"""
    pos = torch.arange(q.shape[2], device=q.device)
    weights = attention.attention_weights(q, k, attention.visible(pos, pos))[0].tolist()
    heads = []
    for h, rows in enumerate(weights):
        vectors = {"queries": q, "keys": k, "values": v}
        short = {
            name: rounded(y[0, h, :, :NUMBERS_SHOWN].tolist(), 2) for name, y in vectors.items()
        }
        seen = [rounded(row[: t + 1], 4) for t, row in enumerate(rows)]
        heads.append({"weights": seen, **short})
    return heads


def rounded(numbers: Any, digits: int) -> Any:
    """Round every number in nested lists to that many digits."""
    if isinstance(numbers, list):
        return [rounded(one, digits) for one in numbers]
    return round(numbers, digits) + 0.0  # avoids -0.0


# ------------------------------------------------------------------ triangle: passes


def triangle(
    chars: str, weights: Sequence[Sequence[float]], prompt: int, config: GPTConfig
) -> FigureData:
    """The weights of one head on a text, (T, T), and the shape with which `work` counts.

    `prompt` is the initial length of the prefill in characters; the reader can change it.
    """
    rows = [rounded(list(row[: t + 1]), 4) for t, row in enumerate(weights)]
    shape = [config.matrix_weights, config.n_layer, config.n_embd]
    return {"chars": chars, "weights": rows, "prompt": prompt, "shape": shape}


# ------------------------------------------------------------------ trap: masks and positions


class _Watching(TorchFunctionMode):
    """Notes the passes through any GPT: a GPT's inputs, then the first mask that fills scores."""

    def __init__(self) -> None:
        super().__init__()
        self.seen: list[FigureData] = []
        self.table: nn.Module | None = None  # the position table of the GPT that runs

    def before_forward(self, module: nn.Module, args: tuple[Any, ...]) -> None:
        """Called before the forward pass of every module, copies of a model included."""
        # 1. A GPT begins a pass: model(tokens, …).
        if isinstance(module, GPT):
            self.seen.append({"tokens": args[0][0].tolist(), "pos": None, "mask": None})
            self.table = module.position_embedding_table
        # 2. It looks up its positions, checked: whatever it was given.
        elif module is self.table:
            self.seen[-1]["pos"] = args[0].tolist()

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        # 3. Its first head hides keys from its queries, as `attention_weights` does.
        if func is Tensor.masked_fill and self.seen and self.seen[-1]["mask"] is None:
            scores, hidden = args[:2]
            self.seen[-1]["mask"] = (~hidden).broadcast_to(scores.shape[-2:])
        return func(*args, **(kwargs or {}))


@contextmanager
def watched() -> Iterator[list[FigureData]]:
    """Record the passes through any GPT while the block runs: tokens, positions, mask.

    The mask is that of the pass's first head, (T, S); None if it fills no scores by a mask.
    """
    watching = _Watching()
    hook = register_module_forward_pre_hook(watching.before_forward)
    try:
        with watching:
            yield watching.seen
    finally:
        hook.remove()
    for step in watching.seen:
        if step["mask"] is not None:
            step["mask"] = step["mask"].tolist()  # only now, because a GPU would have to wait


def grid(seen: list[FigureData], n_new: int, character: Callable[[int], str]) -> FigureData | None:
    """Queries and keys of the last text read in those passes, and which mask cells are wrong.

    A query or key is (character, position passed to the model, index in the text); the index is
    None for a key from an earlier text. `cells` are rows of letters: SEEN and HIDDEN are correct.
    None if a mask is unknown, or does not cover the tokens in the order in which they were read.
    """
    first = max(i for i, step in enumerate(seen) if len(step["tokens"]) > 1)  # the last prefill
    before = sum(len(step["tokens"]) for step in seen[:first])
    read: list[tuple[int, int]] = []  # (token, position)
    for step in seen:
        read += zip(step["tokens"], step["pos"], strict=True)
    prompt = len(seen[first]["tokens"])
    later = len(read) - before - prompt
    end = prompt + n_new - 1  # the last new token is sampled but never read
    places = [*range(prompt), *range(end - later, end)]
    queries: list[Query] = []
    for (token, position), place in zip(read[before:], places, strict=True):
        queries.append((character(token), position, place))
    keys: list[_Key] = [(character(token), position, None) for token, position in read[:before]]
    keys += queries
    masks = [step["mask"] for step in seen]
    held = 0
    for step, mask in zip(seen, masks, strict=True):
        held += len(step["tokens"])
        if mask is None or len(mask[0]) != held:
            return None
    rows = []
    for mask in masks[first:]:
        rows += mask
    cells = [_cells(keys, query, row) for query, row in zip(queries, rows, strict=False)]
    return {"queries": queries, "keys": keys, "cells": cells}


def _cells(keys: list[_Key], query: Query, row: list[bool]) -> str:
    """A query's row of the mask as letters."""
    row = row + [False] * (len(keys) - len(row))
    return "".join(_cell(keys, query, j, sees) for j, sees in enumerate(row))


def _cell(keys: list[_Key], query: Query, key: int, sees: bool) -> str:
    _, q_pos, q_place = query
    _, k_pos, k_place = keys[key]
    twice = any(place == k_place for _, _, place in keys[:key])
    if not sees:
        needed = k_place is not None and k_place <= q_place and not twice
        return UNSEEN if needed else HIDDEN
    if k_place is None:
        return OTHER
    if k_place > q_place:
        return AHEAD
    if twice:
        return TWICE
    return SEEN if (q_pos, k_pos) == (q_place, k_place) else PLACE


def panel(trap: FigureData) -> FigureData:
    """A trap with a `name` and a `grid`, as a panel of plots.masks."""
    q = [position for _, position, _ in trap["grid"]["queries"]]
    k = [position for _, position, _ in trap["grid"]["keys"]]
    mask = []
    for row in trap["grid"]["cells"]:
        mask.append([letter not in (HIDDEN, UNSEEN) for letter in row])
    return {"label": trap["name"], "q": q, "k": k, "mask": mask}
