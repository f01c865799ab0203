"""The adapter for causal language models of transformers, with growing and static caches."""

from __future__ import annotations

import copy
import inspect
from typing import Any

import torch
from torch import Tensor, nn

from .contract import ONLY_CACHE
from .errors import NotOffered, first_line
from .objects import check_memory
from .scripts import StepCode

TWO_WAYS = ("cpmant",)  # kinds that attend to the whole prompt in both directions
CACHE_ARGUMENTS = ("past_key_values", "cache")  # the argument before transformers 5.24, and since
STATES = ("falcon_mamba", "mamba", "mamba2", "xlstm")  # their cache is a state, without keys
GROWING = ONLY_CACHE  # the names of caches
ALLOCATED = "static cache"

_State = dict[str, Any]  # what to pass back with the next tokens, by argument name


class HuggingFace:
    """A causal language model of transformers, with its own cache and, if supported, a static one.

    The static cache is allocated once, and reset() between requests.
    """

    copies = True
    plainly = ""  # code that rebuilds `model` with transformers alone

    def __init__(self, model: Any):
        check_forward(getattr(model, "_orig_mod", model))
        config = model.config.get_text_config()
        self.config = config
        self.model = model
        self.name = type(model).__name__
        self.vocab_size = config.vocab_size
        limits = ("max_position_embeddings", "n_positions", "max_seq_len", "n_ctx")
        windows = ("sliding_window", "attention_window_size", "window_size")
        self.longest = _first_integer(config, limits)
        self.window = _first_integer(config, windows)
        if (self.longest or 0) < 1:
            self.longest = None
        # By its signature, what torch.compile returns accepts any argument.
        self.takes = tuple(inspect.signature(getattr(model, "_orig_mod", model).forward).parameters)
        self.argument = next((name for name in CACHE_ARGUMENTS if name in self.takes), "")
        caches = [self.argument] if self.argument else ["cache", "past_key_values"]
        self.fields = (*caches, "cache_params", "state")
        self.rewinds = bool(self.argument) and config.model_type not in STATES
        self.caches = (GROWING, ALLOCATED) if self.rewinds else (GROWING,)
        self._static: dict[tuple[int, int], Any] = {}  # caches by texts and room
        self._latest = 0  # number of the latest session with a static cache
        self._refused: dict[str, str] = {}  # why the model refuses a cache that is passed to it

    def calls(self, model: Any, cache: str) -> StepCode:
        """How a script asks this model, with transformers alone."""
        return _TransformersCode(model, cache)

    @property
    def bidirectional(self) -> bool:
        """Whether the model attends to later tokens by design, as an encoder does."""
        if self.config.model_type in TWO_WAYS:
            return True
        flags = (getattr(self.config, name, True) for name in ("is_decoder", "causal"))
        return False in flags or getattr(self.config, "attn_type", "") == "bi"

    def plain(self, ids: Tensor) -> Any:
        return self.model(ids, use_cache=False)

    def start(
        self, rows: int, cache: str = GROWING, room: int = 0, rewinds: bool = False
    ) -> TransformersSession:
        """An empty cache; for drafts that may be taken back, one that is passed from the start."""
        state: _State = {}
        if rewinds and getattr(self.model, "_is_stateful", False):
            raise NotOffered("transformers cannot rewind a stateful model")
        if cache == ALLOCATED or rewinds:
            self._check_accepted(cache)
        if cache == ALLOCATED:
            self._latest += 1
            state = {self.argument: self._allocated(rows, room, anew=rewinds)}
            return TransformersSession(self, state, rewinds, static=self._latest)
        if rewinds:
            from transformers import DynamicCache as Growing

            state = {self.argument: Growing(config=self.model.config)}
        return TransformersSession(self, state, rewinds)

    def _check_accepted(self, cache: str) -> None:
        """Raise NotOffered if the model refuses a cache of this class; it is asked once."""
        if cache not in self._refused:
            self._refused[cache] = ""
            try:
                if cache == ALLOCATED:
                    state = {self.argument: self._allocated(1, 4, anew=True)}
                else:
                    from transformers import DynamicCache as Growing

                    state = {self.argument: Growing(config=self.model.config)}
                self.read(state, torch.tensor([[3, 4]]).to(self.model.device))
            except Exception as error:  # of any type: it is no cache that this model takes
                self._refused[cache] = f"it refuses this cache: {first_line(error)}"
        if self._refused[cache]:
            raise NotOffered(self._refused[cache])

    def _allocated(self, rows: int, room: int, anew: bool) -> Any:
        """A static cache with room for this many tokens, and at most twice as many.

        `anew` allocates a new one, because a reset does not end the recording of drafts.
        """
        from transformers import StaticCache as Allocated

        sizes = [n for held_rows, n in self._static if held_rows == rows and room <= n <= 2 * room]
        key = (rows, min(sizes, default=room))
        held = None if anew else self._static.get(key)
        if held is None:
            try:
                held = Allocated(config=self.model.config, max_cache_len=key[1])
            except Exception as error:  # of any type: it depends on the model
                raise NotOffered(f"no static cache: {first_line(error)}") from None
        if not anew:
            self._static[key] = held
        held.reset()
        return held

    def read(self, state: _State, ids: Tensor, **more: Tensor) -> Tensor:
        """Logits of the next tokens. `state` gets what to pass back with the tokens after them."""
        out = self.model(ids, use_cache=True, **more, **state)
        for key in self.fields:
            if getattr(out, key, None) is not None:
                state.clear()
                state[key] = getattr(out, key)
                logits: Tensor = out.logits
                return logits
        raise NotOffered(f"{self.name} returns no cache")

    def placed(self, ids: Tensor, pos: Tensor) -> Any:
        if "position_ids" not in self.takes:
            raise NotOffered("it takes no position_ids")
        places = pos[None].expand(len(ids), -1)
        return self.model(ids, position_ids=places, use_cache=False)

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
                logits.append(self.read(state, piece, **more))
            else:
                logits.append(self.model(piece, use_cache=False, **more).logits)
        return torch.cat(logits, 1)

    def to(self, dtype: torch.dtype) -> HuggingFace:
        check_memory(self.model, dtype)
        other = HuggingFace(copy.deepcopy(self.model).to("cpu", dtype))
        other.plainly = self.plainly
        return other


class TransformersSession:
    """The cache of one batch."""

    def __init__(self, adapter: HuggingFace, state: _State, rewinds: bool, static: int = 0):
        self.adapter = adapter
        self.state = state
        self.rewinds = rewinds  # whether any tokens may be taken back
        self.static = static  # its number among those with a static cache; 0: its cache grows
        self.recording = False  # whether the cache keeps what drafts push out
        self.cropped = False  # whether nothing was read since the last crop

    def read(self, ids: Tensor) -> Tensor:
        if self.static and self.static != self.adapter._latest:
            raise NotOffered("a static cache serves one text after the other")
        self.cropped = False
        logits = self.adapter.read(self.state, ids)
        if self.rewinds and not self.recording:
            self._record()
        return logits

    def _record(self) -> None:
        """Make the cache keep what drafts push out, as generation does after the prompt."""
        (cache,) = self.state.values()
        if not getattr(cache, "is_croppable", True):
            raise NotOffered("its cache says that it is not croppable")
        self.recording = True
        if hasattr(cache, "activate_past_recording"):
            cache.activate_past_recording()

    def rewind(self, n: int) -> None:
        cache = self._held("crop")
        layers = getattr(cache, "layers", ())
        if self.cropped and any(getattr(layer, "record_past", False) for layer in layers):
            raise NotOffered("a crop keeps only what it must: read before the next crop")
        self.cropped = True
        try:
            cache.crop(-n)
        except (NotImplementedError, ValueError, AttributeError, RuntimeError) as error:
            raise NotOffered(f"its cache refuses to crop: {first_line(error)}") from None

    def reorder(self, rows: list[int]) -> None:
        self._held("reorder_cache").reorder_cache(torch.tensor(rows))

    def keep(self, rows: list[int]) -> None:
        self._held("batch_select_indices").batch_select_indices(torch.tensor(rows))

    def fork(self) -> TransformersSession:
        if self.static:
            raise NotOffered("a static cache serves one text after the other")
        other = TransformersSession(self.adapter, copy.deepcopy(self.state), self.rewinds)
        other.recording = self.recording
        return other

    def _held(self, method: str) -> Any:
        """The cache, if it has this method. Raises NotOffered."""
        if self.static and method != "crop":
            raise NotOffered("a static cache serves one text after the other")
        held = next(iter(self.state.values()), None)
        # A hybrid's cache has the method, and calls it on layers that lack it (5.24: Mamba's).
        for part in (held, *getattr(held, "layers", ())):
            if not hasattr(part, method) and (part is held or method != "crop"):
                raise NotOffered(f"its cache ({type(part).__name__}) has no {method}")
        return held


def check_forward(model: nn.Module) -> None:
    """Raise ValueError for a forward set on an instance: a copy would run the original's."""
    for module in model.modules():
        if "forward" in vars(module):
            raise ValueError(
                f"a {type(module).__name__} has another forward, set on the instance: define it "
                f"in a class, or remove it"
            )


def _first_integer(config: object, names: tuple[str, ...]) -> int | None:
    """The value of the first of these attributes that is an integer."""
    for name in names:
        value = getattr(config, name, None)
        if isinstance(value, int):
            return value
    return None


# ------------------------------------------------------------------ scripts

_READ = '''\
def read(cache, ids, **more):
    """The logits of the next tokens; `cache` gets what to pass back with those after them."""
    out = model(torch.tensor(ids), use_cache=True, **cache, **more)
    name = next(name for name in {fields} if getattr(out, name, None) is not None)
    cache.clear()
    cache[name] = getattr(out, name)
    return out.logits
'''
_RECORDED = '''\


def read_and_record(cache, ids):
    """The same; then the cache keeps what drafts push out, as generation does."""
    logits = read(cache, ids)
    (held,) = cache.values()
    if hasattr(held, "activate_past_recording"):
        held.activate_past_recording()
    return logits
'''
_PADDED = '''\


def padded(ids, mask, lengths):
    """A padded batch in pieces of these lengths, or in one pass without a cache (None)."""
    ids, mask = torch.tensor(ids), torch.tensor(mask)
    pos = (mask.cumsum(1) - 1).clamp(min=0)
    if lengths is None:
        return model(ids, attention_mask=mask, {positions}use_cache=False).logits
    cache, logits, end = {{}}, [], 0
    for piece in ids.split(lengths, 1):
        start, end = end, end + piece.shape[1]
        more = {{"attention_mask": mask[:, :end]{at}}}
        logits.append(read(cache, piece.tolist(), **more))
    return torch.cat(logits, 1)
'''


class _TransformersCode(StepCode):
    """The code of each step, for a model of transformers in the variable `model`."""

    def __init__(self, model: Any, cache: str):
        super().__init__(model, cache)
        self.fresh: set[str] = set()  # sessions that record after what they read first

    def build(self, dtype: torch.dtype | None) -> tuple[list[str], list[str]]:
        given: HuggingFace = self.model.given
        imports = ["import copy", "from transformers import DynamicCache, StaticCache"]
        lines = ["# model: the transformers model that was judged"]
        if given.plainly:
            imports[-1] = "from transformers import AutoConfig, AutoModelForCausalLM"
            imports.append("from transformers import DynamicCache, StaticCache")
            lines = given.plainly.splitlines()
        convert = ".double()" if dtype == torch.float64 else ""
        lines.append(f"model = model.eval(){convert}")
        placed = "position_ids" in given.takes
        padded = _PADDED.format(
            positions="position_ids=pos, " if placed else "",
            at=', "position_ids": pos[:, start:end]' if placed else "",
        )
        helpers = _READ.format(fields=given.fields) + _RECORDED + padded
        return imports, [*lines, "", "", *helpers.splitlines(), ""]

    def start(self, name: str, rows: int, room: int, rewinds: bool) -> list[str]:
        argument = self.model.given.argument
        if rewinds:
            self.fresh.add(name)
        if self.cache == ALLOCATED:
            made = f"StaticCache(config=model.config, max_cache_len={room})"
            return [f"{name} = {{{argument!r}: {made}}}"]
        if rewinds:
            return [f"{name} = {{{argument!r}: DynamicCache(config=model.config)}}"]
        return [f"{name} = {{}}"]

    def read(self, name: str, ids: str) -> str:
        if name in self.fresh:
            self.fresh.discard(name)
            return f"read_and_record({name}, {ids})"
        return f"read({name}, {ids})"

    def rewind(self, name: str, n: int) -> str:
        return f"next(iter({name}.values())).crop(-{n})"

    def reorder(self, name: str, rows: list[int]) -> str:
        return f"next(iter({name}.values())).reorder_cache(torch.tensor({rows}))"

    def keep(self, name: str, rows: list[int]) -> str:
        return f"next(iter({name}.values())).batch_select_indices(torch.tensor({rows}))"

    def fork(self, name: str, into: str) -> str:
        return f"{into} = copy.deepcopy({name})"

    def plain(self, ids: str) -> str:
        return f"model(torch.tensor({ids}), use_cache=False)"

    def padded(self, ids: str, mask: str, lengths: str) -> str:
        return f"padded({ids}, {mask}, {lengths})"
