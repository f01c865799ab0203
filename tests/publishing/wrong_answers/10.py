"""Plausible wrong answers to the blanks of notebook 10, and a piece of what the judge says."""


def function(name, arguments, *lines):
    return "\n    ".join([f"def {name}({arguments}):", *lines])


MEAN, HEAD, ROWS = "gradients, rows", "W, c", "rows, n_head"
COLUMN = "A = torch.cat([W, -torch.ones(len(W), 1)], dim=1)"
SOLVED = "torch.linalg.lstsq({}, c[:, None]).solution[:, 0]"

WRONG = {
    "average": [
        (function("average", MEAN, "return sum(gradients) / len(gradients)"), "the plain mean"),
        (function("average", MEAN, "return sum(gradients)"), "that is the sum"),
        (
            function(
                "average",
                MEAN,
                "return sum(g * n for g, n in zip(gradients, rows[::-1])) / sum(rows)",
            ),
            "the weights are exchanged",
        ),
        (
            function(
                "average",
                MEAN,
                "for gradient, n in zip(gradients, rows):",
                "    gradient *= n / sum(rows)",
                "return sum(gradients)",
            ),
            "it changed the gradients",
        ),
    ],
    "fold": [
        (function("fold", HEAD, f"return {SOLVED.format('W')}"), "Let λ be the fifth unknown"),
        (function("fold", HEAD, COLUMN, f"return {SOLVED.format('A')}"), "the last one is λ"),
        (
            function("fold", HEAD, COLUMN, f"return -{SOLVED.format('A')}[:-1]"),
            "the sign is wrong",
        ),
        (function("fold", HEAD, "return torch.zeros(W.shape[1])"), "one number in all rows"),
    ],
    "flip": [
        (
            function(
                "flip",
                ROWS,
                "half = len(rows) // 2",
                "return torch.cat([rows[:half], -rows[half:]])",
            ),
            "the second half of the whole matrix",
        ),
        (
            function(
                "flip",
                ROWS,
                "signs = torch.ones(len(rows), 1)",
                "signs[1::2] = -1",
                "return rows * signs",
            ),
            "Pairs are not neighbours",
        ),
        (function("flip", ROWS, "return -rows"), "you negated all rows"),
        (
            function(
                "flip",
                ROWS,
                "halves = rows.view(2, n_head, -1, rows.shape[1])",
                "return torch.cat([halves[:, :1], -halves[:, 1:]], dim=1).reshape(rows.shape)",
            ),
            "you left these signs",
        ),
    ],
}
