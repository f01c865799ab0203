"""transformers models as the referee sees them."""

from __future__ import annotations

import copy
import inspect
from typing import Any

import torch
from torch import Tensor

from .foreign import cache_is_unsupported
from .subjects import (
    NotOffered,
    Pieces,
    Session,
    Subject,
    check_forward,
    copied,
    first_line,
    through,
)
from .texts import high_water

TWO_WAYS = ("cpmant",)  # kinds that attend to the whole prompt in both directions
CACHE_ARGUMENTS = ("past_key_values", "cache")  # the argument before transformers 5.24, and since
STATES = ("falcon_mamba", "mamba", "mamba2", "xlstm")  # their cache is a state, without keys
GROWING = "its cache"  # the names of caches
ALLOCATED = "static cache"


_State = dict[str, Any]  # what to pass back with the next tokens, by argument name


class HuggingFace(Subject):
    """A causal language model of transformers, with its own cache and, if supported, a static one.

    The static cache is allocated once, and reset() between requests.
    """

    copies = True
    plainly = ""  # code that rebuilds `model` with transformers alone

    def __init__(self, model: Any):
        check_forward(getattr(model, "_orig_mod", model))
        config = model.config.get_text_config()
        self.config = config
        self.model = model.eval()
        self.name = type(model).__name__
        self.vocab_size = config.vocab_size
        self._static: dict[tuple[int, int], Any] = {}
        limits = ("max_position_embeddings", "n_positions", "max_seq_len", "n_ctx")
        windows = ("sliding_window", "attention_window_size", "window_size")
        self.longest = _first_integer(config, limits)
        self.window = _first_integer(config, windows)
        if (self.longest or 0) < 1:
            self.longest = None
        pads = (getattr(config, "pad_token_id", None), *_tokens_of_images(model.config))
        self.specials = tuple(i for i in (0, 1, 2) if i not in pads)
        # By its signature, what torch.compile returns accepts any argument.
        self.takes = inspect.signature(getattr(model, "_orig_mod", model).forward).parameters
        self.argument = next((name for name in CACHE_ARGUMENTS if name in self.takes), "")
        caches = [self.argument] if self.argument else ["cache", "past_key_values"]
        self.fields = [*caches, "cache_params", "state"]
        self.rewinds = bool(self.argument) and config.model_type not in STATES
        self.caches = (GROWING, ALLOCATED) if self.rewinds else (GROWING,)

    @property
    def bidirectional(self) -> bool:
        """Whether the model attends to later tokens by design, as an encoder does."""
        if self.config.model_type in TWO_WAYS:
            return True
        flags = (getattr(self.config, name, True) for name in ("is_decoder", "causal"))
        return False in flags or getattr(self.config, "attn_type", "") == "bi"

    @torch.no_grad()
    def plain(self, ids: Tensor) -> Tensor:
        logits: Tensor = self.model(ids.to(self.model.device), use_cache=False).logits
        return logits

    @torch.no_grad()
    def cached(self, pieces: Pieces, cache: str | None = None) -> Tensor:
        state: _State = {}
        taken_back = any(isinstance(piece, int) for piece in pieces)
        if taken_back and getattr(self.model, "_is_stateful", False):
            raise NotOffered("transformers cannot rewind a stateful model")
        if cache == ALLOCATED:
            rows = len(next(piece for piece in pieces if isinstance(piece, Tensor)))
            state = {self.argument: self._allocated(rows, high_water(pieces), anew=taken_back)}
        elif taken_back:
            from transformers import DynamicCache as Growing

            state = {self.argument: Growing(config=self.model.config)}

        cropped = False

        def read(ids: Tensor) -> Tensor:
            nonlocal cropped
            cropped = False
            empty = taken_back and not getattr(state[self.argument], "read", False)
            out = self._read(state, ids)
            if empty:
                _record(state[self.argument])
            return out

        def rewind(n: int) -> None:
            nonlocal cropped
            (held,) = state.values()
            layers = getattr(held, "layers", ())
            if cropped and any(getattr(layer, "record_past", False) for layer in layers):
                raise NotOffered("a crop keeps only what it must: read before the next crop")
            cropped = True
            try:
                held.crop(-n)
            except (NotImplementedError, ValueError, AttributeError, RuntimeError) as error:
                raise NotOffered(f"its cache refuses to crop: {error}") from None

        return through(read, rewind, pieces)

    def _read(self, state: _State, ids: Tensor, **more: Tensor) -> Tensor:
        """Logits of the next tokens. `state` gets what to pass back with the tokens after them."""
        try:
            out = self.model(ids, use_cache=True, **more, **state)
        except (ValueError, NotImplementedError, AttributeError, TypeError) as error:
            if cache_is_unsupported(error):
                raise NotOffered(f"it refuses this cache: {first_line(error)}") from None
            raise
        for key in self.fields:
            if getattr(out, key, None) is not None:
                state[key] = out[key]
                logits: Tensor = out.logits
                return logits
        raise NotOffered(f"{self.name} returns no cache")

    def _allocated(self, batch: int, needed: int, anew: bool) -> Any:
        """A static cache with room for this many tokens, and at most twice as many.

        `anew` allocates a new one, because a reset does not end the recording of drafts.
        """
        from transformers import StaticCache as Allocated

        sizes = [n for rows, n in self._static if rows == batch and needed <= n <= 2 * needed]
        key = (batch, min(sizes, default=needed))
        held = None if anew else self._static.get(key)
        if held is None:
            try:
                held = Allocated(config=self.model.config, max_cache_len=key[1])
            except Exception as error:
                raise NotOffered(f"no static cache: {error}") from None
        if not anew:
            self._static[key] = held
        held.reset()
        return held

    @torch.no_grad()
    def placed(self, ids: Tensor, pos: Tensor) -> Tensor:
        if "position_ids" not in self.takes:
            raise NotOffered("it takes no position_ids")
        device = self.model.device
        places = pos.to(device)[None].expand(len(ids), -1)
        logits: Tensor = self.model(ids.to(device), position_ids=places, use_cache=False).logits
        return logits

    def session(self, cache: str | None = None, rows: int = 1) -> Session:
        if cache == ALLOCATED:
            raise NotOffered("a static cache serves one text after the other")
        return HuggingFaceSession(self)

    @torch.no_grad()
    def padded(self, ids: Tensor, mask: Tensor, lengths: list[int] | None) -> Tensor:
        if "attention_mask" not in self.takes:
            raise NotOffered("it takes no attention_mask, so padding would be read as text")
        if lengths and not self.rewinds:
            raise NotOffered("its state accepts no mask for earlier tokens")
        pos = (mask.cumsum(1) - 1).clamp(min=0)
        state: _State = {}
        logits = []
        end = 0
        for piece in ids.split(lengths or ids.shape[1], 1):
            start = end
            end = end + piece.shape[1]
            more = {"attention_mask": mask[:, :end], "position_ids": pos[:, start:end]}
            more = {name: x for name, x in more.items() if name in self.takes}
            if lengths:
                logits.append(self._read(state, piece, **more))
            else:
                logits.append(self.model(piece, use_cache=False, **more).logits)
        return torch.cat(logits, 1)

    def to(self, dtype: torch.dtype) -> HuggingFace:
        other = HuggingFace(copied(self.model, dtype))
        other.builds = self.builds
        other.plainly = self.plainly
        return other


def _first_integer(config: object, names: tuple[str, ...]) -> int | None:
    """The value of the first of these attributes that is an integer."""
    for name in names:
        value = getattr(config, name, None)
        if isinstance(value, int):
            return value
    return None


class HuggingFaceSession(Session):
    """The cache of one batch, independent of other sessions."""

    def __init__(self, subject: HuggingFace, state: _State | None = None):
        self.subject = subject
        self.state: _State = state or {}

    @torch.no_grad()
    def read(self, ids: Tensor) -> Tensor:
        return self.subject._read(self.state, ids)

    def reorder(self, rows: list[int]) -> None:
        self._held("reorder_cache").reorder_cache(torch.tensor(rows))

    def keep(self, rows: list[int]) -> None:
        self._held("batch_select_indices").batch_select_indices(torch.tensor(rows))

    def fork(self) -> Session:
        return HuggingFaceSession(self.subject, copy.deepcopy(self.state))

    def _held(self, method: str) -> Any:
        """The cache, if it has this method. Raises NotOffered."""
        (held,) = self.state.values()
        if not hasattr(held, method):
            raise NotOffered(f"its cache has no {method}")
        return held


def _record(cache: Any) -> None:
    """Make a cache keep what drafts push out, as generation does after the prompt."""
    if not getattr(cache, "is_croppable", True):
        raise NotOffered("its cache says that it is not croppable")
    cache.read = True
    if hasattr(cache, "activate_past_recording"):
        cache.activate_past_recording()


def _tokens_of_images(config: object) -> list[int]:
    """Ids that stand for something other than text."""
    names = [name for name in vars(config) if name.endswith(("_token_id", "_token_index"))]
    return [getattr(config, n) for n in names if n[:3] not in ("bos", "eos", "sep", "cls")]
