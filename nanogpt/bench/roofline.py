"""The roofline: the machine's measured limits, and the work of one token, counted.

A decode step reads every weight and the keys and values of the text so far, and performs every
multiply-add; that bounds its speed (Williams, Waterman, Patterson 2009,
doi:10.1145/1498765.1498785). Both limits are measured in the same run as the code under
test, each as the best of several short pieces, because other load on the machine disturbs some.
"""

from __future__ import annotations

import ctypes
import mmap
from collections.abc import Callable, Iterable
from contextlib import suppress
from typing import TypedDict

import torch
from torch import Tensor

from ..config import GPTConfig
from ..decoder.config import DecoderConfig, decoder_config
from ..engines.decoder_library import helpers_library
from ..engines.toolchain import CannotBuild
from ..model import LanguageModel
from ..timing import CPU, Summary, summary, time_tokens

PIECES = 8  # of a few milliseconds each; the shortest counts
_HUGE_PAGE = 1 << 21  # bytes


class TokenWork(TypedDict):
    """The work of one token: floating-point operations, and bytes read."""

    flop: float
    bytes: float


class Breakdown(TypedDict):
    """The seconds of one token in three parts."""

    arithmetic: float
    memory: float
    overhead: float


class Measured(Summary):
    """A limit of the machine, per second, and how it was measured."""

    how: str


class LimitsData(TypedDict):
    """The machine's limits as plain data."""

    step_bytes: float
    dtype: str
    roofline: Summary  # tokens per second
    read: Measured  # bytes per second
    peak: Measured  # floating-point operations per second


def work(
    config: GPTConfig | DecoderConfig,
    n_new: int,
    *,
    cached: bool,
    itemsize: int = 4,
    kv_itemsize: int = 4,
    n_prompt: int = 1,
) -> TokenWork:
    """Floating-point operations and bytes per token: the mean over n_new tokens after a prompt.

    The first step reads the prompt's last token; all tokens before it are in the cache.

    Counted, not measured: two operations per weight and position, and four per number of each key
    that a query attends to. A step reads each weight once (`itemsize` bytes), and the keys and
    values in its window.
    """
    c = decoder_config(config)
    if cached:
        computed = 1.0  # positions
        start = n_prompt - 1
        seen = (positions_seen(c, layer, start, n_new) for layer in range(c.n_layer))
        pairs = sum(seen) / n_new  # (query, key) pairs in all layers
        kv = 2 * c.kv_heads * c.head_size * kv_itemsize * pairs
    else:
        lengths = range(n_prompt, n_prompt + n_new)
        computed = sum(lengths) / n_new
        # The whole square is computed, including its masked part.
        pairs = c.n_layer * sum(n * n for n in lengths) / n_new
        kv = 0.0
    flop = 2 * c.matrix_weights * computed + 4 * c.n_head * c.head_size * pairs
    return {"flop": flop, "bytes": c.weight_bytes(itemsize) + kv}


def positions_seen(config: DecoderConfig, layer: int, start: int, n: int) -> int:
    """The total number of positions that tokens start … start + n - 1 attend to in that layer."""
    window = config.window_of(layer)
    most = start + n if window is None else window + config.sinks
    return sum(min(seen, most) for seen in range(start + 1, start + n + 1))


def breakdown(seconds: float, need: TokenWork, bandwidth: float, peak: float) -> Breakdown:
    """Split the seconds of one token into three parts that add up to it.

    `arithmetic` is the time for the operations of `need` (from `work`) at the machine's peak.
    `memory` is the time for reading the bytes beyond that, because both can overlap. `overhead` is
    the rest: calls, waiting, and everything that falls short of the peak.
    """
    arithmetic = min(seconds, need["flop"] / peak)
    memory = max(0.0, min(seconds, need["bytes"] / bandwidth) - arithmetic)
    return {"arithmetic": arithmetic, "memory": memory, "overhead": seconds - arithmetic - memory}


def read_bandwidth(n_bytes: int, *, repeats: int = 5, device: torch.device = CPU) -> Measured:
    """Bytes per second when n_bytes are read repeatedly: a summary, and how it was measured.

    The size decides which memory is measured: 1 MB fits into a core's own cache, 40 MB mostly does
    not.
    """
    buffer = _buffer(max(n_bytes // 4, 1024), device)
    times = max(1, (1 << 25) // buffer.nbytes) if device.type == "cpu" else 4
    lib = _native(device)
    if lib:
        how = "native loop"
        address = buffer.data_ptr()
        n = buffer.numel()
        seconds = _timed(lambda: lib.read_all(address, n, times), repeats, device)
    else:
        how = "torch.sum"
        seconds = _timed(lambda: [buffer.sum() for _ in range(times)], repeats, device)
    return _measured((buffer.nbytes * times / s for s in seconds), how)


def _buffer(n: int, device: torch.device) -> Tensor:
    """n ones in memory as good as that of packed weights.  -> (n,) float32

    On a CPU in pages of 2 MB, if the system gives them. On a virtual machine that had run for a day
    (Zen 4), 43 MB and more in pages of 4 KB were read at 16 to 17 GB/s instead of 27 to 28, and the
    native loop was faster than this limit.
    """
    if device.type != "cpu":
        return torch.ones(n, device=device)
    flags = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS
    pages = mmap.mmap(-1, 4 * n + _HUGE_PAGE, flags=flags)
    if hasattr(mmap, "MADV_HUGEPAGE"):  # Linux
        with suppress(OSError):  # of a system without them
            pages.madvise(mmap.MADV_HUGEPAGE)
    memory = torch.frombuffer(pages, dtype=torch.float32)
    start = -memory.data_ptr() % _HUGE_PAGE // memory.itemsize
    return memory[start : start + n].fill_(1)


def peak_arithmetic(
    *, repeats: int = 5, device: torch.device = CPU, dtype: torch.dtype = torch.float32
) -> Measured:
    """Floating-point operations per second: multiply-adds in registers, or else a large matmul."""
    lib = _native(device)
    if lib:
        out = ctypes.c_float(0)
        rounds = 1 << 19
        flop = lib.multiply_adds(1, ctypes.addressof(out))
        seconds = _timed(lambda: lib.multiply_adds(rounds, ctypes.addressof(out)), repeats, device)
        return _measured((rounds * flop / s for s in seconds), "native loop")
    n = 256 if device.type == "cpu" else 4096
    a, b = torch.ones(2, n, n, device=device, dtype=dtype)
    seconds = _timed(lambda: a @ b, repeats, device)
    return _measured((2 * n**3 / s for s in seconds), f"matmul {n}")


def _measured(values: Iterable[float], how: str) -> Measured:
    return {**summary(values), "how": how}


class Limits:
    """The machine's peak, and its bandwidth at the number of bytes in a step, turn by turn."""

    def __init__(self, model: LanguageModel, n_new: int, n_prompt: int = 1):
        weight = model.lm_head.weight
        self.device = weight.device
        self.dtype = weight.dtype
        size = weight.element_size()
        sizes = {"itemsize": size, "kv_itemsize": size, "n_prompt": n_prompt}
        self.need = work(model.config, n_new, cached=True, **sizes)
        self.reads: list[Measured] = []
        self.peaks: list[Measured] = []

    def measure(self) -> None:
        """Measure both limits, between a benchmark's turns. The first measurement is a warm-up."""
        self.reads.append(read_bandwidth(int(self.need["bytes"]), repeats=1, device=self.device))
        self.peaks.append(peak_arithmetic(repeats=1, device=self.device, dtype=self.dtype))

    def bounds(self) -> list[float]:
        """Tokens per second at the machine's limits, turn by turn."""
        need = self.need
        turns = zip(self.reads[1:], self.peaks[1:], strict=True)
        return [min(a["median"] / need["bytes"], b["median"] / need["flop"]) for a, b in turns]

    def as_dict(self) -> LimitsData:
        """All turns as plain data."""
        return {
            "step_bytes": self.need["bytes"],
            "dtype": str(self.dtype).removeprefix("torch."),
            "roofline": summary(self.bounds()),
            "read": _over_turns(self.reads[1:]),
            "peak": _over_turns(self.peaks[1:]),
        }


def _over_turns(turns: list[Measured]) -> Measured:
    return _measured((turn["median"] for turn in turns), turns[0]["how"])


def _native(device: torch.device) -> ctypes.CDLL | None:
    """The library of native loops; None on another device or if it cannot be built."""
    try:
        return helpers_library() if device.type == "cpu" else None
    except CannotBuild:
        return None


def _timed(run: Callable[[], object], repeats: int, device: torch.device) -> list[float]:
    """The seconds of `run`, each the shortest of PIECES, after a warm-up."""
    gaps = time_tokens((run() for _ in range(1 + repeats * PIECES)), device)[1:]
    return [min(gaps[i : i + PIECES]) for i in range(0, len(gaps), PIECES)]
