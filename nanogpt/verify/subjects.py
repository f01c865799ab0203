"""What the referee can ask of a model: ours, one of transformers, or the reader's own object.

And the texts that it lets a model read, in one piece and in many.
"""

from __future__ import annotations

import copy
import inspect
import os
import random
from contextlib import contextmanager
from functools import partial

import torch
from torch import Tensor, nn

from ..cache import DynamicCache, StaticCache, build_caches, require_owners
from ..caches.paged import PagedCache
from ..caches.rolling import RollingCache
from ..config import check_int
from ..console import first_line
from ..generation import CachedDecoder, ModuleDecoder
from ..model import GPT, replica

LENGTH = 40  # tokens of a text; more where a window asks for it
SPARE = 8  # tokens of drafts, for which a cache has room as well
LONGEST_WINDOW = 256  # tokens of a window past which texts go; longer ones are not left


class NotOffered(Exception):
    """A model has no such way to be run; the message says why."""


class Subject:
    """A model as the referee sees it. Only `plain` and `cached` must be there.

    A `piece` is tokens to read, (B, t), or an integer n: the last n tokens are forgotten again.
    Logits that are returned belong to the tokens that were kept. `caches` names the caches that
    `cached` can use, the usual one first. `longest` is the most tokens of a text, `window` how many
    of them a query sees; None: no limit.
    """

    name, vocab_size, caches = "model", 32, ("its cache",)
    longest: int | None = None
    window: int | None = None
    rewinds = False  # whether pieces may be integers

    def plain(self, ids: Tensor) -> Tensor:
        """The logits of one pass without a cache.  (B, T) -> (B, T, V)"""
        raise NotImplementedError

    def cached(self, pieces: list, cache: str | None = None) -> Tensor:
        """The logits of pieces read in order through one cache, empty at first.  -> (B, T, V)"""
        raise NotImplementedError

    def padded(self, ids: Tensor, mask: Tensor, lengths: list[int] | None) -> Tensor:
        """Texts of different lengths, padded on the left.  (B, T) twice -> (B, T, V)

        `mask` is 0 at padding. They are read in pieces of these lengths through a cache, or in one
        pass without one (None). Raises NotOffered.
        """
        raise NotOffered("it reads no padded batches")

    def to(self, dtype: torch.dtype) -> Subject:
        """The same model with weights of this dtype, as a copy. Raises NotOffered."""
        raise NotOffered("it has one dtype")


class Given(Subject):
    """Any object with plain(ids) and cached(pieces); what else it has of Subject's is used too."""

    def __init__(self, given):
        offered = [name for name in dir(Subject) if name[0] != "_" and hasattr(given, name)]
        vars(self).update({name: getattr(given, name) for name in offered})
        self.name = getattr(given, "name", type(given).__name__)
        check_int("vocab_size", self.vocab_size, 1)
        for name in ("longest", "window"):
            check_int(name, getattr(self, name) or 1, 1)
        if not hasattr(given, "caches"):
            self.cached = lambda pieces, cache=None: given.cached(pieces)


def through(read, rewind, pieces: list) -> Tensor:
    """Read pieces in order, or forget; the logits of what was kept.  -> (B, T, V)"""
    kept = []
    for piece in pieces:
        if isinstance(piece, int):
            rewind(piece)
            kept = [torch.cat(kept, dim=1)[:, :-piece]]
        else:
            kept.append(read(piece))
    return torch.cat(kept, dim=1)


class Ours(Subject):
    """A GPT of this package, or a model that is called as it is, with every cache that it can use.

    `caches` are classes. The same cache objects serve one request after the other, after reset().
    Raises ValueError for a model whose blocks hold no cache, and as build_caches does.
    """

    rewinds = True

    def __init__(self, model: nn.Module, caches=(DynamicCache, StaticCache, PagedCache)):
        owners, config = require_owners(model), model.config
        form = "per-Head" if getattr(config, "per_head", False) else "packed"
        self.model, self.name = model, f"{type(model).__name__}, {form}"
        self.vocab_size, self.window = config.vocab_size, getattr(config, "window", None)
        self.longest = getattr(config, "positions", getattr(config, "block_size", None))
        rolling = [RollingCache] if self.window and RollingCache not in caches else []
        self.kinds = {getattr(kind, "__name__", str(kind)): kind for kind in (*caches, *rolling)}
        self.caches, self._held = tuple(self.kinds), {}
        for kind in caches:
            build_caches(owners, kind, 1)

    @torch.no_grad()
    def plain(self, ids):
        ids = ids.to(next(self.model.parameters()).device)
        return ModuleDecoder(self.model).forward(ids, 0)

    @torch.no_grad()
    def cached(self, pieces, cache=None):
        name = cache or self.caches[0]
        decoder = self._held.get(name)
        if decoder is None:
            capacity = self.longest or length_of(self) + SPARE
            decoder = CachedDecoder(self.model, self.kinds[name], capacity)
        if all(hasattr(one, "reset") for one in decoder.caches):  # else each text gets new ones
            self._held[name], decoder.length = decoder, 0
            for one in decoder.caches:
                one.reset()

        def rewind(n):
            if not all(hasattr(one, "rewind") for one in decoder.caches):
                raise NotOffered("it has no rewind(n)")
            decoder.rewind(n)

        return through(decoder.read, rewind, pieces)

    def to(self, dtype):
        return Ours(copied(self.model, dtype), tuple(self.kinds.values()))


class HuggingFace(Subject):
    """A causal language model of transformers, with its own cache and, where it can, a static one.

    The static cache is allocated once, and reset() between two requests.
    """

    def __init__(self, model):
        replica(getattr(model, "_orig_mod", model))  # ValueError: a forward that copies would share
        config = self.config = model.config.get_text_config()
        self.model, self.name = model.eval(), type(model).__name__
        self.vocab_size, self._static = config.vocab_size, {}
        limits = ("max_position_embeddings", "n_positions", "max_seq_len", "n_ctx")
        windows = ("sliding_window", "attention_window_size", "window_size")
        self.longest, self.window = (
            next((n for x in names if (n := getattr(config, x, None))), None)
            for names in (limits, windows)
        )
        self.takes = inspect.signature(model.forward).parameters
        self.rewinds = "past_key_values" in self.takes
        self.caches = ("its cache", "static cache") if self.rewinds else ("its cache",)

    @torch.no_grad()
    def plain(self, ids):
        return self.model(ids.to(self.model.device), use_cache=False).logits

    @torch.no_grad()
    def cached(self, pieces, cache=None):
        state = {}
        if cache == "static cache":
            state = {"past_key_values": self._allocated(len(pieces[0]))}
        elif any(isinstance(piece, int) for piece in pieces):
            from transformers import DynamicCache as Growing

            state = {"past_key_values": Growing(config=self.model.config)}
            if hasattr(Growing, "activate_past_recording"):  # keeps what a window pushes out
                state["past_key_values"].activate_past_recording()

        def rewind(n):
            (held,) = state.values()
            try:
                held.crop(-n)
            except (NotImplementedError, ValueError, AttributeError, RuntimeError) as error:
                raise NotOffered(f"its cache refuses to crop: {error}") from None

        return through(partial(self._read, state), rewind, pieces)

    def _read(self, state: dict, ids: Tensor, **more) -> Tensor:
        """Logits of the next tokens. `state` has what the model wants back with those after."""
        out = self.model(ids, use_cache=True, **more, **state)
        for key in ("past_key_values", "cache_params", "state"):
            if getattr(out, key, None) is not None:
                state[key] = out[key]
                return out.logits
        raise NotOffered(f"{self.name} returns no cache")

    def _allocated(self, batch: int):
        from transformers import StaticCache as Allocated

        if batch not in self._static:
            n = length_of(self) + SPARE
            try:
                self._static[batch] = Allocated(config=self.model.config, max_cache_len=n)
            except Exception as error:
                raise NotOffered(f"no static cache: {error}") from None
        self._static[batch].reset()
        return self._static[batch]

    @torch.no_grad()
    def padded(self, ids, mask, lengths):
        if "attention_mask" not in self.takes:
            raise NotOffered("it takes no attention_mask, so padding would be read as text")
        if lengths and not self.rewinds:
            raise NotOffered("its state takes no mask of what was read before")
        pos, state, found, end = (mask.cumsum(1) - 1).clamp(min=0), {}, [], 0
        read = partial(self._read, state) if lengths else partial(self.model, use_cache=False)
        for piece in ids.split(lengths or ids.shape[1], 1):
            start, end = end, end + piece.shape[1]
            more = {"attention_mask": mask[:, :end], "position_ids": pos[:, start:end]}
            out = read(piece, **{name: x for name, x in more.items() if name in self.takes})
            found.append(out if lengths else out.logits)
        return torch.cat(found, 1)

    def to(self, dtype):
        return HuggingFace(copied(self.model, dtype))


def copied(model: nn.Module, dtype: torch.dtype) -> nn.Module:
    """The model in memory, in this dtype. Raises NotOffered where it would not fit."""
    need = sum(p.numel() for p in model.parameters()) * dtype.itemsize * 1.2
    if hasattr(os, "sysconf") and "SC_AVPHYS_PAGES" in os.sysconf_names:
        free = os.sysconf("SC_AVPHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
        if need > free:
            raise NotOffered(f"{dtype} needs {need / 1e6:,.0f} MB, and {free / 1e6:,.0f} are free")
    return copy.deepcopy(model).to("cpu", dtype)


def small(kind: str, seed: int = 0) -> HuggingFace:
    """A small model of one of transformers' architectures, as in small("llama").

    Weights are normal(0, 0.3): those of a new model are so small that a wrong mask hardly shows.
    Raises ValueError for a name that transformers does not know, or cannot build small.
    """
    from transformers import AutoConfig, AutoModelForCausalLM

    with _transformers(f"builds no small {kind!r}"), torch.random.fork_rng(devices=[]):
        known = AutoConfig.for_model(kind)
        sizes = {name: value for name, value in SMALL.items() if hasattr(known, name)}
        torch.manual_seed(seed)
        model = AutoModelForCausalLM.from_config(AutoConfig.for_model(kind, **sizes))
        for p in (p for p in model.parameters() if p.ndim > 1):
            nn.init.normal_(p, std=0.3)
        return HuggingFace(model)


SMALL = {
    **{"vocab_size": 97, "hidden_size": 32, "intermediate_size": 48, "head_dim": 8},
    **{"num_hidden_layers": 4, "num_attention_heads": 4, "num_key_value_heads": 2},
    **{"max_position_embeddings": 128, "n_positions": 128, "sliding_window": 12},
    **{"n_embd": 32, "n_layer": 4, "n_head": 4, "d_model": 32, "n_heads": 4, "n_layers": 4},
    **{"ffn_dim": 48, "word_embed_proj_dim": 32, "pad_token_id": 0, "bos_token_id": 1},
    **{"eos_token_id": 2, "hidden_dropout": 0.0, "attention_dropout": 0.0},
}


def subject_of(model, caches=None) -> Subject:
    """The model as a Subject; `caches` are those of a GPT. Raises ValueError."""
    if isinstance(model, nn.Module) and any(p.is_meta for p in model.parameters()):
        raise ValueError("the model is on the meta device, without numbers: load its weights")
    if caches is not None:
        if (
            not isinstance(caches, (list, tuple))
            or not isinstance(model, GPT)
            or not caches
            or not all(map(callable, caches))
        ):
            raise ValueError(f"caches={caches!r}: pass classes, as in [DynamicCache], and a GPT")
        return Ours(model, caches)
    if isinstance(model, Subject):
        return model
    if callable(getattr(model, "plain", None)) and callable(getattr(model, "cached", None)):
        return Given(model)
    if isinstance(model, GPT) or all(hasattr(model, x) for x in ("blocks", "config", "modules")):
        return Ours(model)
    if hasattr(model, "get_output_embeddings") and hasattr(model, "config"):
        return HuggingFace(model)
    kinds = "a GPT, a model of transformers, a server's http://…, or an object with"
    raise ValueError(f"{type(model).__name__}: pass {kinds} plain(ids) and cached(pieces)")


def from_folder(path) -> HuggingFace:
    """The causal language model in a folder that transformers wrote. Raises ValueError."""
    from transformers import AutoModelForCausalLM

    with _transformers(f"loads no model from {path}"):
        return HuggingFace(AutoModelForCausalLM.from_pretrained(path, local_files_only=True))


@contextmanager
def _transformers(cannot: str):
    from transformers import logging

    logging.set_verbosity_error()
    try:
        yield
    except Exception as error:  # as many kinds as there are models
        raise ValueError(f"transformers {cannot}: {first_line(error)}") from None


# ------------------------------------------------------------------ what it reads


def length_of(subject: Subject) -> int:
    """Tokens of a text: past the window, where that is not too long."""
    reached = subject.window if subject.window and subject.window <= LONGEST_WINDOW else 0
    return min(max(LENGTH, 2 * reached + 9), subject.longest or 10**9)


def text(subject: Subject, batch: int = 3, seed: int = 0) -> Tensor:
    """Texts in which phrases come back, as A B A does: mere repetition hides bugs.  (B, T)"""
    pick, n = random.Random(seed), length_of(subject)
    low = 3 if subject.vocab_size > 30 else 0  # a large vocabulary begins with special tokens
    rows = []
    for _ in range(batch):
        phrases = [[pick.randrange(low, subject.vocab_size) for _ in range(5)] for _ in "AB"]
        rows.append(row := [])
        while len(row) < n:
            row += pick.choice(phrases) + [pick.randrange(low, subject.vocab_size)]
    return torch.tensor([row[:n] for row in rows])


def cut(ids: Tensor, lengths: list, vocab_size: int) -> list:
    """Pieces of these lengths; (2, 3) is a piece of 2 tokens and 3 others that are taken back."""
    pieces, start = [], 0
    for n in lengths:
        n, wrong = n if isinstance(n, tuple) else (n, 0)
        piece, start = ids[:, start : start + n], start + n
        if wrong:
            others = (ids[:, start : start + 1] + 1 + torch.arange(wrong)) % vocab_size
            piece = torch.cat([piece, others], dim=1)
        pieces += [piece, wrong] if wrong else [piece]
    return pieces


def total(lengths: list) -> int:
    """The tokens that are kept of pieces of these lengths."""
    return sum(n[0] if isinstance(n, tuple) else n for n in lengths)


def plans(n: int, window: int | None, rewinds: bool, pick: random.Random) -> list[tuple]:
    """The ways to read n tokens: a name, how many texts, the lengths of pieces."""
    k = n // 2 - 3

    def rest(*first: int, sizes=(1,)) -> list[int]:
        lengths = list(first)
        while (left := n - sum(lengths)) > 0:
            lengths.append(min(left, pick.choice(sizes)))
        return lengths

    edge = window if window and 2 < window < n - 4 else k
    ways = {
        f"a prompt of {k}, then token by token": rest(k),
        "a prompt of 1, then 15 tokens": [1] * 16,
        "a prompt of 2, then 8 tokens": [2] + [1] * 8,
        "random chunks": rest(sizes=(2, 3, 4, 5)),
        "chunks after a prompt": rest(k, sizes=(1, 2, 3, 7)),
        "chunks around the window's edge": rest(edge - 1, 2, 1, sizes=(4,)),
        "a prompt past the edge": rest(edge + 2, sizes=(edge // 2 + 1, 2)),
    }
    plans = [(way, 1, lengths) for way, lengths in ways.items()]
    if rewinds:
        drafts = [4, (1, 2), (2, 1), 1, (0, 3), 2, (edge, 2), (1, 3), 1, (0, 2), (3, 2)]
        if (used := total(drafts)) < n:
            plans.append(("rejected drafts taken back", 1, drafts + [1] * (n - used)))
    batch = rest(n // 2 - 3, 1, 1, 4, 1, 1, 1, n - n // 2 - 6)
    return [*plans, ("three texts in a batch, against each alone", 3, batch)]
