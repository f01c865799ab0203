"""Plausible wrong answers to the blanks of notebook 05, and what the judge says of each."""

WRONG = {
    "latency": [
        (
            """
def latency(moments):
    gaps = [b - a for a, b in zip(moments, moments[1:])]
    return {"ttft": gaps[0], "tpot": sum(gaps) / len(gaps), "itl": gaps[1:], "e2el": sum(gaps)}
""",
            "TPOT counts the first token",
        ),
        (
            """
def latency(moments):
    gaps = [b - a for a, b in zip(moments, moments[1:])]
    return {"ttft": gaps[0], "tpot": sum(gaps[1:]) / len(gaps[1:]), "itl": gaps, "e2el": sum(gaps)}
""",
            "ITL begins with the wait for the first token",
        ),
        (
            """
def latency(moments):
    gaps = [b - a for a, b in zip(moments, moments[1:])]
    rest = gaps[1:]
    return {"ttft": gaps[0], "tpot": sum(rest) / max(1, len(rest)), "itl": rest, "e2el": sum(gaps)}
""",
            "its TPOT is None",
        ),
    ],
    "rows-computed": [
        (
            """
def rows_computed(prompt, n_new, cached):
    if cached:
        return prompt + n_new - 1
    return n_new * (prompt + n_new - 1)
""",
            "you count n · n",
        ),
        (
            """
def rows_computed(prompt, n_new, cached):
    if n_new == 1:
        return prompt
    return prompt + n_new if cached else sum(range(prompt, prompt + n_new))
""",
            "you read the last new token too",
        ),
        (
            """
def rows_computed(prompt, n_new, cached):
    return n_new if cached else sum(range(1, n_new + 1))
""",
            "both ways read the prompt",
        ),
    ],
    "paired-speedup": [
        (
            """
def paired_speedup(a, b):
    return median(a) / median(b)
""",
            "the ratio of the medians",
        ),
        (
            """
def paired_speedup(a, b):
    return sum(x / y for x, y in zip(a, b)) / len(a)
""",
            "this is a mean",
        ),
        (
            """
def paired_speedup(a, b):
    return median(y / x for x, y in zip(a, b))
""",
            "this is b / a",
        ),
    ],
}
