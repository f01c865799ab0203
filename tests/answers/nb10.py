# ruff: noqa: E501 (code in strings)
"""Answers to the blanks of notebook 10: right ones in other styles, and wrong ones.

A wrong answer is what replaces what in the solution, and a part of the message about it.
"""

COLUMN = "-torch.ones(len(W), 1, dtype=torch.float64)"
HALVES = "    halves = rows.view(n_head, 2, -1, rows.shape[1])\n"
MIRROR = "torch.cat([halves[:, :1], -halves[:, 1:]], dim=1).reshape(rows.shape)"

RIGHT = {
    "fold": {
        "plus one": """
def fold(W, c):
    A = torch.hstack([W.double(), torch.ones(len(W), 1).double()])
    return torch.linalg.lstsq(A, c.double().unsqueeze(1)).solution[:-1, 0]
""",
        "λ first": """
def fold(W, c):
    W = W.to(torch.float64)
    A = F.pad(W, (1, 0), value=-1.0)
    x = torch.linalg.lstsq(A, c.to(W).view(-1, 1)).solution
    return x.flatten()[1:]
""",
        "the mean taken out": """
def fold(W, c):
    W, c = W.double(), c.double()
    return torch.linalg.pinv(W - W.mean(0)) @ (c - c.mean())
""",
        "the centred matrix alone": """
def fold(W, c):
    W = W.double()
    return torch.linalg.lstsq(W - W.mean(0, keepdim=True), c.double()[:, None], driver="gelsd").solution.squeeze(1)
""",
        "numpy": """
import numpy as np

def fold(W, c):
    A = np.column_stack([W.double().numpy(), np.full(len(W), -1.0)])
    x, *_ = np.linalg.lstsq(A, c.double().numpy(), rcond=None)
    return torch.from_numpy(x[: W.shape[1]])
""",
        "differences of rows": """
def fold(W, c):
    W, c = W.double(), c.double()
    return (torch.linalg.pinv(W[1:] - W[:1]) @ (c[1:] - c[:1])[:, None])[:, 0]
""",
    },
    "flip": {
        "a loop over heads": """
def flip(rows, n_head):
    new = rows.clone()
    hs = len(rows) // n_head
    for h in range(n_head):
        new[h * hs + hs // 2 : (h + 1) * hs] *= -1
    return new
""",
        "the first half": """
def flip(rows, n_head):
    a, b = rows.view(n_head, 2, -1, rows.shape[1]).unbind(1)
    return torch.stack([-a, b], 1).view_as(rows)
""",
        "signs": """
def flip(rows, n_head):
    half = len(rows) // n_head // 2
    sign = torch.ones(half).repeat(2)
    sign[half:] = -1
    return rows * sign.repeat(n_head)[:, None].to(rows)
""",
        "chunks": """
def flip(rows, n_head):
    parts = []
    for i, part in enumerate(rows.chunk(2 * n_head)):
        parts.append(-part if i % 2 else part)
    return torch.cat(parts)
""",
        "torch.where": """
def flip(rows, n_head):
    hs = rows.shape[0] // n_head
    second = torch.arange(rows.shape[0]) % hs >= hs // 2
    return torch.where(second[:, None], -rows, rows)
""",
        "einops by hand": """
def flip(rows, n_head):
    heads = rows.unflatten(0, (n_head, 2, -1)).clone()
    heads[:, 1].neg_()
    return heads.flatten(0, 2)
""",
    },
    "average": {
        "stacked": """
def average(gradients, rows):
    weights = torch.tensor(rows) / sum(rows)
    return (torch.stack(gradients) * weights[:, None]).sum(0)
""",
        "a product": """
def average(gradients, rows):
    n = torch.tensor(rows, dtype=gradients[0].dtype)
    return n @ torch.stack(gradients) / n.sum()
""",
        "a loop": """
def average(gradients, rows):
    total = torch.zeros_like(gradients[0])
    for i in range(len(rows)):
        total += gradients[i] * (rows[i] / sum(rows))
    return total
""",
        "every row": """
def average(gradients, rows):
    every = [g for g, n in zip(gradients, rows) for _ in range(n)]
    return torch.stack(every).mean(0)
""",
        "a running mean": """
def average(gradients, rows):
    mean, seen = gradients[0], rows[0]
    for g, n in zip(gradients[1:], rows[1:]):
        seen += n
        mean = mean + (g - mean) * n / seen
    return mean
""",
    },
}

WRONG = {
    "fold": {
        "no λ": (
            f"torch.cat([W.double(), {COLUMN}], dim=1)",
            "W.double()",
            "W d misses c",
        ),
        "a column of zeros": (COLUMN, f"0 * {COLUMN}", "W d misses c"),
        "a column of numbers": (COLUMN, "torch.arange(len(W))[:, None].double()", "0, 1, 2 …"),
        "the wrong sign": ("return x", "return -x", "the sign is wrong"),
        "with λ": ("return x[: W.shape[1]]", "return x", "the last number of the solution is λ"),
        "the last numbers": ("return x[: W.shape[1]]", "return x[1:]", "the last C numbers"),
        "λ alone": ("return x[: W.shape[1]]", "return x[W.shape[1] :]", "only λ"),
        "a number": ("return x[: W.shape[1]]", "return x[W.shape[1]]", "()"),
        "a column": (".solution[:, 0]", ".solution", "d has one"),
        "a pair": ("return x[: W.shape[1]]", "return x[: W.shape[1]], x[-1]", "pair"),
        "float32": (
            "return x[: W.shape[1]]",
            "return x[: W.shape[1]].float()",
            "leave it in float64",
        ),
        "float32 inside": (
            "",
            """def fold(W, c):
    A = torch.cat([W.float(), -torch.ones(len(W), 1)], dim=1)
    return torch.linalg.lstsq(A, c.float()[:, None]).solution[: W.shape[1], 0].double()
""",
            "W.double()",
        ),
        "in the dtype of W": (
            "",
            """def fold(W, c):
    A = torch.cat([W, -torch.ones(len(W), 1)], dim=1)
    return torch.linalg.lstsq(A, c[:, None]).solution[: W.shape[1], 0]
""",
            "W.double()",
        ),
        "c in float32": ("c.double()", "c", "both must be"),
        "solve": (
            'torch.linalg.lstsq(A, c.double()[:, None], driver="gelsd").solution[:, 0]',
            "torch.linalg.solve(A, c.double())",
            "solve() takes only",
        ),
        "the mean of c taken out": (
            "",
            """def fold(W, c):
    W, c = W.double(), c.double()
    return torch.linalg.lstsq(W, (c - c.mean())[:, None]).solution[:, 0]
""",
            "minus the mean of c",
        ),
        "the largest taken out": (
            "",
            """def fold(W, c):
    W, c = W.double(), c.double()
    return torch.linalg.lstsq(W, (c - c.max())[:, None]).solution[:, 0]
""",
            "the same number in all of them",
        ),
        "a row of ones": ("dim=1", "dim=0", "(V, C + 1)"),
        "W changed": ("    A =", "    W -= W.mean(0)\n    A =", "caller's W"),
        "c changed": ("    A =", "    c -= c.mean()\n    A =", "changes `c`"),
        "b as a vector": ("[:, None], driver", ", driver", "(V, 1)"),
    },
    "flip": {
        "every second row": (
            "rows.view(n_head, 2, -1, rows.shape[1])",
            "rows.view(-1, 2, 1, rows.shape[1])",
            "not neighbours",
        ),
        "half of all": ("rows.view(n_head, 2,", "rows.view(1, 2,", "second half of the whole"),
        "all": ("[halves[:, :1], -", "[-halves[:, :1], -", "half turn"),
        "none": (", -halves", ", halves", "nothing is negated"),
        "exchanged": ("n_head, 2", "2, n_head", "heads and halves"),
        "heads apart": (".reshape(rows.shape)", "", "keeps the shape"),
        "heads apart, as heads": (
            "reshape(rows.shape)",
            "reshape(n_head, -1, rows.shape[1])",
            "the heads are",
        ),
        "swapped": (
            "[halves[:, :1], -halves[:, 1:]]",
            "[halves[:, 1:], halves[:, :1]]",
            "the halves are swapped",
        ),
        "a quarter turn": (
            "[halves[:, :1], -halves[:, 1:]]",
            "[-halves[:, 1:], halves[:, :1]]",
            "quarter turn",
        ),
        "joined along the heads": ("dim=1", "dim=0", "all first halves come first"),
        "torch.flip": (
            "",
            "def flip(rows, n_head):\n    return torch.flip(rows, [0])\n",
            "torch.flip does",
        ),
        "torch.flip of each head": (
            "",
            "def flip(rows, n_head):\n    return rows.view(n_head, -1, rows.shape[1]).flip(1).reshape(rows.shape)\n",
            "rows of each head is reversed",
        ),
        "columns": (
            "",
            "def flip(rows, n_head):\n    a, b = rows.tensor_split(2, dim=1)\n    return torch.cat([a, -b], 1)\n",
            "columns",
        ),
        "in place": (
            "",
            "def flip(rows, n_head):\n    rows.view(n_head, 2, -1, rows.shape[1])[:, 1] *= -1\n    return rows\n",
            "the model's own matrix",
        ),
        "one head": (
            "",
            "def flip(rows, n_head):\n    hs = len(rows) // n_head\n    new = rows.clone()\n    new[hs // 2 : hs] *= -1\n    return new\n",
            "only head 0",
        ),
        "n_head rows": (
            "",
            "def flip(rows, n_head):\n    i = torch.arange(len(rows)) % n_head\n    return torch.where((i >= n_head // 2)[:, None], -rows, rows)\n",
            "n_head is mistaken",
        ),
        "only half": (
            f"return {MIRROR}",
            "return -halves[:, 1].flatten(0, 1)",
            "return the whole matrix",
        ),
        "zeros": ("-halves[:, 1:]", "0 * halves[:, 1:]", "becomes 0"),
        "doubled": ("-halves[:, 1:]", "-2 * halves[:, 1:]", "only signs may change"),
        "float32": (MIRROR, f"{MIRROR}.float()", "dtype"),
        "without the sign": ("-halves[:, 1:]", "-halves[:, 1:].abs()", "?"),
    },
    "average": {
        "the sum by all rows": (
            "n * gradient for",
            "gradient for",
            "sum of the gradients is divided",
        ),
        "the plain sum": (
            "sum(n * gradient for n, gradient in zip(rows, gradients)) / sum(rows)",
            "sum(gradients)",
            "that is the sum",
        ),
        "the plain mean": (
            "sum(n * gradient for n, gradient in zip(rows, gradients)) / sum(rows)",
            "sum(gradients) / len(gradients)",
            "plain mean",
        ),
        "the mean of a stack": (
            "sum(n * gradient for n, gradient in zip(rows, gradients)) / sum(rows)",
            "torch.stack(gradients).mean(0)",
            "plain mean",
        ),
        "exchanged": ("zip(rows", "zip(rows[::-1]", "weights are swapped"),
        "not divided": (" / sum(rows)", "", "not divided"),
        "by the processes": ("/ sum(rows)", "/ len(rows)", "number of processes"),
        "divided first": ("n * gradient", "gradient / n", "so multiply it by its rows"),
        "squares": ("n * gradient", "n * n * gradient", "are squared, then"),
        "floor": (" / sum(rows)", " // sum(rows)", "whole numbers"),
        "floor of the weights": (
            "sum(n * gradient for n, gradient in zip(rows, gradients)) / sum(rows)",
            "sum(n // sum(rows) * gradient for n, gradient in zip(rows, gradients))",
            "// makes them 0",
        ),
        "two alone": (
            "sum(n * gradient for n, gradient in zip(rows, gradients)) / sum(rows)",
            "(rows[0] * gradients[0] + rows[1] * gradients[1]) / (rows[0] + rows[1])",
            "first two processes",
        ),
        "in place": (
            "",
            "def average(gradients, rows):\n    total = gradients[0]\n    total *= rows[0]\n    for n, g in zip(rows[1:], gradients[1:]):\n        total += n * g\n    return total / sum(rows)\n",
            "changes the first gradient",
        ),
        "divided in place": (
            "",
            "def average(gradients, rows):\n    for n, g in zip(rows, gradients):\n        g *= n / sum(rows)\n    return sum(gradients)\n",
            "it changes the gradients",
        ),
        "one number": (
            "return sum(n * gradient for n, gradient in zip(rows, gradients)) / sum(rows)",
            "return (sum(n * gradient for n, gradient in zip(rows, gradients)) / sum(rows)).mean()",
            "one number is returned",
        ),
        "a list": (
            "return sum(n * gradient for n, gradient in zip(rows, gradients)) / sum(rows)",
            "return (sum(n * gradient for n, gradient in zip(rows, gradients)) / sum(rows)).tolist()",
            "a tensor",
        ),
        "float32": (
            "sum(n * gradient for",
            "sum(n * gradient.float() for",
            "torch.float32",
        ),
        "the rows popped": (
            "    return",
            "    rows = rows if len(rows) < 2 else [rows.pop(0), *rows]\n    return",
            "changes `rows`",
        ),
    },
}
