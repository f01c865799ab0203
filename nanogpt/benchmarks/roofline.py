"""What a machine can do at most, measured, and how much of it one token needs, counted.

The floor of a decode step: every weight has to be read once for each token, and every
multiply-add has to be done. Both limits are measured in the run that they are compared with.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable

import torch

from ..config.shapes import GPTConfig
from ..engines.native_library import library
from ..engines.toolchain import CannotBuild
from .timing import clock, summary

CPU = torch.device("cpu")


def work(
    config: GPTConfig,
    n_new: int,
    *,
    cached: bool,
    batch: int = 1,
    itemsize: int = 4,
    kv_itemsize: int = 4,
) -> dict:
    """Floating-point operations and bytes for one token, the mean over n_new tokens after a prompt of one.

    Counted, not measured: two operations for each weight and position, four for each cached number
    of K; each weight (`itemsize` bytes) read once in a step, and K and V up to the token's position.
    """
    c, n = config, (n_new + 1) / 2  # mean positions seen; without a cache, also computed
    rows = 1 if cached else n
    pairs = (
        n if cached else (n_new + 1) * (2 * n_new + 1) / 6
    )  # queries times keys: causal work is not skipped
    flop = 2 * c.matrix_weights * rows + 4 * c.n_embd * c.n_layer * pairs
    kv = c.cache_bytes(n_new + 1, itemsize=kv_itemsize) / 2 if cached else 0
    return {"flop": flop, "bytes": c.weight_bytes(itemsize) / batch + kv}


def read_bandwidth(n_bytes: int, *, repeats: int = 5, device: torch.device = CPU) -> dict:
    """Bytes per second when n_bytes are read over and over: a summary, and how it was measured.

    The size decides which memory answers: 1 MB stays in a core's own cache, 40 MB mostly does not.
    """
    buffer = torch.ones(max(n_bytes // 4, 1024), device=device)
    times = max(1, int((1 << 28) / buffer.nbytes)) if device.type == "cpu" else 20
    how, read = "torch.sum", lambda: [buffer.sum() for _ in range(times)]
    if device.type == "cpu":
        try:
            lib, how = library(64, 4, 65), "native loop"
            read = lambda: lib.read_all(buffer.data_ptr(), buffer.numel(), times)  # noqa: E731
        except CannotBuild:
            pass
    seconds = _timed(read, repeats, device)
    return summary(buffer.nbytes * times / s for s in seconds) | {
        "how": how,
        "bytes": buffer.nbytes,
    }


def peak_arithmetic(*, repeats: int = 5, device: torch.device = CPU, dtype=torch.float32) -> dict:
    """Floating-point operations per second at most: multiply-adds in registers, or a large matmul."""
    if device.type == "cpu":
        try:
            lib, out, rounds = library(64, 4, 65), ctypes.c_float(0), 1 << 22
            lanes = lib.multiply_add(1, ctypes.addressof(out))
            seconds = _timed(
                lambda: lib.multiply_add(rounds, ctypes.addressof(out)), repeats, device
            )
            return summary(rounds * 16 * lanes * 2 / s for s in seconds) | {"how": "native loop"}
        except CannotBuild:
            pass
    n = 512 if device.type == "cpu" else 4096
    a, b = torch.ones(2, n, n, device=device, dtype=dtype)
    seconds = _timed(lambda: a @ b, repeats, device)
    return summary(2 * n**3 / s for s in seconds) | {"how": f"matmul {n}"}


def split(seconds: float, need: dict, bandwidth: float, peak: float) -> dict:
    """One token's time in three parts, in seconds, that add up to it.

    `arithmetic` is what the operations take at the machine's peak; `memory` what reading the bytes
    takes beyond that (both can go on at once); `overhead` is the rest: calls, waiting, and all that
    falls short of the peak.
    """
    arithmetic = min(seconds, need["flop"] / peak)
    memory = max(0.0, min(seconds, need["bytes"] / bandwidth) - arithmetic)
    return {"arithmetic": arithmetic, "memory": memory, "overhead": seconds - arithmetic - memory}


def _timed(run: Callable, repeats: int, device: torch.device) -> list[float]:
    run()
    seconds = []
    for _ in range(repeats):
        before = clock(device)
        run()
        seconds.append(clock(device) - before)
    return seconds
