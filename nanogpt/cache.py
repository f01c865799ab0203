"""Key/value caches: the base class, two implementations, and how to switch them on and off.

A cache is one method: `update(k, v, pos) -> k, v, k_pos` takes the keys and values of new tokens
and returns those of all cached tokens, with their positions. `rewind(n)` forgets the last n tokens.
Any leading dimensions work: (B, T, hs) for one of the lecture's heads, (B, H, T, hs) for all heads.
"""

from abc import ABC, abstractmethod
from contextlib import contextmanager
from math import prod

import torch
import torch.nn as nn
from torch import Tensor

from .attention import check_ascending
from .config import check_int, check_type, too_large


class KVCache(ABC):
    """Base class: counts and checks tokens; a subclass implements `store` to keep them.

    `k`, `v` and `pos` are the tensors held, `length` is the number of tokens stored so far, `last`
    the position of the last one, `capacity` the most that fit (a cache that grows takes more).
    """

    k: Tensor  # None while the cache is empty, like v and pos
    v: Tensor
    pos: Tensor
    limited = False  # whether a capacity is required; positions must then be below it
    smaller = "pass a smaller capacity, or ask for fewer tokens"  # advice if there is no memory

    def __init__(self, capacity: int | None = None):
        if self.limited or capacity is not None:
            check_int("capacity", capacity, 1)
        self.capacity = capacity
        self.reset()

    def reset(self) -> None:
        """Forget everything. The next text may have another batch size, dtype and device."""
        self.k = None
        self.v = None
        self.pos = None
        self.length = 0
        self.last = -1
        self.kind = None  # this text's leading dimensions, head size, dtype and device
        self.checked = None  # shapes and dtypes of the last update

    def update(self, k: Tensor, v: Tensor, pos: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Store new tokens and return all.  (…, T, hs) twice, (T,) -> (…, S, hs) twice, (S,)

        Raises ValueError, before anything changes, for mismatched shapes, dtypes or devices, for
        positions that do not ascend (on a CPU), and for more tokens than the cache can hold.
        """
        # 1. Do these keys, values and positions match each other and the tokens already held?
        try:
            form = (k.shape, v.shape, pos.shape, k.dtype, v.dtype, pos.dtype, k.device, v.device)
        except AttributeError:
            raise TypeError(
                f"k is a {type(k).__name__}, v a {type(v).__name__}, pos a {type(pos).__name__}: "
                f"pass tensors"
            ) from None
        # In decoding every step has the same shapes and dtypes, so they are checked once.
        if form != self.checked:
            self._check_form(k, v, pos)
        # 2. Do they continue the text, and is there room? A wrong position would not fail by
        #    itself: the mask is computed from positions, so attention would see the wrong keys.
        pos = pos.long()  # index_copy_ does not accept int32
        last = self._last_position(pos)
        # Checked before anything is written: after an error the cache is unchanged.
        if self.limited and last >= self.capacity:
            raise ValueError(
                f"position {last} does not fit: {type(self).__name__}({self.capacity}) "
                f"holds positions 0 to {self.capacity - 1}; build one of at least {last + 1}"
            )
        # 3. Store the T new tokens. All S tokens come back: first the old, then the new.
        stored = self.store(k, v, pos)
        # 4. Only now count them.
        self.kind = self.kind or _kind(k)
        self.checked = form
        self.length = self.length + pos.shape[0]
        self.last = last
        return stored

    @abstractmethod
    def store(self, k: Tensor, v: Tensor, pos: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Store tokens that passed the checks, and return all, as `update` does."""

    def tensors(self) -> tuple[Tensor, Tensor]:
        """The K and V tensors held, including any empty slots. Raises ValueError if empty."""
        if self.k is None:
            raise ValueError(f"this {type(self).__name__} is empty: store tokens with update first")
        return self.held()

    def held(self) -> tuple[Tensor, Tensor]:
        """K and V as attention reads them. Called by `tensors`, which checks that there are any."""
        return self.k, self.v

    @property
    def nbytes(self) -> int:
        """Bytes of the keys and values held or reserved, measured from the tensors."""
        return 0 if self.k is None else self.k.nbytes + self.v.nbytes

    @property
    def rewindable(self) -> int:
        """How many tokens `rewind` can forget."""
        return self.length

    def rewind(self, n: int) -> None:
        """Forget the last n tokens, as if they had never been stored.

        Raises ValueError, before anything changes, if n is more than `rewindable`.
        """
        # Speculative decoding needs this: the model has already read the draft tokens it rejects,
        # so their keys must be removed before it reads the correct token at that position.
        check_int(f"{type(self).__name__} of {self.length} tokens: rewind", n, 0, self.rewindable)
        length = self.length - n
        last = self.last - n
        if length == 0:
            self.reset()  # the next text may have another shape or dtype
        elif n:
            self.forget(n)
            self.length = length
            # Positions may have gaps, so look the last one up if that needs no GPU sync.
            self.last = int(self.pos.max()) if self.pos.is_cpu else last

    def forget(self, n: int) -> None:
        """Drop the last n tokens. Called by `rewind`, which checks that it holds more than n."""
        # A view of the rest. The next `store` makes a new tensor and frees this memory.
        self.k = self.k[..., :-n, :]
        self.v = self.v[..., :-n, :]
        self.pos = self.pos[:-n]

    def reserve(self, k: Tensor, v: Tensor, pos: Tensor) -> None:
        """Make `capacity` empty slots for tokens like these: zeros, at position -1.

        Raises MemoryError, before anything changes, if they cannot be allocated.
        """
        # Like k, with `capacity` instead of T: (…, capacity, hs).
        shape = (*k.shape[:-2], self.capacity, k.shape[-1])
        try:
            # Later steps also write to these tensors, and may run outside inference mode.
            with torch.inference_mode(False):
                keys = torch.zeros(shape, dtype=k.dtype, device=k.device)
                values = torch.zeros_like(keys)
                places = torch.full((self.capacity,), -1, dtype=pos.dtype, device=pos.device)
        except (RuntimeError, MemoryError):
            slots = f"{type(self).__name__} with capacity={self.capacity}: keys and values"
            n_bytes = 2 * prod(shape) * k.element_size()
            raise too_large(slots, n_bytes, self.smaller) from None
        self.k = keys
        self.v = values
        self.pos = places

    def _check_form(self, k: Tensor, v: Tensor, pos: Tensor) -> None:
        integers = pos.dtype in (torch.int64, torch.int32)
        if k.shape != v.shape or pos.shape != k.shape[-2:-1] or not integers:
            raise ValueError(
                f"keys {tuple(k.shape)}, values {tuple(v.shape)} and positions {tuple(pos.shape)} "
                f"of {pos.dtype} must be (…, T, hs), (…, T, hs) and (T,) integers"
            )
        if self.kind not in (None, _kind(k)) or _kind(k) != _kind(v):
            raise ValueError(
                f"keys are {_kind(k)}, values {_kind(v)}, tokens held {self.kind or _kind(k)}: "
                f"all must match; call reset() before changing the dtype"
            )

    def _last_position(self, pos: Tensor) -> int:
        """The position of the last new token. Raises ValueError when positions do not ascend."""
        n = pos.shape[0]
        if n == 0 or not pos.is_cpu:  # count: reading pos would sync with the GPU in every layer
            return self.last + n
        # The new positions must ascend. Gaps are allowed: only the order matters here.
        if n == 1:
            first = int(pos)
            last = first
        else:
            check_ascending(pos)
            first = int(pos[0])
            last = int(pos[-1])
        # They must also come after the tokens held. Starting at 0 again would be another text.
        if first <= self.last:
            raise ValueError(
                f"position {first} must come after position {self.last}, which is cached: "
                f"count positions through the whole text, and call reset() before a new text"
            )
        return last


def _kind(x: Tensor) -> tuple:
    """Leading dimensions, head size, dtype and device."""
    return tuple(x.shape[:-2]), x.shape[-1], x.dtype, x.device


# ------------------------------------------------------------------ two caches


class DynamicCache(KVCache):
    """Grows with every token: easy to read, but each step copies everything it holds."""

    def store(self, k, v, pos):
        # Tokens are the second-to-last dimension: append new rows to the old ones.  (…, S, hs)
        if self.k is not None:
            # A new tensor each step: the caller may still hold the old ones, so leave them alone.
            k = torch.cat([self.k, k], dim=-2)
            v = torch.cat([self.v, v], dim=-2)
            pos = torch.cat([self.pos, pos])
        self.k = k
        self.v = v
        self.pos = pos
        return k, v, pos


class StaticCache(KVCache):
    """Allocated once for positions 0 to capacity - 1; each token is written at its own position.

    Slots not yet written have position -1, so `visible` masks them, and hold zeros, because a
    weight of 0 times an uninitialised NaN would still be NaN. Slots after the newest token are not
    returned, so a long prompt costs no more in a large cache than in one of its own length.
    """

    limited = True

    def store(self, k, v, pos):
        # 1. Allocate at the first update: only the tokens tell batch size, dtype and device.
        first = self.k is None
        if first:
            self.reserve(k, v, pos)
        # 2. Write each row into the slot of its own position. The rows held are not copied, so
        #    storing a token costs the same at any length, and the memory keeps its address, which
        #    a CUDA graph needs.
        self.k.index_copy_(-2, pos, k)
        self.v.index_copy_(-2, pos, v)
        self.pos.index_copy_(0, pos, pos)
        # 3. Return all tokens. Empty slots have `pos` -1, which attention masks.
        if first:  # the new tokens are all there is, which lets attention use its causal kernel
            return k, v, pos
        n = self._used(pos)
        return self.k[..., :n, :], self.v[..., :n, :], self.pos[:n]

    def _used(self, pos: Tensor) -> int:
        """Slots up to the newest token. All slots on a GPU, where finding out would sync."""
        if not pos.is_cpu:
            return self.k.shape[-2]
        newest = int(pos[-1]) if len(pos) else self.last
        return newest + 1

    def forget(self, n):
        # The last n tokens are in the slots with the n largest positions. Empty those slots.
        slots = self.pos.topk(n).indices
        self.k.index_fill_(-2, slots, 0)
        self.v.index_fill_(-2, slots, 0)
        self.pos.index_fill_(0, slots, -1)


# ------------------------------------------------------------------ caches on and off


def cache_owners(model: nn.Module) -> list[nn.Module]:
    """The modules that can hold a cache: every Head, or every batched attention."""
    return [m for m in model.modules() if "cache" in m.__dict__]


def require_owners(model: nn.Module) -> list[nn.Module]:
    """cache_owners(model), or ValueError unless every block has at least one of them.

    Every way of decoding with a cache passes through here: attention without one would see only the
    new tokens, and give other logits without an error.
    """
    # 1. Is every module with a `cache` registered, so that it will get one?
    _check_registered(model)
    # 2. Every block must have a cache somewhere. In any other list of modules, such as the heads,
    #    either all have one or none: a single head without a cache would see only the new tokens.
    lists = [module for module in model.modules() if isinstance(module, nn.ModuleList)]
    for parts in [model.blocks, *lists]:
        have = [bool(cache_owners(part)) for part in parts]
        if not all(have) and (any(have) or parts is model.blocks):
            kind = type(parts[have.index(False)]).__name__
            raise ValueError(
                f"a {kind} has no `cache`: set self.cache = None in its attention's __init__, "
                f"and call self.cache.update(k, v, pos) in its forward"
            )
    # 3. No cache at all, as in a model without blocks, is never what was asked for.
    owners = cache_owners(model)
    if not owners:
        raise ValueError(
            f"no module of this {type(model).__name__} has a `cache`: keep the blocks in "
            f"model.blocks, an nn.ModuleList, and set self.cache = None in their attention"
        )
    return owners


def _check_registered(model: nn.Module) -> None:
    """Raise ValueError for attention in a plain list, the forgotten nn.ModuleList."""
    # Torch finds the modules in attributes and in its own containers, and no others: what is in a
    # plain list has no place in modules(), parameters(), eval() or a state_dict.
    registered = set(model.modules())
    places = [(module, *item) for module in registered for item in vars(module).items()]
    for module, name, value in [*places, (model, "blocks", list(model.blocks))]:
        if not isinstance(value, (list, tuple, dict)):
            continue
        for part in value.values() if isinstance(value, dict) else value:
            if isinstance(part, nn.Module) and part not in registered and cache_owners(part):
                raise ValueError(
                    f"{type(module).__name__}.{name} holds a {type(part).__name__} that is not "
                    f"registered in the model, so it would get no cache: use nn.ModuleList instead "
                    f"of a plain list"
                )


@contextmanager
def kv_cache(model: nn.Module, cache=DynamicCache, capacity: int | None = None):
    """A with-block with a KV cache: empty at the start, removed at the end, also after an error.

    The block receives the model. Each attention module gets a cache, built by `cache(capacity)`
    (default: block_size). It is used only after `model.eval()`: in training mode, which a new model
    is in, attention ignores it. Raises ValueError if caches are already on, if an attention module
    is used twice, and for a capacity that does not fit the cache or the model.
    """
    enable_kv_cache(model, cache, capacity)
    # `finally`: an error or a Ctrl-C leaves no stale cache for the next text.
    try:
        yield model
    finally:
        disable_kv_cache(model)


def enable_kv_cache(model: nn.Module, cache=DynamicCache, capacity: int | None = None) -> list:
    """Switch caches on, for one thread. Returns a cache for each of cache_owners(model)."""
    check_type("model", model, nn.Module)
    owners = require_owners(model)
    _check_used_once(model)
    capacity = model.config.block_size if capacity is None else capacity
    # Build all before setting any: an error leaves the model unchanged.
    caches = build_caches(owners, cache, capacity)
    if any(owner.cache is not None for owner in owners):
        raise ValueError(
            "a KV cache is already on: leave its with-block, "
            "call disable_kv_cache(model), or copy.deepcopy the model"
        )
    for owner, built in zip(owners, caches, strict=True):
        owner.cache = built
    return caches


def disable_kv_cache(model: nn.Module) -> None:
    """Remove all caches; harmless if there are none."""
    for owner in cache_owners(model):
        owner.cache = None


def _check_used_once(model: nn.Module) -> None:
    """Raise ValueError for an attention module used twice: each use needs its own cache."""
    # `model.modules()` lists a shared module once, so walk the tree by hand.
    waiting = [model]
    seen = set()
    while waiting:
        module = waiting.pop()
        if "cache" in module.__dict__:
            if module in seen:
                kind = type(module).__name__
                raise ValueError(
                    f"one {kind} is used in two places, and would need two caches: put a "
                    f"copy.copy of it in one of them, or use generate, which does this for you"
                )
            seen.add(module)
        waiting += [child for child in module._modules.values() if child is not None]


def build_caches(owners: list[nn.Module], cache, capacity: int) -> list:
    """An empty cache for each module. Raises ValueError for a `cache` that builds none.

    `cache` is a class or a function of the capacity. A class that rolls gets its module's window
    and sinks; unless they are below the capacity, the module gets a StaticCache instead.
    """
    if not callable(cache) or isinstance(cache, nn.Module):
        raise ValueError(f"cache={cache!r}: pass a class such as DynamicCache, not an instance")
    check_int("capacity", capacity, 1)
    caches = [_empty_cache(owner, cache, capacity) for owner in owners]
    if any(isinstance(built, nn.Module) or not hasattr(built, "update") for built in caches):
        raise ValueError(
            f"cache={cache!r} must build plain objects with update(k, v, pos), not an nn.Module"
        )
    return caches


def _empty_cache(owner: nn.Module, cache, capacity: int):
    # Most caches take only a capacity.
    if not getattr(cache, "rolls", False):
        try:
            return cache(capacity)
        except TypeError as error:
            raise ValueError(f"cache={cache!r} builds no cache: {error}") from error
    # A ring is as long as its layer's window, after the first tokens that the layer always sees. A
    # layer that sees the whole text, or nearly, must keep all of it: a ring would reserve more
    # slots than the text has tokens.
    window = getattr(owner, "window", None)
    if window is None or window + owner.config.sinks >= capacity:
        return StaticCache(capacity)
    return cache(window, owner.config.sinks)


def measured_bytes(model: nn.Module) -> int:
    """Bytes that this model's caches hold now, measured from their tensors."""
    caches: list = [owner.cache for owner in cache_owners(model)]
    return sum(cache.nbytes for cache in caches if cache is not None)
