# ruff: noqa: E501 (code in strings)
"""Answers to the blanks of notebook 13: right ones in other styles, wrong ones by misconception."""

RIGHT = {
    "share_keys": {
        "expand and flatten": """
def share_keys(k, n_head):
    B, H, S, hs = k.shape
    return k[:, :, None].expand(B, H, n_head // H, S, hs).reshape(B, n_head, S, hs)
""",
        "stack": """
def share_keys(k, n_head):
    group = n_head // k.size(1)
    return torch.stack([k[:, h // group] for h in range(n_head)], dim=1)
""",
        "an index": """
def share_keys(k, n_head):
    heads = torch.arange(n_head, device=k.device) * k.shape[1] // n_head
    return k[:, heads]
""",
        "cat of pieces": """
def share_keys(k, n_head):
    parts = []
    for head in k.split(1, dim=1):
        parts += [head] * (n_head // k.shape[1])
    return torch.cat(parts, dim=1)
""",
        "written into a new tensor": """
def share_keys(k, n_head):
    B, H, S, hs = k.shape
    group = n_head // H
    out = k.new_empty(B, n_head, S, hs)
    for h in range(n_head):
        out[:, h] = k[:, h // group]
    return out
""",
        "repeat of a new dimension": """
def share_keys(k, n_head):
    return k.unsqueeze(2).repeat(1, 1, n_head // k.shape[1], 1, 1).flatten(1, 2)
""",
        "the function of torch, from behind": """
def share_keys(k, n_head):
    return torch.repeat_interleave(k, repeats=n_head // k.shape[-3], dim=-3)
""",
        "einsum": """
def share_keys(k, n_head):
    return torch.einsum("bhsd,hg->bhgsd", k, k.new_ones(k.shape[1], n_head // k.shape[1])).flatten(1, 2)
""",
    },
    "gated": {
        "F.linear": """
def gated(x, gate, up, down):
    return F.linear(F.silu(F.linear(x, gate)) * F.linear(x, up), down)
""",
        "sigmoid": """
def gated(x, gate, up, down):
    g = x @ gate.T
    return (x @ up.mT * g * torch.sigmoid(g)) @ down.mT
""",
        "one matrix": """
def gated(x, gate, up, down):
    g, u = (x @ torch.cat([gate, up]).T).chunk(2, dim=-1)
    return torch.matmul(nn.SiLU()(g) * u, down.t())
""",
        "einsum": """
def gated(x, gate, up, down):
    inner = F.silu(torch.einsum("...c,hc->...h", x, gate)) * torch.einsum("...c,hc->...h", x, up)
    return torch.einsum("...h,ch->...c", inner, down)
""",
        "an exponential that does not overflow": """
def gated(x, gate, up, down):
    g = F.linear(x, gate)
    return F.linear(g / (1 + torch.exp(-g)) * F.linear(x, up), down)
""",
        "in place on its own numbers": """
def gated(x, gate, up, down):
    inner = F.silu(x @ gate.T)
    inner = inner.mul(x @ up.T)
    return inner.matmul(down.T)
""",
    },
}

SHARE = "k.repeat_interleave(n_head // k.shape[1], dim=1)"
GATE = "F.silu(x @ gate.T)"
UP = "(x @ up.T)"
WRONG = {
    "share_keys": {
        "not repeated": (SHARE, "k", "nothing is repeated"),
        "dealt like cards": (SHARE, "k.repeat(1, n_head // k.shape[1], 1, 1)", "cards"),
        "backwards": ("return k.rep", "return k.flip(1).rep", "query head 0"),
        "n_head times": ("n_head // k.shape[1]", "n_head", "n_head times"),
        "as often as there are": ("n_head // k.shape[1]", "k.shape[1]", "k.shape[1] times"),
        "all dimensions": (", dim=1", "", "without dim=1"),
        "the texts": ("dim=1", "dim=0", "the batch is"),
        "the positions": ("dim=1", "dim=2", "positions are repeated"),
        "the numbers": ("dim=1", "dim=-1", "the head dimension"),
        "the first for all": (
            SHARE,
            "k[:, :1].expand(-1, n_head, -1, -1)",
            "all query heads get KV head 0",
        ),
        "expand": (SHARE, "k.expand(-1, n_head, -1, -1)", "expand"),
        "cat": (SHARE, "torch.cat([k] * (n_head // k.shape[1]), dim=1)", "cards"),
        "reshape of expand": (
            SHARE,
            "k[:, None].expand(-1, n_head // k.shape[1], -1, -1, -1).flatten(1, 2)",
            "cards",
        ),
        "twice": ("n_head // k.shape[1]", "2", "head is always"),
        "a dimension more": (
            SHARE,
            "k[:, :, None].expand(-1, -1, n_head // k.shape[1], -1, -1)",
            "the group is",
        ),
        "detached": ("return k.", "return k.detach().", "detached"),
        "float32": ("dim=1)", "dim=1).float()", "dtype"),
        "heads and positions": ("dim=1)", "dim=1).transpose(1, 2)", "heads and positions"),
        "the remainder": (SHARE, "k[:, [h % k.shape[1] for h in range(n_head)]]", "cards"),
        "texts for heads": ("k.shape[1]", "k.shape[0]", "from the batch"),
        "nothing returned": ("return k.", "k.", "it returned None"),
    },
    "gated": {
        "the wrong way round": (
            f"{GATE} * {UP}",
            "(x @ gate.T) * F.silu(x @ up.T)",
            "wrong way round",
        ),
        "added": (" * (x @ up.T)", " + x @ up.T", "add"),
        "ReLU": (GATE, "F.relu(x @ gate.T)", "ReLU"),
        "no activation": (GATE, "(x @ gate.T)", "activation is missing"),
        "sigmoid": (GATE, "(x @ gate.T).sigmoid()", "sigmoid"),
        "no down": (" @ down.T", "", "`down` is missing"),
        "GELU": ("F.silu", "F.gelu", "GELU"),
        "tanh": (GATE, "(x @ gate.T).tanh()", "tanh"),
        "up left out": (f" * {UP}", "", "output is left"),
        "gate left out": (f"{GATE} * {UP}", "F.silu(x @ up.T)", "gate is not multiplied"),
        "the lecture's part": (f"{GATE} * {UP}", "F.relu(x @ up.T)", "the lecture's feed-forward"),
        "both activated": (UP, "F.silu(x @ up.T)", "both factors"),
        "after the product": (
            f"{GATE} * {UP}",
            "F.silu((x @ gate.T) * (x @ up.T))",
            "before the product",
        ),
        "gate not transposed": ("gate.T", "gate", "transposed"),
        "down not transposed": ("down.T", "down", "transposed"),
        "up twice": ("x @ gate.T", "x @ up.T", "gate is computed"),
        "x added": ("return (", "return x + (", "x is added"),
        "SiLU of x": (GATE, "(F.silu(x) @ gate.T)", "applied to x"),
        "SiLU of the output": (
            "return (F.silu(x @ gate.T) * (x @ up.T)) @ down.T",
            "return F.silu((F.silu(x @ gate.T) * (x @ up.T)) @ down.T)",
            "to the output",
        ),
        "exponentials that overflow": (
            GATE,
            "((x @ gate.T) * (x @ gate.T).exp() / (1 + (x @ gate.T).exp()))",
            "overflow",
        ),
        "the precedence of @ and *": (
            "(F.silu(x @ gate.T) * (x @ up.T)) @ down.T",
            "F.silu(x @ gate.T) * ((x @ up.T) @ down.T)",
            "",
        ),
        "detached": ("F.silu(x @ gate.T)", "F.silu((x @ gate.T).detach())", "detached"),
        "changed in place": ("return (", "x *= 2\n    x = x / 2\n    return (", "changes `x`"),
    },
}
