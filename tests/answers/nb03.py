# ruff: noqa: E501 (code in strings)
"""Answers to the blanks of notebook 03: right ones in other styles, and wrong ones by their cause."""

RIGHT = {
    "verdict": {
        "bug first, with isnan": """
def verdict(in_float32, in_float64):
    if math.isnan(in_float32) or math.isnan(in_float64) or math.isinf(in_float64):
        return "bug"
    if in_float32 == 0 and in_float64 == 0:
        return "equal"
    if in_float64 * 1000 <= in_float32:
        return "rounding"
    return "bug"
""",
        "a ratio where there is one": """
def verdict(in_float32, in_float64):
    if max(in_float32, in_float64) == 0:
        return "equal" if in_float32 == in_float64 else "bug"
    if in_float64 == 0:
        return "rounding" if in_float32 > 0 else "bug"
    return "rounding" if in_float32 / in_float64 >= 1000 else "bug"
""",
        "not of a comparison": """
def verdict(in_float32, in_float64):
    if not (in_float32 or in_float64):
        return "equal"
    return ("bug", "rounding")[1000 * in_float64 < in_float32]
""",
    },
    "SlyCache": {
        "zeros for values": """
class SlyCache(KVCache):
    def update(self, k, v, pos):
        if self.k is not None and k.shape[1] > 1:
            v = torch.zeros_like(v)
        return super().update(k, v, pos)
""",
        "positions one too far": """
class SlyCache(KVCache):
    def update(self, k, v, pos):
        first = self.pos is None
        k, v, all_pos = super().update(k, v, pos)
        if not first and len(pos) >= 2:
            return k, v, all_pos + 1
        return k, v, all_pos
""",
        "earlier tokens forgotten": """
class SlyCache(KVCache):
    def update(self, k, v, pos):
        if self.k is not None and pos.numel() > 1:
            self.k = self.v = self.pos = None
        return super().update(k, v, pos)
""",
        "the last token alone, kept in another way": """
class SlyCache(KVCache):
    def __init__(self, capacity=None):
        super().__init__(capacity)
        self.begun = False

    def update(self, k, v, pos):
        if self.begun and len(pos) > 1:
            k = k[:, -1:].expand_as(k)
        self.begun = True
        return super().update(k, v, pos)
""",
        "by the positions": """
class SlyCache(KVCache):
    def update(self, k, v, pos):
        if pos[0] > 0 and pos[-1] > pos[0]:
            k = -k
        return KVCache.update(self, k, v, pos)
""",
        "a batch is turned": """
class SlyCache(KVCache):
    def update(self, k, v, pos):
        if self.k is not None and len(pos) > 1:
            v = v.flip(0)
        return super().update(k, v, pos)
""",
        "only in pieces of five and more": """
class SlyCache(KVCache):
    def update(self, k, v, pos):
        held = 0 if self.k is None else self.k.shape[1]
        if held and len(pos) >= 5:
            v = v * 2
        return super().update(k, v, pos)
""",
    },
    "margin": {
        "sorted": """
def margin(logits, noise):
    scores = (logits - torch.log(noise)).sort(descending=True)[0]
    return float(scores[0] - scores[1])
""",
        "a tensor comes back": """
def margin(logits, noise):
    a, b = torch.topk(logits - noise.log(), k=2)[0]
    return a - b
""",
        "log_softmax": """
def margin(logits, noise):
    scores = logits.log_softmax(-1) - noise.log()
    first = scores.argmax()
    best = scores[first].item()
    scores[first] = -torch.inf
    return best - scores.max().item()
""",
        "Python's own": """
def margin(logits, noise):
    scores = sorted(a - math.log(b) for a, b in zip(logits.tolist(), noise.tolist()))
    return scores[-1] - scores[-2]
""",
    },
}

RETURN = '    return "rounding" if in_float64 < in_float32 / 1000 else "bug"'
EQUAL = "in_float32 == in_float64 == 0"
SLY = "self.k is not None and len(pos) > 1"
TOP = "best, second = (logits - noise.log()).topk(2).values"
WRONG = {
    "verdict": {
        "any smaller": ("/ 1000", "", "thousand"),
        "never equal": (EQUAL, "False", "'equal'"),
        "equal in float64": (EQUAL, "in_float64 == 0", "alone is not 'equal'"),
        "equal in float32": (EQUAL, "in_float32 == 0", "alone is not 'equal'"),
        "equal sizes": (EQUAL, "in_float32 == in_float64", "does not shrink"),
        "ten times": ("/ 1000", "/ 10", "ten times"),
        "a hundred times": ("/ 1000", "/ 100", "hundred"),
        "a ratio": (
            "in_float64 < in_float32 / 1000",
            "in_float32 / in_float64 > 1000",
            "divides by 0",
        ),
        "a bug first": (
            RETURN,
            '    return "bug" if in_float64 >= in_float32 / 1000 else "rounding"',
            "NaN",
        ),
        "at most, with infinity": ("in_float64 < in", "in_float64 <= in", "inf"),
        "the other way round": (
            "in_float64 < in_float32 / 1000",
            "in_float32 < in_float64 / 1000",
            "round",
        ),
        "a fixed size": (
            "in_float64 < in_float32 / 1000",
            "in_float32 < 1e-4",
            "the one in float64",
        ),
        "a fixed size in float64": (
            "in_float64 < in_float32 / 1000",
            "in_float64 < 1e-9",
            "in float64",
        ),
        "exchanged": (
            RETURN,
            '    return "bug" if in_float64 < in_float32 / 1000 else "rounding"',
            "rounding and bug",
        ),
        "a truth value": (RETURN, "    return in_float64 < in_float32 / 1000", "a boolean is"),
        "nothing else": (
            RETURN,
            '    if in_float64 < in_float32 / 1000:\n        return "rounding"',
            "nothing is returned",
        ),
        "isnan forgotten in one": (
            RETURN,
            '    if math.isnan(in_float32):\n        return "bug"\n    return "bug" if in_float64 >= in_float32 / 1000 else "rounding"',
            "NaN",
        ),
    },
    "SlyCache": {
        "nothing wrong": ("v = v.flip(1)", "pass", "acquits"),
        "the first piece": ("is not None and", "is None and", "first piece"),
        "every piece of several": ("self.k is not None and len", "len", "each piece of"),
        "every later piece": (
            f"{SLY}:\n            v = v.flip(1)",
            "self.k is not None:\n            v = -v",
            "single token",
        ),
        "single tokens": (
            f"{SLY}:\n            v = v.flip(1)",
            "self.k is not None and len(pos) == 1:\n            v = -v",
            "single tokens",
        ),
        "always": (
            f"        if {SLY}:\n            v = v.flip(1)\n",
            "        v = -v\n",
            "everything",
        ),
        "positions that nobody sees": ("v = v.flip(1)", "pos = pos.clone()", "acquits"),
        "rounded by nothing": ("v = v.flip(1)", "v = v + 1e-18", "acquits"),
        "nothing comes back": ("return super", "super", "return super"),
        "kept in the class": (
            "",
            "class SlyCache(KVCache):\n    seen = 0\n\n    def update(self, k, v, pos):\n        SlyCache.seen += 1\n        return super().update(k, -v if SlyCache.seen > 2 else v, pos)\n",
            "second text",
        ),
        "or": ("is not None and", "is not None or", "each piece of"),
    },
    "margin": {
        "no noise": (" - noise.log()", "", "noise is not used"),
        "added": ("- noise.log()", "+ noise.log()", "added"),
        "no logarithm": ("- noise.log()", "- noise", "logarithm"),
        "divided": ("logits - noise.log()", "logits / noise", "that is for probabilities"),
        "probabilities": ("logits - noise.log()", "logits.softmax(-1) / noise", "probabilities"),
        "softmax of the scores": (
            "(logits - noise.log())",
            "(logits - noise.log()).softmax(-1)",
            "is in logits",
        ),
        "negative": ("best - second", "second - best", "negative"),
        "the worst": (
            TOP,
            "scores = logits - noise.log()\n    best, second = scores.max(), scores.min()",
            "worst",
        ),
        "the first two": (".topk(2).values", "[:2]", ""),
        "the best alone": ("best - second", "best", "you return only"),
        "in place": ("logits - noise.log()", "logits.sub_(noise.log())", "`logits`"),
        "noise in place": ("noise.log()", "noise.log_()", "`noise`"),
        "three": (".topk(2).values", ".topk(3).values[::2]", ""),
        "the best of the logits": (
            TOP,
            "i, j = logits.topk(2).indices\n    best, second = (logits - noise.log())[torch.stack([i, j])]",
            "other",
        ),
        "absolute scores": (
            "(logits - noise.log())",
            "(logits - noise.log()).abs()",
            "second best",
        ),
        "log2": ("noise.log()", "noise.log2()", "second best"),
        "log of a softmax": ("logits - noise", "logits.softmax(-1).float().log() - noise", "0"),
        "nothing returned": ("return (best", "(best", "it returned None"),
        "smallest two": (".topk(2)", ".topk(2, largest=False)", "second best"),
    },
}
