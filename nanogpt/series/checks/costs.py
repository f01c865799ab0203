"""The checks of a step's cost: multiplications, step_bytes and fastest."""

from __future__ import annotations

from typing import Any

from .exercise import Answer, Case, Exercise, Pairs


def run_count(answer: Answer, given: tuple[Any, ...]) -> Pairs:
    """One call."""
    yield "the number", answer(*given)


def calls(*given: tuple[Any, ...]) -> list[Case]:
    """A case for each call."""
    return [Case(run_count, given=arguments) for arguments in given]


# ------------------------------------------------------------------ multiplications


def multiplications(T: int, W: int, L: int, C: int, cached: bool) -> int:
    """The reference solution."""
    n = 1 if cached else T
    return n * W + n * T * 2 * L * C


def count_by(count: Any) -> Answer:
    """Multiplications for reading n of T tokens."""
    return lambda T, W, L, C, cached: count(1 if cached else T, T, W, L, C)


MULTIPLICATIONS = Exercise(
    notebook="05",
    hints=(
        "How many tokens does the step read with a cache, and how many without? And how many "
        "keys does each of them attend to?",
        "Let n be the number of tokens that the step reads: T, or 1. Write both parts in terms "
        "of n and T.",
        "n = 1 if cached else T, then return n * W + n * T * 2 * L * C",
    ),
    right=multiplications,
    cases=calls(
        (1, 100, 5, 3, False),
        (1, 100, 5, 3, True),
        *(
            (T, W, L, 3, cached)
            for T in (10, 37)
            for cached in (True, False)
            for W, L in ((100, 0), (0, 5))
        ),
        *((300, 1000, 4, 7, cached) for cached in (True, False)),
    ),
    mistakes={
        "values are missing: attending to a token takes its key and its value, 2 · C "
        "multiplications.": count_by(lambda n, T, W, L, C: n * W + n * T * L * C),
        "only one layer's attention is counted: each of the L layers has its own.": count_by(
            lambda n, T, W, L, C: n * W + n * T * 2 * C
        ),
        "the matrices are counted L times: W already includes all layers.": count_by(
            lambda n, T, W, L, C: n * W * L + n * T * 2 * L * C
        ),
        "without a cache each of the T tokens attends to T: you count one token's attention.": (
            count_by(lambda n, T, W, L, C: n * W + T * 2 * L * C)
        ),
        "with a cache one token is read, but you count all of them.": (
            lambda T, W, L, C, cached: multiplications(T, W, L, C, False)
        ),
        "without a cache all tokens are read, but you count one.": (
            lambda T, W, L, C, cached: multiplications(T, W, L, C, True)
        ),
        "the cases with and without a cache are swapped.": (
            lambda T, W, L, C, cached: multiplications(T, W, L, C, not cached)
        ),
        "half the square is counted: each of the T queries is multiplied with T keys.": count_by(
            lambda n, T, W, L, C: n * W + n * (T + 1) * L * C
        ),
        "the matrices are missing: each token passes through W weights.": count_by(
            lambda n, T, W, L, C: n * T * 2 * L * C
        ),
        "the matrices are counted once: every token that is read passes through them.": count_by(
            lambda n, T, W, L, C: W + n * T * 2 * L * C
        ),
        "the newest token is left out of attention: it also attends to itself.": count_by(
            lambda n, T, W, L, C: n * W + n * (T - 1) * 2 * L * C
        ),
        "C is squared: attention takes C multiplications for a key and C for a value.": count_by(
            lambda n, T, W, L, C: n * W + n * T * 2 * L * C * C
        ),
    },
    advice={
        "the number": (
            "Each of the n tokens passes through W weights, and attends to T keys and values in L "
            "layers: 2 · L · C · T."
        ),
    },
)


# ------------------------------------------------------------------ step_bytes


def step_bytes(
    n_weights: int, n_layer: int, n_head: int, head_size: int, tokens: float, itemsize: int = 4
) -> float:
    """The reference solution."""
    return (n_weights + 2 * n_layer * n_head * head_size * tokens) * itemsize


def bytes_by(count: Any) -> Answer:
    """Bytes of w weights, and of t tokens in L layers and H heads of size hs; i bytes a number."""

    def answer(w: int, L: int, H: int, hs: int, t: float, i: int = 4) -> Any:
        return count(w, L, H, hs, t, i)

    return answer


STEP_BYTES = Exercise(
    notebook="06",
    hints=(
        "What does a step read once, however long the text is, and what does it read for each "
        "token so far?",
        "Count numbers first, then multiply by `itemsize` once. For each token, each layer and "
        "head keeps one key and one value of `head_size` numbers.",
        "return (n_weights + 2 * n_layer * n_head * head_size * tokens) * itemsize",
    ),
    right=step_bytes,
    cases=calls(
        (1000, 3, 2, 8, 0, 4),
        (0, 3, 5, 8, 7, 4),
        (1000, 3, 5, 8, 7, 2),
        (100, 2, 3, 5, 6.5),
    ),
    mistakes={
        "one vector is counted for each layer, head and token: there are two, a key and a "
        "value.": bytes_by(lambda w, L, H, hs, t, i: (w + L * H * hs * t) * i),
        "three vectors are counted for each layer, head and token: queries are not "
        "cached.": bytes_by(lambda w, L, H, hs, t, i: (w + 3 * L * H * hs * t) * i),
        "only one layer is counted: each layer has its own keys and values.": bytes_by(
            lambda w, L, H, hs, t, i: (w + 2 * H * hs * t) * i
        ),
        "only one head is counted: each head has its own keys and values.": bytes_by(
            lambda w, L, H, hs, t, i: (w + 2 * L * hs * t) * i
        ),
        "the cache's numbers also take itemsize bytes each: this counts numbers.": bytes_by(
            lambda w, L, H, hs, t, i: w * i + 2 * L * H * hs * t
        ),
        "the weights also take itemsize bytes each: this counts numbers.": bytes_by(
            lambda w, L, H, hs, t, i: w + 2 * L * H * hs * t * i
        ),
        "4 bytes are assumed: itemsize says how many.": bytes_by(
            lambda w, L, H, hs, t, i: (w + 2 * L * H * hs * t) * 4
        ),
        "the weights are assumed to take 4 bytes each: itemsize says how many.": bytes_by(
            lambda w, L, H, hs, t, i: w * 4 + 2 * L * H * hs * t * i
        ),
        "`tokens` may be a mean, such as 6.5: do not round it.": bytes_by(
            lambda w, L, H, hs, t, i: (w + 2 * L * H * hs * int(t)) * i
        ),
        "the weights are missing: a step reads all of them.": bytes_by(
            lambda w, L, H, hs, t, i: 2 * L * H * hs * t * i
        ),
        "one token too many is counted: the cache holds `tokens`.": bytes_by(
            lambda w, L, H, hs, t, i: (w + 2 * L * H * hs * (t + 1)) * i
        ),
    },
    advice={
        "the number": "n_weights and 2 · n_layer · n_head · head_size · tokens numbers, of "
        "itemsize bytes each.",
    },
)


# ------------------------------------------------------------------ fastest


def fastest(flop: float, n_bytes: float, peak: float, bandwidth: float) -> float:
    """The reference solution."""
    return 1 / max(flop / peak, n_bytes / bandwidth)


def speed_by(seconds: Any) -> Answer:
    """Tokens per second from the seconds of arithmetic and of memory traffic."""
    return lambda flop, n_bytes, peak, bandwidth: 1 / seconds(flop / peak, n_bytes / bandwidth)


def by_numbers(flop: float, n_bytes: float, peak: float, bandwidth: float) -> float:
    return peak / flop if flop > n_bytes else bandwidth / n_bytes


def by_rates(flop: float, n_bytes: float, peak: float, bandwidth: float) -> float:
    return bandwidth / n_bytes if peak > bandwidth else peak / flop


FASTEST = Exercise(
    notebook="06",
    hints=(
        "Arithmetic and memory reads overlap. When is a token done?",
        "Two times in seconds: `flop / peak` and `n_bytes / bandwidth`. Which of them decides?",
        "return 1 / max(flop / peak, n_bytes / bandwidth)",
    ),
    right=fastest,
    cases=calls(
        (100.0, 100.0, 1000.0, 500.0),
        (1000.0, 100.0, 1000.0, 500.0),
        (10.0, 8.0, 1000.0, 2.0),
        (3.0, 7.0, 12.0, 2.0),
        (3.0, 7.0, 2.0, 12.0),
    ),
    mistakes={
        "you add the two times: they overlap, so only the longer one counts.": speed_by(
            lambda arithmetic, reading: arithmetic + reading
        ),
        "this is the time per token: tokens per second is 1 over that.": (
            lambda *given: 1 / fastest(*given)
        ),
        "this is the shorter of the two times: a step waits for the longer one.": speed_by(min),
        "only memory traffic is counted: arithmetic can also be the limit.": speed_by(
            lambda arithmetic, reading: reading
        ),
        "only arithmetic is counted: memory traffic can also be the limit.": speed_by(
            lambda arithmetic, reading: arithmetic
        ),
        "operations are compared with bytes: compare times.": by_numbers,
        "the two rates are compared: compare times, because arithmetic can also be the limit.": (
            by_rates
        ),
        "the result is rounded: leave it as it is.": lambda *given: round(fastest(*given)),
    },
    advice={
        "the number": "A token takes the longer of flop / peak and n_bytes / bandwidth seconds.",
    },
)
