"""The judges of the blanks that count and measure: numbers in, numbers out."""

from __future__ import annotations

from itertools import product
from statistics import median

from .common import need, objects

ROWS = [
    [3.0, 1.0, -1.0, 0.2],
    [-0.5, -0.25, -0.01],
    [4.0],
    [-7.0, 6.9, 0.0, 1e-3, 2.2],
    [1e-7, -3e-8, 2e-9],  # a scale has no limits
    [2e20, -1.0],
]


def _is(number, right: float) -> bool:
    """Whether it is this number, up to rounding."""
    try:
        return abs(float(number) - right) <= 1e-9 * max(1.0, abs(right))
    except (TypeError, ValueError):
        return False


# ------------------------------------------------------------------ 05: multiplications


@objects
def multiplications(answer) -> None:
    """All matrices for each token that is read, and its look back in each layer."""
    got = [answer(1, 100, 5, 3, cached) for cached in (False, True)]
    need(got != [106, 106], "you count the look of one layer: each of the L layers looks back.")
    need(
        got != [115, 115],
        "there are keys and values: a look takes 2 · C multiplications in each layer, not C.",
    )
    need(
        got == [130, 130],
        "after 1 token both ways read it: 100 for the matrices, 5 layers · 2 · 3 for the look, "
        f"130; yours are {got[0]} and {got[1]}.",
    )
    for T, cached in product((10, 37, 300), (False, True)):
        _check_count(answer, T, cached)


def _check_count(answer, T: int, cached: bool) -> None:
    n = 1 if cached else T
    way = "with" if cached else "without"
    got = answer(T, 100, 0, 3, cached)  # no layer: the matrices alone
    need(
        got == n * 100,
        f"{way} a cache {n} of {T} tokens are read, and pass through 100 weights each, "
        f"{100 * n:,} multiplications; yours are {got}.",
    )
    got = answer(T, 0, 5, 3, cached)  # no matrices: attention alone
    need(
        cached or got != 30 * T,
        f"without a cache each of the {T} tokens looks at {T}: yours is the look of one token.",
    )
    need(
        got not in (15 * n * T, 6 * n * T),
        f"in each of 5 layers a look meets keys and values, 2 · 5 · 3 for one token: over {T} "
        f"tokens yours are {got}.",
    )
    need(
        got == 30 * n * T,
        f"{way} a cache {n} queries look at {T} tokens in 5 layers: 5 · 2 · 3 · {n} · {T} = "
        f"{30 * n * T:,}, and yours are {got}.",
    )
    right = n * 1000 + n * T * 2 * 4 * 7
    need(
        answer(T, 1000, 4, 7, cached) == right,
        f"matrices and look together, {way} a cache after {T} tokens, are {right:,}.",
    )


# ------------------------------------------------------------------ 05: times


@objects
def latency(answer) -> None:
    """TTFT, TPOT, ITL and E2EL of several time lines."""
    for moments in (
        [10.0, 13.0, 14.0, 16.0],
        [0.0, 2.0, 3.0, 4.0, 14.0],
        [1.0, 1.5, 2.5],
        [0.0, 0.001234, 0.001290, 0.002],
    ):
        _check_latency(answer, moments)
    got = answer([0.0, 1.0])
    need(got["tpot"] is None, "a single token has no gap after it: its TPOT is None.")
    need(
        list(got["itl"]) == [] and _is(got["ttft"], 1) and _is(got["e2el"], 1),
        "of a single token, TTFT and E2EL are the same, and ITL is empty.",
    )


def _check_latency(answer, moments: list[float]) -> None:
    got = answer([*moments])
    keys = {"ttft", "tpot", "itl", "e2el"}
    need(
        isinstance(got, dict) and set(got) == keys,
        f"a dict with ttft, tpot, itl and e2el is asked for, and this is {got!r}.",
    )
    first, *rest = [b - a for a, b in zip(moments, moments[1:], strict=False)]
    case = f"for the time stamps {moments}"
    itl = list(got["itl"])
    need(_is(got["ttft"], first), f"{case} TTFT is {first} s, and yours is {got['ttft']} s.")
    need(
        len(itl) != len(rest) + 1,
        "your ITL begins with the wait for the first token: that one is TTFT, which holds the "
        "prefill.",
    )
    need(
        len(itl) == len(rest) and all(map(_is, itl, rest)),
        f"{case} the gaps are {rest}, and your ITL is {itl}.",
    )
    mean = sum(rest) / len(rest)
    need(
        not _is(got["tpot"], sum([first, *rest]) / (len(rest) + 1)),
        f"your TPOT counts the first token: it is the mean of the gaps after it, {mean}.",
    )
    need(
        _is(got["tpot"], mean),
        f"{case} the mean of the gaps is {mean:.3g}, and your TPOT is {got['tpot']}"
        + (": that is their median." if _is(got["tpot"], median(rest)) else "."),
    )
    need(
        _is(got["e2el"], moments[-1] - moments[0]),
        f"{case} it is {moments[-1] - moments[0]} s from the call to the last token, and your "
        f"E2EL is {got['e2el']}.",
    )


@objects
def paired_speedup(answer) -> None:
    """The median of the ratios, of an odd and of an even number of pairs."""
    a = [2.0, 6.0, 40.0]
    b = [1.0, 2.0, 10.0]  # ratios 2, 3, 4; the machine slowed down meanwhile
    got = answer([*a], [*b])
    need(
        not _is(got, 1 / 3),
        "this is b / a, which is below 1 where b is faster: how many times as fast is a / b.",
    )
    need(
        _is(got, 3),
        f"the ratios of the pairs are 2, 3 and 4, their median is 3, and yours is {got:.3g}.",
    )
    got = answer([2.0, 2.0, 90.0], [1.0, 1.0, 1.0])  # ratios 2, 2, 90: one run was disturbed
    need(
        not got > 30,
        "this is a mean: one disturbed pair out of three moved it from 2 to over 30. A median "
        "stays.",
    )
    for a, b in (
        ([1.0, 10.0, 100.0], [2.0, 1.0, 100.0]),
        ([9.0, 6.0, 4.0, 1.0, 2.0], [3.0, 2.0, 8.0, 0.5, 4.0]),
        ([8.0, 1.0, 6.0, 20.0], [2.0, 1.0, 1.0, 2.0]),
        ([7.0], [2.0]),
    ):
        _check_ratio(answer, a, b)


def _check_ratio(answer, a: list[float], b: list[float]) -> None:
    ratios = [x / y for x, y in zip(a, b, strict=True)]
    got = answer([*a], [*b])
    case = f"the ratios {', '.join(f'{x:g}' for x in ratios)} have the median"
    middle = sorted(ratios)[1:-1] or ratios
    need(
        not _is(got, sum(middle) / len(middle)) or _is(got, median(ratios)),
        f"{case} {median(ratios):g}, and yours, {got:.3g}, is a mean of those between the ends.",
    )
    apart = median(x / y for x, y in zip(sorted(a), sorted(b), strict=True))
    need(
        not _is(got, apart) or _is(got, median(ratios)),
        f"{case} {median(ratios):g}, and yours, {got:.3g}, pairs runs that were not made together: "
        "sort the ratios, not the runs.",
    )
    whole = len(a) > 1 and _is(got, median(a) / median(b)) and not _is(got, median(ratios))
    need(
        not whole,
        "this is the ratio of the medians: it divides runs that were not made together.",
    )
    need(
        len(a) % 2 or got not in ratios,
        f"{case} {median(ratios):g}, half-way between the two in the middle, and yours is "
        f"{got:.3g}.",
    )
    need(
        _is(got, median(ratios)),
        f"{case} {median(ratios):g}, and yours is {got:.3g}. Are they in order?",
    )


# ------------------------------------------------------------------ 06: bytes, the roofline, 8 bits


@objects
def step_bytes(answer) -> None:
    """All weights, and the keys and values of all tokens, in bytes."""
    got = answer(1000, 3, 2, 8, 0, 4)
    need(
        got == 4000,
        f"1,000 weights of 4 bytes and an empty cache are 4,000 bytes, and yours are {got}.",
    )
    got = answer(0, 3, 5, 8, 7, 4)  # no weights: the cache alone
    need(
        got != 3360,
        "you count one vector for each layer, head and token: there are two, a key and a value.",
    )
    need(got != 2240, "you count one layer: each of the 3 has its own keys and values.")
    need(got != 1344, "you count one head: each of the 5 has its own keys and values.")
    need(
        got != 1680, "the numbers of the cache have itemsize bytes too: this is a count of numbers."
    )
    need(
        got == 6720,
        f"2 · 3 layers · 5 heads · 8 numbers · 7 tokens · 4 bytes are 6,720, and yours are {got}.",
    )
    got = answer(1000, 3, 5, 8, 7, 2)
    need(
        got == 5360,
        "1,000 weights and 1,680 numbers of the cache, 2 bytes each, are 5,360, and yours are "
        f"{got}.",
    )
    got = answer(100, 2, 3, 5, 6.5)
    need(
        _is(got, 1960),
        "`tokens` may be the mean over a text, as 6.5: 100 weights and 2 · 2 · 3 · 5 · 6.5 "
        f"numbers of 4 bytes are 1,960, and yours are {got}. Do not round it.",
    )


@objects
def fastest(answer) -> None:
    """The longer of two times decides, whichever it is."""
    got = answer(100.0, 100.0, 1000.0, 500.0)  # 0.1 s of arithmetic, 0.2 s of reading
    need(
        not _is(got, 1 / 0.3),
        "you add the two times: they go on at once, so only the longer one counts.",
    )
    need(not _is(got, 0.2), "this is the seconds of one token: tokens per second are 1 over that.")
    need(
        not _is(got, 10),
        "this is the shorter of the two times: a step has to wait for the longer one.",
    )
    need(
        _is(got, 5),
        f"0.1 s of arithmetic beside 0.2 s of reading allow 5 tokens per second, not {got:.3g}.",
    )
    got = answer(1000.0, 100.0, 1000.0, 500.0)  # 1 s of arithmetic, 0.2 s of reading
    need(
        _is(got, 1),
        f"1 s of arithmetic beside 0.2 s of reading allow 1 token per second, not {got:.3g}: "
        "arithmetic can be the limit too.",
    )
    got = answer(10.0, 8.0, 1000.0, 2.0)  # 0.01 s of arithmetic, 4 s of reading
    need(
        _is(got, 0.25),
        "10 operations at 1,000 and 8 bytes at 2 per second allow 0.25 tokens per second, not "
        f"{got:.3g}: compare times, not numbers.",
    )
    got = answer(3.0, 7.0, 12.0, 2.0)
    need(
        _is(got, 2 / 7),
        f"7 bytes at 2 bytes per second allow {2 / 7:.3g} tokens per second, not {got:.3g}.",
    )


@objects
def round_row(answer) -> None:
    """Codes to the nearest step, 127 for the largest number whatever its sign."""
    codes, scale = answer([1.1, -2.0, 0.5])
    codes = [*map(int, codes)]
    need(
        max(map(abs, codes)) <= 128,
        f"the code {max(codes, key=abs)} does not fit in 8 bits: the largest number counts "
        "without its sign.",
    )
    need(
        -128 not in codes or codes == [69, -128, 31],
        "−2.0 got the code −128: divide by 127, so that both signs have the same steps.",
    )
    need(
        codes not in ([69, -127, 31], [69, -128, 31]),
        "1.1 lies nearer to 70 steps than to 69: int() cuts off and a floor goes down; round() "
        "takes the nearest.",
    )
    need(
        codes == [70, -127, 32],
        f"1.1, −2.0 and 0.5 in steps of 2 / 127 are 70, −127 and 32, and yours are {codes}.",
    )
    need(
        abs(scale * 127 - 2.0) < 1e-6,
        f"code times scale gives the number back: 127 steps of {scale:.4g} are {127 * scale:.4g}, "
        "and should be 2.",
    )
    for row in ROWS:
        _check_rounded(answer, row)
    try:
        codes, scale = answer([0.0, 0.0])
    except ZeroDivisionError:
        codes = None
    need(
        codes is not None,
        "a row of zeros has no largest number to divide by: it needs a case of its own.",
    )
    need(
        list(codes) == [0, 0], f"a row of zeros has the codes 0 and 0, and yours are {list(codes)}."
    )


def _check_rounded(answer, row: list[float]) -> None:
    codes, scale = answer([*row])
    step = max(map(abs, row)) / 127
    right = [round(number / step) for number in row]
    need(
        _is(scale, step),
        f"the largest number of {row} without its sign is {max(map(abs, row))}: a step is "
        f"{step:.4g}, and yours {scale:.4g}.",
    )
    need(
        [*map(int, codes)] == right,
        f"in steps of {step:.4g}, {row} are {right}, and yours are {[*codes]}.",
    )
