"""Key/value caches. Knows tensors and positions; nothing of models or text.

A cache is one method: `update(k, v, pos) -> k, v, k_pos` stores the new rows and returns all
rows that it holds, with the position of each. `rewind(n)` takes the last n back. Row layout is free:
(B, T, hs) for one of the lecture's heads, (B, H, T, hs) for all heads at once.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass

import torch
from torch import Tensor


class KVCache(ABC):
    """What every design shares: the rows, their positions, and the checks."""

    def __init__(self, max_len: int | None = None):
        if max_len is not None and (not isinstance(max_len, int) or max_len < 1):
            raise ValueError(f"max_len={max_len!r}: a cache has room for a whole number of rows, at least 1")
        self.max_len = max_len
        self.reset()

    def reset(self) -> None:
        """Forget everything; the next update starts a new text of any batch size."""
        self.k = self.v = self.pos = None
        self.kind = None  # what every row of this text is: leading dimensions, size, dtype, device
        self.length = 0  # rows written
        self.last = -1  # the position written last, where looking at it is free

    @abstractmethod
    def update(self, k: Tensor, v: Tensor, pos: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """(…, T, hs), (…, T, hs), (T,) -> (…, S, hs), (…, S, hs), (S,): all rows and their positions."""

    def rows(self) -> tuple[Tensor, Tensor]:
        """K and V as they are held, reserved rows included."""
        return self.k, self.v

    def rewind(self, n: int) -> None:
        """Forget the last n rows, as if they had never come. Raises ValueError before anything changes."""
        if not isinstance(n, int) or isinstance(n, bool) or not 0 <= n <= self.rewindable:
            raise ValueError(
                f"rewind({n!r}): this {type(self).__name__} can forget a whole number of rows from 0 to "
                f"{self.rewindable}, of {self.length} written"
            )
        length = self.length - n
        if length == 0:
            self.reset()
        elif n:
            self._forget(n)
            self.length = length
            if self.pos.device.type == "cpu":
                self.last = int(self.pos.max())

    @property
    def rewindable(self) -> int:
        """How many rows `rewind` can forget."""
        return self.length

    def _forget(self, n: int) -> None:
        if len(self.pos) > self.length:  # rows are reserved: empty slots again
            slots = self.pos.topk(n).indices
            self.k.index_fill_(-2, slots, 0)
            self.v.index_fill_(-2, slots, 0)
            self.pos.index_fill_(0, slots, -1)
        else:  # grown to its length, or full: only what stays has come
            k, v, pos = self.k[..., :-n, :], self.v[..., :-n, :], self.pos[:-n]
            self.reset()
            self.update(k, v, pos)

    @property
    def nbytes(self) -> int:
        """Bytes of the K and V rows held or reserved, measured from the tensors."""
        return 0 if self.k is None else self.k.nbytes + self.v.nbytes

    def _check(self, k: Tensor, v: Tensor, pos: Tensor) -> None:
        if not all(isinstance(x, Tensor) for x in (k, v, pos)) or k.ndim < 2:
            raise ValueError(
                "keys, values and positions are tensors: rows (…, T, hs), twice, and places (T,)"
            )
        if pos.dtype not in (torch.int64, torch.int32):
            raise ValueError(f"the positions are {pos.dtype}: places in a text are integers (torch.int64)")
        if k.shape != v.shape or pos.shape != k.shape[-2:-1]:
            raise ValueError(
                f"keys {tuple(k.shape)}, values {tuple(v.shape)} and positions {tuple(pos.shape)} do "
                f"not belong together: k and v need one shape, pos one entry for each of their rows"
            )
        if k.dtype != v.dtype or k.device != v.device:
            raise ValueError(
                f"the keys are {k.dtype} on {k.device}, the values {v.dtype} on {v.device}: both need one "
                f"dtype and one device"
            )
        self._check_order(pos)
        new = _kind(k)
        held = new if self.k is None else self.kind
        if held[:2] != new[:2]:
            old, rows = (str((*kind[0], "rows", kind[1])).replace("'", "") for kind in (held, new))
            raise ValueError(
                f"this cache holds rows of shape {old}, the new ones are {rows}: one text "
                f"keeps one batch and head size; call reset() before another text"
            )
        if held != new:
            raise ValueError(
                f"this cache holds {held[2]} on {held[3]}, the new rows are {new[2]} on "
                f"{new[3]}: call reset() after moving or casting the model"
            )

    def _check_order(self, pos: Tensor) -> None:
        # Only where looking at the numbers is free: on a GPU it would stop the queue at every layer.
        if pos.device.type != "cpu" or len(pos) == 0:
            return
        if len(pos) > 1 and not bool((pos[1:] > pos[:-1]).all()):
            raise ValueError(f"positions {pos.tolist()} do not ascend: pass rows in the order of the text")
        if int(pos[0]) <= self.last:
            raise ValueError(
                f"position {int(pos[0])} comes after position {self.last} is already cached: "
                f"pass the places in the whole text, or reset() before a new one"
            )

    def _count(self, k: Tensor, pos: Tensor) -> None:
        self.kind = _kind(k)
        self.length += len(pos)
        if pos.device.type == "cpu" and len(pos):
            self.last = int(pos[-1])


def _kind(rows: Tensor) -> tuple:
    return tuple(rows.shape[:-2]), rows.shape[-1], rows.dtype, rows.device


class DynamicCache(KVCache):
    """Grows by one row per token: easy to read, and every step copies all it has into a new tensor."""

    def update(self, k, v, pos):
        self._check(k, v, pos)
        self._count(k, pos)
        if self.k is not None:
            k, v = torch.cat([self.k, k], dim=-2), torch.cat([self.v, v], dim=-2)
            pos = torch.cat([self.pos, pos])
        self.k, self.v, self.pos = k, v, pos
        return k, v, pos


class StaticCache(KVCache):
    """Allocated once for max_len rows; a token is written at its own position.

    Slots not yet written carry position -1, so `visible` hides them, and hold zeros, because a
    weight of 0 times an uninitialised NaN would still be NaN.
    """

    def update(self, k, v, pos):
        self._check(k, v, pos)
        self._check_room(pos)
        if self.k is None:
            room = (*k.shape[:-2], self.max_len, k.shape[-1])
            self.k, self.v = k.new_zeros(room), v.new_zeros(room)
            self.pos = pos.new_full((self.max_len,), -1)
        self.k.index_copy_(-2, pos, k)
        self.v.index_copy_(-2, pos, v)
        self.pos.index_copy_(0, pos, pos)
        self._count(k, pos)
        return self.k, self.v, self.pos

    def _check_room(self, pos: Tensor) -> None:
        if self.max_len is None:
            raise ValueError("StaticCache needs max_len, the number of rows to reserve: StaticCache(256)")
        last = int(pos[-1]) if pos.device.type == "cpu" and len(pos) else self.length + len(pos) - 1
        if last >= self.max_len:
            raise ValueError(
                f"StaticCache has room for {self.max_len} positions (0 to {self.max_len - 1}) and was "
                f"given position {last}: build it with max_len of at least {last + 1}"
            )


class RollingCache(KVCache):
    """A ring of the last `window` rows, and the first `sinks` beside it: it does not grow with the text.

    For attention with that window and those sinks (GPTConfig.window). A new row takes the place of the
    oldest, which no later query sees. Of several new rows the first may need what the last will push
    out, so all are returned, and only then the ring turns. What was returned is held until the next
    update, beside `nbytes`: by it the last update can be rewound, and no earlier one, up to all of its
    rows. Of an update of one row nothing is held, and it cannot be: every step would be slower for it.
    """

    rolls = True  # build_caches tells it the window of its module

    def __init__(self, window: int | None = None, sinks: int = 0):
        super().__init__(window)
        if window is None or not isinstance(sinks, int) or sinks < 0:
            raise ValueError(
                f"window={window!r}, sinks={sinks!r}: RollingCache needs the rows to keep, at least 1, and "
                f"how many of the first beside them: RollingCache(64)"
            )
        self.sinks = sinks

    def reset(self):
        super().reset()
        self.undo = None  # the ring before the last update, then its rows

    @property
    def rewindable(self):
        return 0 if self.undo is None else len(self.undo[2]) - len(self.pos)

    def _forget(self, n):
        T, (k, v, pos) = self.rewindable, self.undo
        held, stays = slice(len(self.pos)), slice(len(self.pos), len(pos) - n)
        self.k, self.v, self.pos = (x.clone() for x in (k[..., held, :], v[..., held, :], pos[held]))
        self.length, self.undo = self.length - T, None
        self.last = int(self.pos.max()) if pos.device.type == "cpu" else self.last
        if n < T:
            self.update(k[..., stays, :], v[..., stays, :], pos[stays])

    def update(self, k, v, pos):
        self._check(k, v, pos)
        if self.k is None:
            room = (*k.shape[:-2], self.sinks + self.max_len, k.shape[-1])
            self.k, self.v = k.new_zeros(room), v.new_zeros(room)
            self.pos = pos.new_full((room[-2],), -1)
        T, end = len(pos), self.length + len(pos)
        every = None  # of one new row it is enough to look at the ring with the row in it
        if T > 1:
            every = [torch.cat([self.k, k], -2), torch.cat([self.v, v], -2), torch.cat([self.pos, pos])]
        row = torch.arange(self.length, end)  # of the text; on the CPU, so that no queue is stopped
        slot = torch.where(row < self.sinks, row, self.sinks + (row - self.sinks) % self.max_len)
        stays = ((row < self.sinks) | (row >= end - self.max_len)).nonzero()[:, 0]
        slot, stays = slot[stays].to(k.device), stays.to(k.device)
        self.k.index_copy_(-2, slot, k.index_select(-2, stays))
        self.v.index_copy_(-2, slot, v.index_select(-2, stays))
        self.pos.index_copy_(0, slot, pos.index_select(0, stays))
        self._count(k, pos)
        self.undo = every
        return (self.k, self.v, self.pos) if every is None else tuple(every)


@dataclass(frozen=True)
class Codes:
    """Rows of numbers as 8-bit codes with one scale for each row: x ≈ codes · scale."""

    codes: Tensor  # (…, S, hs) int8
    scale: Tensor  # (…, S, 1) float16

    @classmethod
    def of(cls, x: Tensor) -> Codes:
        """The nearest codes, from -127 to 127."""
        x = x if x.dtype == torch.float64 else x.float()
        least = torch.finfo(torch.float16).smallest_normal  # rows of zeros, and nearly
        scale = (x.abs().amax(-1, keepdim=True) / 127).clamp(least, 65504).to(torch.float16)
        return cls((x / scale).round().clamp(-127, 127).to(torch.int8), scale)

    def rows(self, dtype: torch.dtype) -> Tensor:
        """The numbers that the codes stand for."""
        return self.codes.to(dtype) * self.scale.to(dtype)

    def then(self, new: Codes) -> Codes:
        """These rows, then the new ones."""
        parts = ((self.codes, new.codes), (self.scale, new.scale))
        return Codes(*(torch.cat(pair, dim=-2) for pair in parts))

    def __getitem__(self, some) -> Codes:
        """Some of the rows: codes[..., :5, :]"""
        return Codes(self.codes[some], self.scale[some])

    @property
    def nbytes(self) -> int:
        return self.codes.nbytes + self.scale.nbytes


class Int8Cache(KVCache):
    """Grows like DynamicCache, but keeps each row as 8-bit codes and a scale: about a quarter of float32.

    What it gives back is rounded, so its tokens need not be those of an uncached model: never take it
    where equality is promised. Rows of integers are kept as they are.
    """

    def update(self, k, v, pos):
        self._check(k, v, pos)
        self._count(k, pos)
        new = (Codes.of(x) if x.is_floating_point() else x for x in (k, v))
        self.k, self.v = (
            x if old is None else _joined(old, x) for old, x in zip((self.k, self.v), new, strict=True)
        )
        self.pos = pos if self.pos is None else torch.cat([self.pos, pos])
        return *self.rows(), self.pos

    def rows(self):
        return tuple(x.rows(self.kind[2]) if isinstance(x, Codes) else x for x in (self.k, self.v))

    def _forget(self, n):
        self.k, self.v, self.pos = self.k[..., :-n, :], self.v[..., :-n, :], self.pos[:-n]


def _joined(old, new):
    return old.then(new) if isinstance(old, Codes) else torch.cat([old, new], dim=-2)


class LayerCaches:
    """The caches of all layers as one object: update, get, advance, reset, get_memory_usage.

    The interface of the KV cache in TinyTorch (https://mlsysbook.ai/tinytorch), on top of either
    design. There is no position to pass: rows go to the place that `advance` has reached.

        for layer in range(n_layer):
            caches.update(layer, k, v)  # (…, T, hs), T new rows
            k, v = caches.get(layer)    # (…, S, hs), all rows so far, the new ones included
        caches.advance(T)               # once for all layers, when the step is done
    """

    def __init__(self, n_layer: int, design=DynamicCache, max_len: int | None = None):
        if not isinstance(n_layer, int) or n_layer < 1:
            raise ValueError(f"n_layer={n_layer!r}: a whole number of at least 1 is needed")
        if getattr(design, "rolls", False):
            raise ValueError(
                f"{design.__name__} forgets rows, and get() gives all of them: take another design"
            )
        self.caches = [design(max_len) for _ in range(n_layer)]
        self.reset()

    def update(self, layer: int, k: Tensor, v: Tensor) -> None:
        """Store the new rows of one layer. Raises ValueError for a layer that has had its rows."""
        cache = self._cache(layer)
        if not isinstance(k, Tensor) or k.ndim < 2:
            raise ValueError("the new rows are tensors of shape (…, T, hs), keys and values")
        if cache.length > self.length:
            raise ValueError(
                f"layer {layer} has rows up to {cache.length} already: call advance() after a step"
            )
        cache.update(k, v, torch.arange(self.length, self.length + k.shape[-2], device=k.device))

    def get(self, layer: int) -> tuple[Tensor, Tensor]:
        """All rows of one layer, the present step's too. Raises ValueError when there are none."""
        cache = self._cache(layer)
        if cache.k is None:
            raise ValueError(f"layer {layer} holds nothing yet: update it first")
        return tuple(x[..., : cache.length, :] for x in cache.rows())

    def advance(self, n: int = 1) -> None:
        """The step is done: n more places are filled in every layer. Raises ValueError if they are not."""
        if not isinstance(n, int):
            raise ValueError(f"advance({n!r}): a whole number of rows is needed")
        lengths = [cache.length for cache in self.caches]
        if set(lengths) != {self.length + n}:
            raise ValueError(f"advance({n}) from {self.length}, but the layers hold {lengths} rows: update "
                             f"each layer once, with {n} rows")  # fmt: skip
        self.length += n

    def rewind(self, n: int) -> None:
        """Forget the last n places in every layer. Raises ValueError in the middle of a step."""
        lengths = [cache.length for cache in self.caches]
        if set(lengths) != {self.length}:
            raise ValueError(f"rewind({n!r}) at {self.length}, but the layers hold {lengths} rows: advance() "
                             f"first")  # fmt: skip
        for cache in self.caches:
            cache.rewind(n)  # all hold as many rows: what the first refuses, nobody has done
        self.length -= n

    def reset(self) -> None:
        """Forget everything, for another text."""
        for cache in self.caches:
            cache.reset()
        self.length = 0

    def get_memory_usage(self) -> dict[str, float]:
        """What K and V of all layers take, held or reserved, measured from the tensors (MB = 10⁶ bytes)."""
        total = sum(cache.nbytes for cache in self.caches)
        return {
            "total_bytes": total,
            "total_mb": total / 1e6,
            "per_layer_mb": total / 1e6 / len(self.caches),
            "cache_tensors": 2 * sum(cache.k is not None for cache in self.caches),
        }

    def _cache(self, layer: int) -> KVCache:
        if not isinstance(layer, int) or not 0 <= layer < len(self.caches):
            raise ValueError(f"layer {layer!r} does not exist: there are {len(self.caches)}, 0 to "
                             f"{len(self.caches) - 1}")  # fmt: skip
        return self.caches[layer]


def predicted_bytes(
    *, n_layer: int, n_head: int, head_size: int, length: int, batch: int = 1, itemsize: int = 4
) -> int:
    """Bytes of K and V for `length` cached tokens: 2 · layers · heads · hs · tokens · batch · itemsize.

    `n_head` counts the heads whose keys are kept; `itemsize` is 4 for float32, 2 for bfloat16.
    """
    return 2 * n_layer * n_head * head_size * length * batch * itemsize
