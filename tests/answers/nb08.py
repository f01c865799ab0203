# ruff: noqa: E501 (code in strings)
"""Answers to the blanks of notebook 08: right ones in other styles, wrong ones by misconception."""

RIGHT = {
    "key_head": {
        "one product, one division": """
def key_head(h, n_head, n_kv_head):
    return h * n_kv_head // n_head
""",
        "divmod": """
def key_head(h, n_head, n_kv_head):
    number, _ = divmod(h, n_head // n_kv_head)
    return number
""",
        "int of a quotient": """
def key_head(h, n_head, n_kv_head):
    return int(h / (n_head / n_kv_head))
""",
        "a list of all": """
def key_head(h, n_head, n_kv_head):
    heads = []
    for number in range(n_kv_head):
        heads += [number] * (n_head // n_kv_head)
    return heads[h]
""",
        "a loop": """
def key_head(h, n_head, n_kv_head):
    group = n_head // n_kv_head
    number = 0
    while h >= group:
        h -= group
        number += 1
    return number
""",
        "tensors": """
def key_head(h, n_head, n_kv_head):
    return torch.arange(n_kv_head).repeat_interleave(n_head // n_kv_head)[h].item()
""",
    },
    "turn_arrow": {
        "a complex product": """
import cmath

def turn_arrow(a, b, angle):
    z = complex(a, b) * cmath.exp(1j * angle)
    return z.real, z.imag
""",
        "polar": """
def turn_arrow(a, b, angle):
    r = math.hypot(a, b)
    phi = math.atan2(b, a) + angle
    return r * math.cos(phi), r * math.sin(phi)
""",
        "a matrix": """
def turn_arrow(a, b, angle):
    c, s = math.cos(angle), math.sin(angle)
    R = torch.tensor([[c, -s], [s, c]], dtype=torch.float64)
    return (R @ torch.tensor([a, b], dtype=torch.float64)).tolist()
""",
        "a tensor of float32": """
def turn_arrow(a, b, angle):
    angle = torch.tensor(angle)
    return torch.stack([a * angle.cos() - b * angle.sin(), a * angle.sin() + b * angle.cos()])
""",
        "the new number kept apart": """
def turn_arrow(a, b, angle):
    new_a = math.cos(angle) * a + math.sin(angle) * -b
    new_b = math.sin(angle) * a + math.cos(angle) * b
    return [new_a, new_b]
""",
    },
    "every_second": {
        "remainders that are equal": """
def every_second(q_pos, k_pos, window=None, sinks=0):
    q, k = q_pos[:, None], k_pos[None, :]
    return (k >= 0) & (k <= q) & (q % 2 == k % 2)
""",
        "torch.where": """
def every_second(q_pos, k_pos, window=None, sinks=0):
    gap = q_pos.unsqueeze(1) - k_pos.unsqueeze(0)
    seen = torch.where(gap < 0, False, gap.remainder(2) == 0)
    return torch.logical_and(seen, k_pos > -1)
""",
        "query by query": """
def every_second(q_pos, k_pos, window=None, sinks=0):
    rows = []
    for q in q_pos:
        gap = q - k_pos
        rows.append((gap >= 0) & (k_pos >= 0) & (gap % 2 == 0))
    return torch.stack(rows)
""",
        "number by number": """
def every_second(q_pos, k_pos, window=None, sinks=0):
    def sees(q, k):
        return 0 <= k <= q and (q - k) % 2 == 0

    rows = [[sees(q, k) for k in k_pos.tolist()] for q in q_pos.tolist()]
    return torch.tensor(rows, device=k_pos.device)
""",
        "bits": """
def every_second(q_pos, k_pos, window=None, sinks=0):
    q, k = torch.meshgrid(q_pos, k_pos, indexing="ij")
    return ~((q ^ k) & 1).bool() & visible(q_pos, k_pos)
""",
        "masked in place": """
def every_second(q_pos, k_pos, window=None, sinks=0):
    mask = visible(q_pos, k_pos)
    mask[(q_pos[:, None] - k_pos) % 2 == 1] = False
    return mask
""",
        "other names for what is unused": """
def every_second(q_pos, k_pos, *unused):
    d = torch.sub(q_pos[:, None], k_pos)
    return d.ge(0).logical_and(k_pos.ge(0)).logical_and(d.bitwise_and(1).eq(0))
""",
    },
    "slot_of": {
        "one expression": """
def slot_of(position, window, sinks=0):
    return position if position < sinks else sinks + (position - sinks) % window
""",
        "a loop": """
def slot_of(position, window, sinks=0):
    if position >= sinks + window:
        position -= (position - sinks) // window * window
    return position
""",
        "min and max": """
def slot_of(position, window, sinks=0):
    return min(position, sinks) + max(position - sinks, 0) % window
""",
        "divmod": """
def slot_of(position, window, sinks=0):
    after = position - sinks
    if after < 0:
        return position
    _, rest = divmod(after, window)
    return rest + sinks
""",
        "the last slot is a sink as well": """
def slot_of(position, window, sinks=0):
    if position < sinks + window:
        return position
    return sinks + (position - sinks) % window
""",
    },
}

BOTH = "a * cos - b * sin, a * sin + b * cos"
EVEN = "visible(q_pos, k_pos) & (gap % 2 == 0)"
WRONG = {
    "key_head": {
        "dealt like cards": ("h // group", "h % n_kv_head", "neighbours"),
        "divided by the KV heads": ("h // group", "h // n_kv_head", "divide it by"),
        "the place in the group": ("h // group", "h % group", "within its group"),
        "a float": ("h // group", "h / group", "with //"),
        "rounded": ("h // group", "round(h / group)", "nearest"),
        "rounded up": ("h // group", "-(-h // group)", "rounded up"),
        "its own": ("h // group", "h", "its own KV head"),
        "from 1": ("h // group", "h // group + 1", "numbered from 0"),
        "backwards": ("h // group", "n_kv_head - 1 - h // group", "the groups are"),
        "the size": ("h // group", "group", "the group size"),
        "the first query head": ("h // group", "h // group * group", "multiply"),
        "two in a group": ("n_head // n_kv_head", "2", "two query heads"),
        "upside down": ("n_head // n_kv_head", "n_kv_head // n_head", "upside down"),
        "the difference": ("n_head // n_kv_head", "max(n_head - n_kv_head, 1)", "difference"),
        "the last one for the rest": ("h // group", "min(h, n_kv_head - 1)", "past the last"),
        "one early": ("h // group", "(h + 1) // group", "too early"),
        "a whole float": ("h // group", "h // (n_head / n_kv_head)", "float"),
        "a list": ("return h // group", "return [h // group]", "integer"),
        "always the first": ("h // group", "0", "MQA"),
    },
    "turn_arrow": {
        "degrees": ("(angle)", "(math.radians(angle))", "radians"),
        "clockwise": (BOTH, "a * cos + b * sin, b * cos - a * sin", "clockwise"),
        "the wrong order": (BOTH, "a * sin + b * cos, a * cos - b * sin", "wrong order"),
        "the new a": (
            f"return {BOTH}",
            "a = a * cos - b * sin\n    b = a * sin + b * cos\n    return a, b",
            "new a",
        ),
        "sine and cosine exchanged": (
            "math.cos(angle)\n    sin = math.sin(angle)",
            "math.sin(angle)\n    sin = math.cos(angle)",
            "are swapped",
        ),
        "a mirror": (BOTH, "a * cos + b * sin, a * sin - b * cos", "mirror"),
        "two plus": ("cos - b", "cos + b", "both lines have a plus"),
        "two minus": ("sin + b", "sin - b", "both lines have a minus"),
        "put at the angle": (BOTH, "math.hypot(a, b) * cos, math.hypot(a, b) * sin", "turn it by"),
        "normalised": (
            f"return {BOTH}",
            f"r = math.hypot(a, b) or 1\n    return [x / r for x in ({BOTH})]",
            "arrow is normalised",
        ),
        "one number": (f"return {BOTH}", "return a * cos - b * sin", "first number"),
        "a complex number": (f"return {BOTH}", f"return complex({BOTH})", "complex"),
        "rounded": (f"return {BOTH}", f"return [round(x, 2) for x in ({BOTH})]", "rounded"),
        "half the angle": ("(angle)", "(angle / 2)", "half the angle"),
        "the angle in turns": ("(angle)", "(2 * math.pi * angle)", "turns"),
        "the arctangent": (
            f"return {BOTH}",
            "phi = math.atan(b / a) + angle\n    return math.hypot(a, b) * math.cos(phi), math.hypot(a, b) * math.sin(phi)",
            "ZeroDivisionError",
        ),
        "absolute values": (
            f"return {BOTH}",
            f"return [abs(x) for x in ({BOTH})]",
            "lose their signs",
        ),
        "the second cosine of the angle alone": ("b * cos", "cos", "length"),
    },
    "every_second": {
        "the future and empty slots": ("visible(q_pos, k_pos) & ", "", "future and empty slots"),
        "empty slots": ("visible(q_pos, k_pos)", "(gap >= 0)", "empty slot"),
        "not itself": ("gap % 2 == 0", "(gap % 2 == 0) & (gap > 0)", "sees no key"),
        "keys by place": ("gap % 2", "torch.arange(len(k_pos)) % 2", "it uses indices into"),
        "queries by place": (
            "gap = q_pos[:",
            "gap = torch.arange(len(q_pos))[:",
            "it uses indices into",
        ),
        "a single query by another rule": (
            "gap % 2",
            "gap % (2 + (len(q_pos) == 1))",
            "with a cache the logits differ",
        ),
        "floats": (" & (gap % 2 == 0)", ".float()", "must hold booleans"),
        "nothing skipped": ("gap % 2 == 0", "gap // 8 * 0 == 0", "even gap"),
        "the other half": ("% 2 == 0", "% 2 == 1", "wrong half"),
        "even keys": ("gap % 2", "k_pos % 2", "even positions"),
        "every third": ("% 2", "% 3", "modulo 2"),
        "a quotient": ("gap % 2", "gap // 2", "remainder"),
        "or": (") & (gap", ") | (gap", "joined by |"),
        "turned": (EVEN, f"({EVEN}).T", "mask is transposed"),
        "columns cut out": (EVEN, "visible(q_pos, k_pos)[:, ::2]", "cut out"),
        "hidden by a slice": (
            f"return {EVEN}",
            "mask = visible(q_pos, k_pos)\n    mask[:, 1::2] = False\n    return mask",
            "it uses indices into",
        ),
        "True is hidden": (EVEN, f"~({EVEN})", "mask is inverted"),
        "float32": ("q_pos[:, None]", "q_pos.float()[:, None]", "float32"),
        "the window": (
            EVEN,
            f"{EVEN} & (gap < (window or 1 << 60))",
            "leave it unused",
        ),
        "a triangle": (
            "visible(q_pos, k_pos)",
            "torch.ones(len(q_pos), len(k_pos)).tril().bool()",
            "triangle",
        ),
        "keyword arguments alone": (
            "window=None, sinks=0",
            "*, window=None, sinks=0",
            "positional",
        ),
        "both even": (
            "gap % 2 == 0",
            "(q_pos[:, None] % 2 == 0) & (k_pos % 2 == 0)",
            "odd positions",
        ),
        "absolute gaps": ("visible(q_pos, k_pos)", "(k_pos[None, :] >= 0)", "gap of at least 0"),
    },
    "slot_of": {
        "counted from the text's beginning": (
            "(position - sinks) % window",
            "position % window",
            "ring",
        ),
        "no sinks": (
            "    if position < sinks:\n        return position\n    return sinks + (position - sinks) % window",
            "    return position % window",
            "sinks are ignored",
        ),
        "not moved by the sinks": ("return sinks + ", "return ", "add `sinks`"),
        "sinks in the ring": (
            "    if position < sinks:\n        return position\n",
            "",
            "a sink's slot",
        ),
        "all slots a ring": (
            "    if position < sinks:\n        return position\n    return sinks + (position - sinks) % window",
            "    return position % (sinks + window)",
            "all slots form the ring",
        ),
        "the window holds the sinks": (
            "% window",
            "% max(window - sinks, 1)",
            "sinks are subtracted",
        ),
        "one too short": ("% window", "% max(window - 1, 1)", "too short"),
        "one too long": ("% window", "% (window + 1)", "too long"),
        "never turns": (" % window", "", "the ring never"),
        "stays at the end": (
            "sinks + (position - sinks) % window",
            "min(position, sinks + window - 1)",
            "last slot",
        ),
        "the quotient": ("% window", "// window", "quotient"),
        "backwards": (
            "(position - sinks) % window",
            "window - 1 - (position - sinks) % window",
            "backwards",
        ),
        "one sink less": ("position < sinks", "position < sinks - 1", "last sink"),
        "sinks in slot 0": ("        return position\n", "        return 0\n", "slot 0"),
        "nothing for a sink": ("        return position\n", "        return None\n", "sink"),
        "a float": ("% window", "% window + 0.0", "integer"),
        "from 1": ("return sinks +", "return 1 + sinks +", "slots"),
        "one further": ("(position - sinks)", "(position - sinks + 1)", "the ring's slots"),
        "sinks last": (
            "        return position\n    return sinks + ",
            "        return window + position\n    return ",
            "come last",
        ),
        "no default": ("sinks=0", "sinks", "TypeError"),
    },
}
