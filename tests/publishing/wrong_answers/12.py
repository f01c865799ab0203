"""Plausible wrong answers to the blanks of notebook 12, and a piece of what the judge says."""


def function(name, arguments, *lines):
    return "\n    ".join([f"def {name}({arguments}):", *lines])


IN_ORDER = ("total = x[0]", "for term in x[1:]:", "    total = total + term", "return total")
HALVES = ("while len(x) > 1:", "    x = x[: len(x) // 2] + x[len(x) // 2 :]", "return x[0]")
PAD = "k, v = (F.pad(x, (0, 0, 0, length - k.shape[0])) for x in (k, v))"
ATTENTION = "q, k, v, mask, length"

WRONG = {
    "pairwise": [
        (function("pairwise", "x", *IN_ORDER), "from left to right"),
        (function("pairwise", "x", *HALVES), "so no 1 vanished"),
    ],
    "row-by-row": [
        (function("row_by_row", "x, weight", "return F.linear(x, weight)"), "256"),
        (function("row_by_row", "x, weight", "return F.linear(weight, x)"), "not F.linear"),
        (
            function(
                "row_by_row",
                "x, weight",
                "return torch.cat([F.linear(row[None], weight) for row in x])",
            ),
            "got 64 rows at once",
        ),
    ],
    "padded-attention": [
        (function("padded_attention", ATTENTION, "return attend(q, k, v, mask)"), "32 keys, not 9"),
        (
            function(
                "padded_attention",
                ATTENTION,
                "more = length - k.shape[0]",
                PAD,
                "return attend(q, k, v, F.pad(mask, (0, more), value=True))",
            ),
            "a key of zeros has a weight",
        ),
        (
            function(
                "padded_attention",
                ATTENTION,
                "more = length - k.shape[0]",
                "k, v = (F.pad(x, (0, 0, more, 0)) for x in (k, v))",
                "return attend(q, k, v, F.pad(mask, (0, more)))",
            ),
            "keep their places",
        ),
    ],
}
