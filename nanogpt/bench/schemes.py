"""Our engine's ways of sharing one model among requests, on a virtual clock.

On the virtual clock, steps take their measured time and waiting takes none, so a quiet minute takes
only its seconds of work to measure.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from ..config import GPTConfig, ParameterError
from ..decoder.config import DecoderConfig, decoder_config
from ..model import LanguageModel
from ..serving.batch import BatchEngine
from ..serving.memory import fitting_blocks
from ..serving.modules import ModuleBackend
from ..serving.sequence import Request
from .replies import Replies, Reply, System
from .roofline import positions_seen

BLOCK_LEN = 16  # positions of a block of keys and values


@dataclass(frozen=True)
class Scheme:
    """A scheme for sharing one model among requests, as options of the engine."""

    max_running: int | None = None  # most texts per step; None: as in the other schemes
    static: bool = False  # a batch starts when the previous one has ended
    budget: int | None = None  # most tokens per step; None: no chunked prefill
    reuse: bool = False  # prompts with a common prefix share keys and values


SCHEMES = {
    "one at a time": Scheme(max_running=1),
    "static batches": Scheme(static=True),
    "continuous": Scheme(),
    "chunked prefill": Scheme(budget=64),
    "prefix reuse": Scheme(budget=64, reuse=True),
}


def blocks_for(model: LanguageModel, running: int, text_tokens: int) -> int:
    """The number of blocks for `running` texts of at most `text_tokens` tokens.

    They take at most half of the available memory, as in a server. Raises ValueError if one such
    text does not fit.
    """
    for_one = -(-text_tokens // BLOCK_LEN)
    n = fitting_blocks(model, BLOCK_LEN, running * for_one)
    if n < for_one:
        raise ParameterError(
            f"text_tokens={text_tokens}: half of the available memory holds only "
            f"{n * BLOCK_LEN:,} tokens: use fewer, or close other programs",
            "text_tokens",
        )
    return n


def schemes(
    model: LanguageModel,
    *,
    backend: Any = ModuleBackend,
    running: int = 32,
    n_blocks: int | None = None,
) -> dict[str, System]:
    """Every scheme of SCHEMES, on the virtual clock, with at most `running` texts in a step.

    `n_blocks` is passed to BatchEngine; None: enough for texts of block_size.
    """

    def serve(scheme: Scheme, requests: list[Request]) -> Replies:
        engine = BatchEngine(
            model,
            backend=backend,
            n_blocks=n_blocks,
            block_len=BLOCK_LEN,
            max_running=scheme.max_running or running,
            budget=scheme.budget,
            reuse=scheme.reuse,
        )
        return drive(engine, requests, running if scheme.static else None)

    return {name: partial(serve, scheme) for name, scheme in SCHEMES.items()}


def bound(
    config: GPTConfig | DecoderConfig, requests: Sequence[Request], peak: float, bandwidth: float
) -> float:
    """Upper bound on sampled tokens per second if all requests arrive at once and share no prompt.

    Each token read costs two operations per matrix weight, at `peak` operations per second. Each
    token sampled after a request's first reads the keys and values in its window, in float32, at
    `bandwidth` bytes per second. Reading the weights is shared within a step and not counted.
    """
    c = decoder_config(config)
    lengths = [(len(request.prompt), request.max_new_tokens - 1) for request in requests]
    seen = sum(positions_seen(c, i, T, n) for T, n in lengths for i in range(c.n_layer))
    seconds = 2 * c.matrix_weights * sum(map(sum, lengths)) / peak
    seconds += 4 * 2 * c.kv_heads * c.head_size * seen / bandwidth
    return sum(n + 1 for _, n in lengths) / seconds


def drive(
    engine: BatchEngine, requests: Sequence[Request], static_batch: int | None = None
) -> Replies:
    """Serve the requests as they arrive, on the virtual clock `now`: idle time is skipped.

    With `static_batch`, at most that many of the waiting requests form a batch once the previous
    one has ended, and every text stays in it until the longest ends: the padding is also computed,
    but not counted.
    """
    wanted = {request.id: request.max_new_tokens for request in requests}
    replies = {request.id: Reply([], []) for request in requests}
    coming = deque(sorted(requests, key=lambda r: r.arrival))
    arrived: deque[Request] = deque()
    now = 0.0
    while coming or arrived or engine.busy:
        if not arrived and not engine.busy:
            now = max(now, coming[0].arrival)
        while coming and coming[0].arrival <= now:
            arrived.append(coming.popleft())
        before = time.perf_counter()
        _admit(engine, arrived, static_batch)
        outputs = engine.step()
        now += time.perf_counter() - before
        for output in outputs:
            reply = replies[output.request.id]
            if len(reply.tokens) < wanted[output.request.id]:
                reply.tokens.append(output.token)
                reply.moments.append(now)
    return replies


def _admit(engine: BatchEngine, arrived: deque[Request], static_batch: int | None) -> None:
    if static_batch is None:
        while arrived:
            engine.add(arrived.popleft())
    elif not engine.busy:
        batch = [arrived.popleft() for _ in range(min(len(arrived), static_batch))]
        longest = max(request.max_new_tokens for request in batch)
        limit = engine.config.max_positions
        for request in batch:
            n_new = longest
            if limit is not None:
                n_new = min(longest, limit + 1 - len(request.prompt))
            # The seed is unchanged, and so are the first tokens.
            engine.add(replace(request, max_new_tokens=n_new))
