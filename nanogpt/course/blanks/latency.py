"""Notebook 05, blank 2: latency, the four numbers of one text's timestamps."""

from ..drivers import number
from ..page import Blank, Case


def latency(moments: list[float]) -> dict:
    """TTFT, TPOT, ITL and E2EL in seconds, from timestamps: the call, then each token."""
    first, *rest = [b - a for a, b in zip(moments, moments[1:])]
    tpot = sum(rest) / len(rest) if rest else None
    return {"ttft": first, "tpot": tpot, "itl": rest, "e2el": moments[-1] - moments[0]}


# ------------------------------------------------------------------ what a check runs


def run_latency(answer, moments):
    """The four latencies of one text; ITL may be any sequence."""
    got = answer([*moments])
    is_dict = isinstance(got, dict)
    yield "what is returned", "a dict" if is_dict else f"a {type(got).__name__}"
    yield "the keys of the dict", sorted(got)
    yield "TTFT", number(got["ttft"])
    itl = got["itl"]
    is_list = hasattr(itl, "__len__") and not isinstance(itl, (str, dict))
    yield "the type of ITL", "a list" if is_list else f"a {type(itl).__name__}"
    yield "the number of gaps in ITL", len(itl)
    for i, gap in enumerate(itl):
        yield f"gap {i} of ITL", number(gap)
    yield "TPOT", number(got["tpot"])
    yield "E2EL", number(got["e2el"])


# On a clock that has run for long: all of them exact in float64, and not in float32.
LONG = [50_000 + moment / 2**20 for moment in (0, 1294, 2038, 2097)]


# ------------------------------------------------------------------ what people write

BLANK = Blank(
    number="05.2",
    minutes=6,
    solution=latency,
    cases=[
        Case(run_latency, moments=[10.0, 13.0, 14.0, 16.0]),
        Case(run_latency, moments=[0.0, 2.0, 3.0, 4.0, 14.0]),
        Case(run_latency, moments=[1.0, 1.5, 2.5]),
        Case(run_latency, moments=[0.0, 1.0]),
        Case(run_latency, moments=LONG),
    ],
    mistakes={
        "ITL begins with the wait for the first token: that one is TTFT, and belongs neither to ITL nor to TPOT.": [
            '"itl": rest -> "itl": [first, *rest]'
        ],
        "TPOT includes the wait for the first token: it is the mean of the gaps after it.": (
            ["sum(rest) / len(rest) -> (first + sum(rest)) / (1 + len(rest))"],
            ["sum(rest) / len(rest) if rest else None -> (first + sum(rest)) / (1 + len(rest))"],
        ),
        "TPOT is a median: it is the mean of the gaps.": ["sum(rest) / len(rest) -> median(rest)"],
        "the timestamps themselves are returned: subtract the call's, moments[0].": [
            '"ttft": first -> "ttft": moments[1]',
            "moments[-1] - moments[0] -> moments[-1]",
        ],
        "a single token has no gap after it: its TPOT is None, not another number.": (
            ["else None -> else 0.0"],
            ['else None -> else float("nan")'],
        ),
        "these are milliseconds: return seconds, as in `moments`.": [
            "first, *rest = -> moments = [1000 * moment for moment in moments]\n    first, *rest ="
        ],
        "the four are returned without their names: return a dict with the keys ttft, tpot, itl and e2el.": [
            "return -> return first, tpot, rest, moments[-1] - moments[0]\n    return"
        ],
    },
    wrong=[
        '"e2el": moments[-1] - moments[0] -> "e2el": sum(rest)',
        "return -> rest = sorted(rest)\n    return",
    ],
    right=[
        """
def latency(moments):
    import statistics

    call, first, *rest = moments
    itl = [b - a for a, b in zip([first, *rest], rest)]
    tpot = statistics.mean(itl) if itl else None
    return {"e2el": (rest or [first])[-1] - call, "itl": itl, "tpot": tpot, "ttft": first - call}
""",
        """
def latency(moments):
    gaps = [moments[i] - moments[i - 1] for i in range(2, len(moments))]
    e2el, ttft = moments[-1] - moments[0], moments[1] - moments[0]
    tpot = (e2el - ttft) / len(gaps) if len(gaps) > 0 else None
    return dict(ttft=ttft, tpot=tpot, itl=tuple(gaps), e2el=e2el)
""",
        """
def latency(moments):
    gaps = torch.tensor(moments, dtype=torch.float64).diff()
    tpot = gaps[1:].mean() if len(gaps) > 1 else None
    return {"ttft": gaps[0], "itl": gaps[1:], "tpot": tpot, "e2el": gaps.sum()}
""",
    ],
    hints=(
        "How many gaps are there between five timestamps, and which of them is the wait for the first token?",
        "First take the differences of neighbours: `zip(moments, moments[1:])`. The first difference is TTFT, the others are ITL.",
        "first, *rest = [b - a for a, b in zip(moments, moments[1:])]; TPOT is sum(rest) / len(rest), or None if rest is empty",
    ),
    advice={
        "what is returned": "Return a dict with ttft, tpot, itl and e2el.",
        "TTFT": "From the call to the first token, in seconds.",
        "the type of ITL": "It is the list of the gaps after the first token.",
        "in ITL": "The gaps after the first token: one less than there are tokens.",
        "TPOT": "The mean of the gaps after the first token; None without a gap.",
        "E2EL": "From the call to the last token.",
    },
)
