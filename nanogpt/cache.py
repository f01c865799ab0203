"""Key/value caches: what they share, two of them, and how a model gets and loses them.

A cache is one method: `update(k, v, pos) -> k, v, k_pos` takes the keys and values of new tokens
and returns those of all tokens that it holds, with their positions. `rewind(n)` forgets the last n.
Leading dimensions are free: (B, T, hs) for one of the lecture's heads, (B, H, T, hs) for all heads.
"""

from abc import ABC, abstractmethod
from contextlib import contextmanager

import torch
import torch.nn as nn
from torch import Tensor

from .attention import check_ascending
from .config import check_int, check_type


class KVCache(ABC):
    """Counts tokens and checks them; a subclass says in `store` how they are kept.

    `k`, `v` and `pos` are the tensors kept, `length` counts the tokens stored so far, `last` is the
    position of the last one, `capacity` the most that fit (one that grows takes more).
    """

    k: Tensor  # None while it is empty, as v and pos
    v: Tensor
    pos: Tensor
    limited = False  # whether there must be a capacity, which positions stay below

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
        self.kind = None  # of this text: leading dimensions, head size, dtype, device
        self.checked = None  # shapes and dtypes of the last update

    def update(self, k: Tensor, v: Tensor, pos: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Store new tokens and return all.  (…, T, hs) twice, (T,) -> (…, S, hs) twice, (S,)

        Raises ValueError, before anything changes, for shapes, dtypes or devices that do not fit,
        for positions that do not ascend (on a CPU), and for more tokens than the cache can hold.
        """
        # 1. Do these keys, values and positions fit each other, and what is held already?
        try:
            form = (k.shape, v.shape, pos.shape, k.dtype, v.dtype, pos.dtype, k.device, v.device)
        except AttributeError:
            raise TypeError(
                f"k is a {type(k).__name__}, v a {type(v).__name__}, pos a {type(pos).__name__}: "
                f"pass tensors"
            ) from None
        # In decoding every step has the same form, so it is checked once.
        if form != self.checked:
            self._check_form(k, v, pos)
        # 2. Do they go on where the text ended, and is there room? A wrong position would not fail
        #    by itself: the mask is computed from positions, so attention would see the wrong keys.
        pos = pos.long()  # index_copy_ takes no int32
        last = self._last_position(pos)
        # Refused before anything is written: after an error the cache is as it was.
        if self.limited and last >= self.capacity:
            raise ValueError(
                f"position {last} does not fit: {type(self).__name__}({self.capacity}) "
                f"holds positions 0 to {self.capacity - 1}; build one of at least {last + 1}"
            )
        # 3. Store the T new tokens. All S come back: the old ones, then the new ones.
        stored = self.store(k, v, pos)
        # 4. Only now is the text longer.
        self.kind = self.kind or _kind(k)
        self.checked = form
        self.length = self.length + pos.shape[0]
        self.last = last
        return stored

    @abstractmethod
    def store(self, k: Tensor, v: Tensor, pos: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Keep tokens that were checked, and return all, as `update` does."""

    def tensors(self) -> tuple[Tensor, Tensor]:
        """K and V that are held, with empty slots where there are any."""
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
        """Forget the last n tokens, as if they had never come. Raises ValueError first."""
        # Speculative decoding needs this: of the tokens that a draft proposed, the rejected ones
        # have been read already, and their keys must go before the right token is read in their
        # place.
        check_int(f"{type(self).__name__} of {self.length} tokens: rewind", n, 0, self.rewindable)
        length = self.length - n
        last = self.last - n
        if length == 0:
            self.reset()  # the next text may have another form
        elif n:
            self.forget(n)
            self.length = length
            # Positions may have gaps, so they are looked up where that costs no wait.
            self.last = int(self.pos.max()) if self.pos.is_cpu else last

    def forget(self, n: int) -> None:
        """Drop the last n of more than n tokens."""
        # A view of what stays. The next `store` makes a new tensor, and this memory is freed.
        self.k = self.k[..., :-n, :]
        self.v = self.v[..., :-n, :]
        self.pos = self.pos[:-n]

    def reserve(self, k: Tensor, v: Tensor, pos: Tensor) -> None:
        """Make `capacity` empty slots for tokens like these: zeros, at position -1."""
        # As k, with `capacity` in the place of T: (…, capacity, hs).
        shape = (*k.shape[:-2], self.capacity, k.shape[-1])
        # Written to in later steps too, which need not be in the inference mode of this one.
        with torch.inference_mode(False):
            self.k = torch.zeros(shape, dtype=k.dtype, device=k.device)
            self.v = torch.zeros_like(self.k)
            self.pos = torch.full((self.capacity,), -1, dtype=pos.dtype, device=pos.device)

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
                f"all must be alike; reset() before another dtype"
            )

    def _last_position(self, pos: Tensor) -> int:
        """The position of the last new token. Raises ValueError when positions do not ascend."""
        n = pos.shape[0]
        if n == 0 or not pos.is_cpu:  # counted: reading would stop a GPU's queue in every layer
            return self.last + n
        # Within the new tokens, positions ascend. Gaps are allowed: only the order matters here.
        if n == 1:
            first = int(pos)
            last = first
        else:
            check_ascending(pos)
            first = int(pos[0])
            last = int(pos[-1])
        # And they begin behind the tokens held. A text that starts at 0 again is another text.
        if first <= self.last:
            raise ValueError(
                f"position {first} must come after position {self.last}, which is cached: "
                f"count through the whole text; reset() before another"
            )
        return last


def _kind(x: Tensor) -> tuple:
    """Leading dimensions, head size, dtype and device."""
    return tuple(x.shape[:-2]), x.shape[-1], x.dtype, x.device


# ------------------------------------------------------------------ two caches


class DynamicCache(KVCache):
    """Grows with every token: easy to read, but each step copies all that it holds."""

    def store(self, k, v, pos):
        # Tokens are the dimension before the last: new rows go behind the old ones.  (…, S, hs)
        if self.k is not None:
            # A new tensor a step: the old ones, which the caller may hold, stay as they are.
            k = torch.cat([self.k, k], dim=-2)
            v = torch.cat([self.v, v], dim=-2)
            pos = torch.cat([self.pos, pos])
        self.k = k
        self.v = v
        self.pos = pos
        return k, v, pos


class StaticCache(KVCache):
    """Allocated once for positions 0 to capacity - 1; each token is written at its own position.

    Slots not yet written have position -1, so `visible` hides them, and hold zeros, because a
    weight of 0 times an uninitialised NaN would still be NaN. Those behind the newest token are not
    returned: a long prompt in a large cache costs what its own length costs.
    """

    limited = True

    def store(self, k, v, pos):
        # 1. The memory is taken at the first tokens: only they tell batch size, dtype and device.
        first = self.k is None
        if first:
            self.reserve(k, v, pos)
        # 2. Each row goes into the slot of its own position. The rows held are not copied, so
        #    storing a token costs the same at any length, and a CUDA graph finds the memory where
        #    it was.
        self.k.index_copy_(-2, pos, k)
        self.v.index_copy_(-2, pos, v)
        self.pos.index_copy_(0, pos, pos)
        # 3. Return what is held. Where slots are empty, `pos` is -1, and attention looks past them.
        if first:  # all that there is, in the form for which attention has a causal kernel
            return k, v, pos
        n = self._used(pos)
        return self.k[..., :n, :], self.v[..., :n, :], self.pos[:n]

    def _used(self, pos: Tensor) -> int:
        """Slots up to that of the newest token. On a GPU that would be waited for: all of them."""
        if not pos.is_cpu:
            return self.k.shape[-2]
        newest = int(pos[-1]) if len(pos) else self.last
        return newest + 1

    def forget(self, n):
        # The last n tokens are in the slots of the n largest positions. They become empty again.
        slots = self.pos.topk(n).indices
        self.k.index_fill_(-2, slots, 0)
        self.v.index_fill_(-2, slots, 0)
        self.pos.index_fill_(0, slots, -1)


# ------------------------------------------------------------------ caches on and off


def cache_owners(model: nn.Module) -> list[nn.Module]:
    """The modules that can hold a cache: every Head, or every batched attention."""
    return [m for m in model.modules() if "cache" in m.__dict__]


def require_owners(model: nn.Module) -> list[nn.Module]:
    """cache_owners(model). Raises ValueError for a block or a head without one."""
    # Every block must have a cache somewhere. In any other list of modules, as that of the heads,
    # either all have one or none: a single head without a cache would see the new tokens only.
    lists = [module for module in model.modules() if isinstance(module, nn.ModuleList)]
    for parts in [model.blocks, *lists]:
        have = [bool(cache_owners(part)) for part in parts]
        if not all(have) and (any(have) or parts is model.blocks):
            kind = type(parts[have.index(False)]).__name__
            raise ValueError(
                f"a {kind} has no `cache`: set self.cache = None in its attention's __init__, "
                f"and call self.cache.update(k, v, pos) in its forward"
            )
    return cache_owners(model)


@contextmanager
def kv_cache(model: nn.Module, cache=DynamicCache, capacity: int | None = None):
    """Caches for the length of a with-block: empty at its start, gone at its end, however it ends.

    Each attention module gets one, built by `cache(capacity)` (default: block_size). Raises
    ValueError when caches are on already, and as build_caches does.
    """
    enable_kv_cache(model, cache, capacity)
    # `finally`: after an error or a Ctrl-C no stale cache is left for the next text.
    try:
        yield model
    finally:
        disable_kv_cache(model)


def enable_kv_cache(model: nn.Module, cache=DynamicCache, capacity: int | None = None) -> list:
    """The start of kv_cache, for one thread. Returns a cache for each of cache_owners(model)."""
    check_type("model", model, nn.Module)
    owners = require_owners(model)
    _check_used_once(model)
    capacity = model.config.block_size if capacity is None else capacity
    # All are built before any is set: an error leaves the model as it was.
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
    """Take all caches away; harmless when there are none."""
    for owner in cache_owners(model):
        owner.cache = None


def _check_used_once(model: nn.Module) -> None:
    """Raise ValueError for an attention in two places: one cache cannot hold the keys of both."""
    # `model.modules()` lists a shared module once, so the tree is walked by hand.
    waiting = [model]
    seen = set()
    while waiting:
        module = waiting.pop()
        if "cache" in module.__dict__:
            if module in seen:
                kind = type(module).__name__
                raise ValueError(
                    f"one {kind} is used in two places, and would need two caches: put a "
                    f"copy.copy of it in one of them, or use generate, which does"
                )
            seen.add(module)
        waiting += [child for child in module._modules.values() if child is not None]


def build_caches(owners: list[nn.Module], cache, capacity: int) -> list:
    """An empty cache for each module. Raises ValueError for a `cache` that builds none.

    `cache` is a class or a function of the capacity. A class that rolls gets its module's window;
    where there is none below the capacity, a StaticCache stands in.
    """
    if not callable(cache) or isinstance(cache, nn.Module):
        raise ValueError(f"cache={cache!r}: pass the class, as in DynamicCache, not an instance")
    check_int("capacity", capacity, 1)
    caches = [_empty_cache(owner, cache, capacity) for owner in owners]
    if any(isinstance(built, nn.Module) or not hasattr(built, "update") for built in caches):
        raise ValueError(
            f"cache={cache!r} must build plain objects with update(k, v, pos), not an nn.Module"
        )
    return caches


def _empty_cache(owner: nn.Module, cache, capacity: int):
    # Most caches know a capacity only.
    if not getattr(cache, "rolls", False):
        try:
            return cache(capacity)
        except TypeError as error:
            raise ValueError(f"cache={cache!r} builds no cache: {error}") from error
    # A ring is as long as its layer's window. A layer that sees the whole text needs the whole
    # text.
    window = getattr(owner, "window", None)
    if window is None or window >= capacity:
        return StaticCache(capacity)
    return cache(window, owner.config.sinks)


def measured_bytes(model: nn.Module) -> int:
    """Bytes that the caches of this model hold now, from their tensors."""
    caches: list = [owner.cache for owner in cache_owners(model)]
    return sum(cache.nbytes for cache in caches if cache is not None)
