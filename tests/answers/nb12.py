# ruff: noqa: E501 (code in strings)
"""Answers to the blanks of notebook 12: right ones in other styles, and wrong ones.

A wrong answer is what replaces what in the solution, and a part of the message about it.
"""

PAIRS = "x[0::2] + x[1::2]"
ROWS = "    rows = x.reshape(-1, x.shape[-1])\n"
OUT = "torch.cat([F.linear(row[None], weight) for row in rows])"
PAD = "(0, 0, 0, more)"
MASK = "F.pad(mask, (0, more))"

RIGHT = {
    "pairwise": {
        "halves of halves": """
def pairwise(x):
    n = len(x)
    if n == 1:
        return x[0]
    return pairwise(x[: n // 2]) + pairwise(x[n // 2 :])
""",
        "a view of pairs": """
def pairwise(x):
    while x.numel() > 1:
        x = x.view(-1, 2).sum(-1)
    return x.squeeze()
""",
        "lists of tensors": """
def pairwise(x):
    terms = list(x)
    while len(terms) > 1:
        terms = [a + b for a, b in zip(terms[::2], terms[1::2])]
    return terms[0]
""",
        "unbind": """
def pairwise(x):
    if x.shape == (1,):
        return x.reshape(())
    a, b = x.unflatten(0, (-1, 2)).unbind(1)
    return pairwise(b + a)
""",
        "a stack": """
def pairwise(x):
    stack = []
    for term in x:
        level = 0
        while stack and stack[-1][0] == level:
            term = stack.pop()[1] + term
            level += 1
        stack.append((level, term))
    return stack[0][1]
""",
    },
    "row_by_row": {
        "torch.bmm": """
def row_by_row(x, weight):
    *shape, K = x.shape
    rows = x.reshape(-1, 1, K)
    out = torch.bmm(rows, weight.mT.expand(len(rows), -1, -1))
    return out.reshape(*shape, -1)
""",
        "matrix times vector": """
def row_by_row(x, weight):
    out = x.new_empty(*x.shape[:-1], weight.shape[0])
    for place in torch.cartesian_prod(*map(torch.arange, (1, *x.shape[:-1]))):
        at = tuple(place[1:].tolist())
        out[at] = weight @ x[at]
    return out
""",
        "recursion": """
def row_by_row(x, weight):
    if x.ndim == 1:
        return F.linear(x, weight)
    return torch.stack([row_by_row(part, weight) for part in x])
""",
        "columns of one row": """
def row_by_row(x, weight):
    columns = [weight @ row[:, None] for row in x.flatten(0, -2)]
    return torch.cat(columns, dim=1).T.unflatten(0, x.shape[:-1])
""",
        "split": """
def row_by_row(x, weight):
    flat = x.view(-1, x.size(-1))
    return torch.vstack([torch.mm(row, weight.t()) for row in flat.split(1)]).view(*x.shape[:-1], -1)
""",
        "sums of products": """
def row_by_row(x, weight):
    rows = [(row * weight).sum(-1) for row in x.reshape(-1, x.shape[-1])]
    return torch.stack(rows).reshape(*x.shape[:-1], len(weight))
""",
        "a batch of matrices": """
def row_by_row(x, weight):
    return (x.unsqueeze(-2) @ weight.T.expand(*x.shape[:-1], -1, -1)).squeeze(-2)
""",
    },
    "padded_attention": {
        "zeros joined on": """
def padded_attention(q, k, v, mask, length):
    S, hs = k.shape
    zeros = k.new_zeros(length - S, hs)
    hidden = torch.zeros(len(q), length - S, dtype=torch.bool)
    return attend(q, torch.cat([k, zeros]), torch.cat([v, zeros]), torch.cat([mask, hidden], dim=1))
""",
        "filled in": """
def padded_attention(q, k, v, mask, length):
    keys, values = torch.zeros(2, length, k.shape[1], dtype=k.dtype)
    keys[: len(k)] = k
    values[: len(v)] = v
    seen = torch.zeros(len(q), length).bool()
    seen[:, : len(k)] = mask
    return attend(q, keys, values, seen)
""",
        "PyTorch's function": """
def padded_attention(q, k, v, mask, length):
    n = length - len(k)
    return F.scaled_dot_product_attention(q, F.pad(k, (0, 0, 0, n)), F.pad(v, (0, 0, 0, n)), F.pad(mask, (0, n)))
""",
        "PyTorch's fused kernel": """
def padded_attention(q, k, v, mask, length):
    n = length - len(k)
    q, k, v = (x[None, None] for x in (q, F.pad(k, (0, 0, 0, n)), F.pad(v, (0, 0, 0, n))))
    return F.scaled_dot_product_attention(q, k, v, F.pad(mask, (0, n)))[0, 0]
""",
        "a softmax by hand": """
def padded_attention(q, k, v, mask, length):
    k, v = [F.pad(x, (0, 0, 0, length - x.shape[0])) for x in (k, v)]
    mask = F.pad(mask, (0, length - mask.shape[1]))
    scores = q @ k.mT / math.sqrt(q.shape[-1])
    powers = scores.masked_fill(~mask, -torch.inf).exp()
    return powers @ v / powers.sum(-1, keepdim=True)
""",
        "einsum": """
def padded_attention(q, k, v, mask, length):
    k, v = [F.pad(x, (0, 0, 0, length - x.shape[0])) for x in (k, v)]
    mask = F.pad(mask, (0, length - mask.shape[1]), value=False)
    scores = torch.einsum("td,sd->ts", q, k) * q.shape[-1] ** -0.5
    return torch.einsum("ts,sd->td", scores.masked_fill(~mask, -1e9).softmax(-1), v)
""",
        "query by query": """
def padded_attention(q, k, v, mask, length):
    n = length - len(k)
    k, v, mask = F.pad(k, (0, 0, 0, n)), F.pad(v, (0, 0, 0, n)), F.pad(mask, (0, n))
    return torch.cat([attend(q[i : i + 1], k, v, mask[i : i + 1]) for i in range(len(q))])
""",
    },
}

WRONG = {
    "pairwise": {
        "the first half and the second": (
            PAIRS,
            "x[: len(x) // 2] + x[len(x) // 2 :]",
            "first half",
        ),
        "the first and the last": (
            PAIRS,
            "x[: len(x) // 2] + x[len(x) // 2 :].flip(0)",
            "added to the last one",
        ),
        "from left to right": (
            "",
            "def pairwise(x):\n    total = 0\n    for term in x:\n        total = total + term\n    return total\n",
            "left to right",
        ),
        "torch.sum": ("", "def pairwise(x):\n    return x.sum()\n", "torch.sum adds in"),
        "float64": ("    while", "    x = x.double()\n    while", "the sum is"),
        "float64 and back": (
            "",
            "def pairwise(x):\n    y = x.double()\n    while len(y) > 1:\n        y = y[0::2] + y[1::2]\n    return y[0].to(x.dtype)\n",
            "float64 rounds less",
        ),
        "float32 always": ("    while", "    x = x.float()\n    while", "expected torch.float64"),
        "a list": ("return x[0]", "return x", "shape ()"),
        "a Python number": (
            "return x[0]",
            "return x[0].item()",
            "a Python number is returned: return",
        ),
        "Python's sum": (
            "",
            "def pairwise(x):\n    return sum(x.tolist())\n",
            "is returned, which",
        ),
        "one round": ("    while len(x) > 1:\n", "    if len(x) > 1:\n", "there is only one"),
        "two left": ("len(x) > 1", "len(x) > 2", "two numbers are left"),
        "neighbours twice": ("x[1::2]", "x[0::2]", "expected 3, got 2"),
        "a quarter": ("return x[0]", "return x[0] / 4", "expected 3, got 0.75"),
        "shifted": (PAIRS, "x[:-1] + x[1:]", "both of its neighbours"),
        "sorted": ("    while", "    x = x.sort().values\n    while", "sorted first, smallest"),
        "sorted by size": (
            "    while",
            "    x = x[x.abs().argsort()]\n    while",
            "sorted first, by",
        ),
        "in place": (
            "",
            "def pairwise(x):\n    n = len(x)\n    while n > 1:\n        x[: n // 2] = x[0:n:2] + x[1:n:2]\n        n //= 2\n    return x[0]\n",
            "writes the sums",
        ),
        "two numbers at least": (
            "",
            "def pairwise(x):\n    if len(x) == 2:\n        return x[0] + x[1]\n    return pairwise(x[: len(x) // 2]) + pairwise(x[len(x) // 2 :])\n",
            "own sum",
        ),
        "pairs, then in a row": (
            "",
            "def pairwise(x):\n    total, *rest = (x[0::2] + x[1::2]) if len(x) > 1 else x\n    for pair in rest:\n        total = total + pair\n    return total\n",
            "only the first round",
        ),
        "fsum": (
            "",
            "def pairwise(x):\n    return torch.tensor(math.fsum(x.tolist()), dtype=x.dtype)\n",
            "math.fsum adds without",
        ),
        "cumsum": ("", "def pairwise(x):\n    return x.cumsum(0)[-1]\n", "float64 rounds less"),
    },
    "row_by_row": {
        "all rows": (
            "",
            "def row_by_row(x, weight):\n    return F.linear(x, weight)\n",
            "multiplied at once",
        ),
        "a product": (
            "",
            "def row_by_row(x, weight):\n    return x @ weight.T\n",
            "multiplied at once",
        ),
        "the first dimension alone": (
            ROWS,
            "    rows = x\n",
            "the batch is",
        ),
        "matrices of one row": (
            "",
            "def row_by_row(x, weight):\n    return (x.reshape(-1, 1, x.shape[-1]) @ weight.T).view(*x.shape[:-1], len(weight))\n",
            "multiplied at once",
        ),
        "vmap": (OUT, "torch.vmap(lambda row: weight @ row)(rows)", "multiplied at once"),
        "einsum": (
            "",
            'def row_by_row(x, weight):\n    return torch.einsum("...k,nk->...n", x, weight)\n',
            "multiplied at once",
        ),
        "two rows": (
            "F.linear(row[None], weight) for row in rows",
            "F.linear(two, weight) for two in rows.split(2)",
            "two rows are",
        ),
        "four rows": (
            "F.linear(row[None], weight) for row in rows",
            "F.linear(four, weight) for four in rows.split(4)",
            "use one product per",
        ),
        "not transposed": ("F.linear(row[None], weight)", "row[None] @ weight", "not transposed"),
        "rows left": (
            "    return out.view(*x.shape[:-1], len(weight))",
            "    return out",
            "one long matrix",
        ),
        "a dimension too many": ("len(weight))\n", "1, len(weight))\n", "left over"),
        "stacked and left": (
            f"{OUT}\n    return out.view(*x.shape[:-1], len(weight))",
            "torch.stack([F.linear(row[None], weight) for row in rows])\n    return out",
            "left over",
        ),
        "by column": (
            "",
            "def row_by_row(x, weight):\n    return torch.cat([F.linear(x, w[None]) for w in weight], dim=-1)\n",
            "each column is computed",
        ),
        "float64": (
            "",
            "def row_by_row(x, weight):\n    return F.linear(x.double(), weight.double()).to(x.dtype)\n",
            "float64 hides",
        ),
        "float32": (
            "F.linear(row[None], weight)",
            "F.linear(row[None].float(), weight.float())",
            "keep x's dtype",
        ),
        "the first row": (
            "for row in rows",
            "for row in rows[:1].expand(len(rows), -1)",
            "every row gets",
        ),
        "the last row left out": ("in rows]", "in rows[:-1]]", "is invalid for input of size 24"),
        "backwards": ("in rows]", "in rows.flip(0)]", "reverse order"),
        "a bias": (
            "F.linear(row[None], weight)",
            "F.linear(row[None], weight, weight[:, 0])",
            "F.linear(x, weight)",
        ),
        "two dimensions alone": (
            ROWS,
            "    rows = x.view(len(x), x.shape[1])\n",
            "three dimensions",
        ),
        "the weights changed": ("    rows", "    weight *= 1.5\n    rows", "changes `weight`"),
    },
    "padded_attention": {
        "no padding": ("length - k.shape[-2]", "0", "nothing is padded"),
        "the padding is seen": (MASK, "F.pad(mask, (0, more), value=True)", "key of zeros"),
        "before the keys": (
            f"    k, v = (F.pad(x, {PAD}) for x in (k, v))\n    return attend(q, k, v, {MASK})",
            "    k, v = (F.pad(x, (0, 0, more, 0)) for x in (k, v))\n    return attend(q, k, v, F.pad(mask, (more, 0)))",
            "before the keys",
        ),
        "keys before, mask behind": (PAD, "(0, 0, more, 0)", "padded in front, but"),
        "mask before, keys behind": (MASK, "F.pad(mask, (more, 0))", "padded in front, but"),
        "columns": (PAD, "(0, more)", "adds rows"),
        "rows of the mask": (MASK, "F.pad(mask, (0, 0, 0, more))", "adds columns"),
        "length more": ("length - k.shape[-2]", "length", "add only the"),
        "one more": ("length - k.shape[-2]", "length - k.shape[-2] + 1", "one row too many"),
        "by the queries": (
            "length - k.shape[-2]",
            "length - q.shape[-2]",
            "number of keys in the scores",
        ),
        "by the width": (
            "length - k.shape[-2]",
            "length - k.shape[-1]",
            "number of keys in the scores",
        ),
        "the mask left": (MASK, "mask", "mask is not padded"),
        "the values left": (
            "    k, v = (F.pad(x, (0, 0, 0, more)) for x in (k, v))",
            "    k = F.pad(k, (0, 0, 0, more))",
            "values are not padded",
        ),
        "the keys left": (
            "    k, v = (F.pad(x, (0, 0, 0, more)) for x in (k, v))",
            "    v = F.pad(v, (0, 0, 0, more))",
            "F.pad(x, (0, 0, 0, n))",
        ),
        "no mask": (MASK, "F.pad(torch.ones_like(mask), (0, more))", "given mask is"),
        "only None": (MASK, "None", "triangle by index"),
        "a triangle": (MASK, "torch.ones(len(q), length).tril().bool()", "triangle"),
        "inverted": (MASK, f"~{MASK}", "inverted"),
        "queries too": (
            "    return attend(q, k, v, F.pad(mask, (0, more)))",
            "    q = F.pad(q, (0, 0, 0, more))\n    return attend(q, k, v, F.pad(mask, (0, more, 0, more), value=True))",
            "row for each of the T queries",
        ),
        "the weights padded": (
            "",
            """def padded_attention(q, k, v, mask, length):
    weights = (q @ k.mT * q.shape[-1] ** -0.5).masked_fill(~mask, -torch.inf).softmax(-1)
    n = length - len(k)
    return F.pad(weights, (0, n)) @ F.pad(v, (0, 0, 0, n))
""",
            "weights are padded",
        ),
        "the scores padded": (
            "",
            """def padded_attention(q, k, v, mask, length):
    n = length - len(k)
    scores = (q @ k.mT * q.shape[-1] ** -0.5).masked_fill(~mask, -torch.inf)
    return F.pad(scores, (0, n), value=-torch.inf).softmax(-1) @ F.pad(v, (0, 0, 0, n))
""",
            "scores are padded",
        ),
        "infinite values": (
            "(F.pad(x, (0, 0, 0, more)) for x in (k, v))",
            "(F.pad(x, (0, 0, 0, more), value=-torch.inf) for x in (k, v))",
            "NaN",
        ),
    },
}
