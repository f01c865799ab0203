# ruff: noqa: E501 (code in strings)
"""Answers to the blanks of notebook 07: right ones in other styles, wrong ones by misconception."""

RIGHT = {
    "tokens_gained": {
        "zip and break": """
def tokens_gained(proposals, choices):
    gained = []
    for proposal, choice in zip(proposals, choices):
        if proposal != choice:
            return gained + [choice]
        gained.append(choice)
    gained.append(choices[-1])
    return gained
""",
        "the first difference by next": """
def tokens_gained(proposals, choices):
    n = next((i for i, p in enumerate(proposals) if p != choices[i]), len(proposals))
    return proposals[:n] + [choices[n]]
""",
        "enumerate over the choices": """
def tokens_gained(proposals, choices):
    out = []
    for i, token in enumerate(choices):
        out.append(token)
        if i == len(proposals) or proposals[i] != token:
            break
    return out
""",
        "itertools": """
from itertools import takewhile

def tokens_gained(proposals, choices):
    right = [*takewhile(lambda pair: pair[0] == pair[1], zip(proposals, choices))]
    return choices[: len(right) + 1]
""",
        "recursion": """
def tokens_gained(proposals, choices):
    if not proposals or proposals[0] != choices[0]:
        return choices[:1]
    return choices[:1] + tokens_gained(proposals[1:], choices[1:])
""",
        "tensors and a cumulative product": """
def tokens_gained(proposals, choices):
    same = torch.tensor(proposals, dtype=torch.long) == torch.tensor(choices[:-1], dtype=torch.long)
    n = int(same.long().cumprod(0).sum())
    return choices[: n + 1]
""",
        "a generator": """
def tokens_gained(proposals, choices):
    for i in range(len(choices)):
        yield choices[i]
        if i < len(proposals) and choices[i] != proposals[i]:
            return
""",
    },
    "total_variation": {
        "torch.abs and mul": """
def total_variation(p, q):
    return 0.5 * torch.abs(p - q).sum(dim=-1)
""",
        "what p has more": """
def total_variation(p, q):
    return (p - q).clamp(min=0).sum(-1)
""",
        "one less the overlap": """
def total_variation(p, q):
    return 1 - torch.minimum(p, q).sum(-1)
""",
        "the 1-norm": """
def total_variation(p, q):
    return torch.linalg.vector_norm(p - q, ord=1, dim=-1) / 2
""",
        "larger and smaller": """
def total_variation(p, q):
    return (torch.maximum(p, q) - torch.minimum(p, q)).sum(-1).div(2)
""",
        "in float64": """
def total_variation(p, q):
    return F.l1_loss(p.double(), q.double(), reduction="none").sum(-1) / 2
""",
        "torch.where": """
def total_variation(p, q):
    return torch.where(p > q, p - q, torch.zeros_like(p)).sum(p.ndim - 1)
""",
        "einsum": """
def total_variation(p, q):
    return torch.einsum("...v->...", (p - q).abs()) / 2
""",
    },
    "expected_gain": {
        "the closed form": """
def expected_gain(a, k):
    if a == 1:
        return k + 1
    return (1 - a ** (k + 1)) / (1 - a)
""",
        "a running power": """
def expected_gain(a, k):
    gain = 1.0
    power = 1.0
    for _ in range(k):
        power *= a
        gain += power
    return gain
""",
        "Horner": """
def expected_gain(a, k):
    gain = 1
    for _ in range(k):
        gain = 1 + a * gain
    return gain
""",
        "outcome by outcome": """
def expected_gain(a, k):
    stopped = sum((i + 1) * a**i * (1 - a) for i in range(k))
    return stopped + (k + 1) * a**k
""",
        "recursion": """
def expected_gain(a, k):
    return 1.0 if k == 0 else 1 + a * expected_gain(a, k - 1)
""",
        "a tensor": """
def expected_gain(a, k):
    return torch.pow(torch.tensor(float(a)), torch.arange(k + 1)).sum()
""",
        "math.pow and fsum": """
def expected_gain(a, k):
    return math.fsum(math.pow(a, i) for i in range(0, k + 1))
""",
    },
    "MyDraft": {
        "a loop backwards": """
from nanogpt.engines.drafts import Draft

class MyDraft(Draft):
    def begin(self, prompt, sampling):
        def guess(text, noise):
            tokens = text[0].tolist()
            for i in range(len(tokens) - 2, -1, -1):
                if tokens[i] == tokens[-1]:
                    return torch.tensor([[tokens[i + 1]]], device=text.device)
            return None
        return guess
""",
        "a dict of what followed": """
from nanogpt.engines.drafts import Draft

class MyDraft(Draft):
    def begin(self, prompt, sampling):
        def guess(text, noise):
            row = text[0].tolist()
            followed = dict(zip(row, row[1:]))
            if row[-1] in followed:
                return text.new_tensor([[followed[row[-1]]]])
        return guess
""",
        "a method": """
from nanogpt.engines.drafts import Draft

class MyDraft(Draft):
    def begin(self, prompt, sampling):
        return self.guess

    def guess(self, text, noise):
        *before, last = text[0].tolist()
        if last not in before:
            return None
        place = len(before) - 1 - before[::-1].index(last)
        return text[:, place + 1 : place + 2]
""",
        "a lambda, and torch.where": """
from nanogpt.engines.drafts import Draft

def latest(text):
    places = torch.where(text[0][:-1] == text[0][-1])[0]
    if places.numel() == 0:
        return None
    return text[0][places.max() + 1].reshape(1, 1)

class MyDraft(Draft):
    def begin(self, prompt, sampling):
        return lambda text, noise: latest(text)
""",
        "the package's look-up": """
from nanogpt.engines.drafts import PromptLookup

class MyDraft(PromptLookup):
    def __init__(self, k=4):
        super().__init__(1, k)
""",
    },
}

COUNT = "    n = 0\n    while n < len(proposals) and proposals[n] == choices[n]:\n        n += 1\n"
SUM = "sum(a**i for i in range(k + 1))"
FOUND = "before = (text[0, :-1] == text[0, -1]).nonzero()"
SAID = "return text[:, before[-1] + 1] if len(before) else None"
WRONG = {
    "tokens_gained": {
        "the model's own token dropped": (": n + 1", ": n", "drop"),
        "all choices": (": n + 1", ":", "choices after a"),
        "one choice too many": (": n + 1", ": n + 2", "one choice after"),
        "the proposals up to the wrong one": (
            "return choices[: n + 1]",
            "return proposals[: n + 1] if n < len(proposals) else choices",
            "wrong proposal itself",
        ),
        "agreement counted anywhere": (
            COUNT,
            "    n = sum(p == c for p, c in zip(proposals, choices))\n",
            "agree by chance",
        ),
        "zip ends before the last choice": (
            "",
            "def tokens_gained(proposals, choices):\n    out = []\n    for p, c in zip(proposals, choices):\n        out.append(c)\n        if p != c:\n            break\n    return out\n",
            "your loop ends",
        ),
        "only the agreed ones, filtered": (
            "",
            "def tokens_gained(proposals, choices):\n    return [p for p, c in zip(proposals, choices) if p == c]\n",
            "drop",
        ),
        "the last choice added always": (
            "return choices[: n + 1]",
            "return choices[:n] + [choices[-1]]",
            "choices[n]",
        ),
        "a count": ("return choices[: n + 1]", "return n + 1", "a number is returned"),
        "any proposal": (" == choices[n]", " in choices", "anywhere among the choices"),
        "identity": (" == choices[n]", " is choices[n]", "`is` checks whether"),
        "no bound": ("n < len(proposals) and ", "", "past the last proposal"),
        "token 0 ends it": (
            "n < len(proposals) and",
            "n < len(proposals) and proposals[n] and",
            "token 0",
        ),
        "until they agree": ("==", "!=", "while proposal and choice differ"),
        "proposals returned": ("return choices", "return proposals", "gains"),
        "pop from the choices": (
            "    return choices[: n + 1]",
            "    while len(choices) > n + 1:\n        choices.pop()\n    return choices",
            "changes the list `choices`",
        ),
        "nothing without proposals": (
            "    n = 0\n",
            "    if not proposals:\n        return []\n    n = 0\n",
            "plain step",
        ),
        "nothing returned": ("return choices", "choices", "it returned None"),
    },
    "total_variation": {
        "no absolute values": ("abs().", "", "absolute"),
        "not halved": (" / 2", "", "counted twice"),
        "the largest difference": (".sum(-1) / 2", ".amax(-1)", "largest difference"),
        "a mean": (".sum(-1) / 2", ".mean(-1)", "a mean divides"),
        "all pairs in one": (".sum(-1)", ".sum()", "sum over the last"),
        "over the pairs": ("sum(-1)", "sum(0)", "over the pairs"),
        "dimension 1": ("sum(-1)", "sum(1)", "dimension 1 is the last"),
        "squares": (".abs()", ".square()", "squares"),
        "keepdim": ("sum(-1)", "sum(-1, keepdim=True)", "keepdim"),
        "a softmax again": ("(p - q)", "(p.softmax(-1) - q.softmax(-1))", "softmax"),
        "in place": ("(p - q)", "p.sub_(q)", "changes `p`"),
        "absolute after the sum": ("abs().sum(-1)", "sum(-1).abs()", "each difference"),
        "no tensor": (".sum(-1) / 2", ".sum(-1).div(2).tolist()", "list of Python numbers"),
        "a plus": ("p - q", "p + q", "difference"),
        "squeezed": (".sum(-1)", ".sum(-1).squeeze()", "squeeze"),
        "positive part, halved": (".abs()", ".clamp(min=0)", "do not halve it again"),
        "a mean of everything": (".sum(-1) / 2", ".mean()", "One distance"),
        "divided by the tokens": ("/ 2", "/ p.shape[-1]", "a mean divides"),
        "float32": ("(p - q)", "(p.float() - q.float())", "float32 loses float64's"),
    },
    "expected_gain": {
        "the proposals alone": ("range(k + 1)", "range(1, k + 1)", "only the proposals"),
        "1 + k a": (SUM, "1 + k * a", "only if the first one was right"),
        "k a": (SUM, "k * a", "k · a"),
        "the last left out": ("range(k + 1)", "range(k)", "left out"),
        "one power too many": ("range(k + 1)", "range(k + 2)", "too many"),
        "0 / 0 at 1": (SUM, "(1 - a ** (k + 1)) / (1 - a)", "divides 0 by 0"),
        "k at 1": (
            SUM,
            "k if a == 1 else (1 - a ** (k + 1)) / (1 - a)",
            "the model's own is one more",
        ),
        "closed form with k": (SUM, "k + 1 if a == 1 else (1 - a**k) / (1 - a)", "left out"),
        "without an end": (SUM, "1 / (1 - a) if a < 1 else k + 1", "infinitely many proposals"),
        "all or nothing": (SUM, "1 + k * a**k", "or none"),
        "rejected": ("a**i", "(1 - a) ** i", "accepted"),
        "rounded": (SUM, f"round({SUM}, 2)", "two digits"),
        "an integer": (SUM, f"int({SUM})", "mean is truncated"),
        "weights i": ("a**i for", "i * a**i for", "i times, from 0 on"),
        "no division": (SUM, "1 - a ** (k + 1)", "times 1 - a"),
        "an outcome forgotten": (
            SUM,
            "sum((i + 1) * a**i * (1 - a) for i in range(k))",
            "left out",
        ),
        "zero at zero": ("    return", "    if not a:\n        return 0\n    return", "plain step"),
        "base and exponent exchanged": ("a**i", "i**a", "base and exponent"),
        "simulated": (
            SUM,
            "sum(int((torch.rand(k) < a).long().cumprod(0).sum()) + 1 for _ in range(2000)) / 2000",
            "expected 1.75, got",
        ),
    },
    "MyDraft": {
        "the earliest place": ("before[-1]", "before[0]", "latest"),
        "the last token again": ("before[-1] + 1", "before[-1]", "last token again"),
        "two places further": ("before[-1] + 1", "before[-1] + 2", "guesses the token"),
        "no place to ask": (" if len(before) else None", "", "may be empty"),
        "the last token finds itself": ("text[0, :-1]", "text[0]", "finds itself"),
        "the first idea without a place": ("else None", "else text[:, -1:]", "if the last token"),
        "one dimension": ("text[:, before[-1] + 1]", "text[0, before[-1] + 1]", "(1, 1)"),
        "a number": ("text[:, before[-1] + 1]", "int(text[0, before[-1] + 1])", "Python number"),
        "the place": (
            "text[:, before[-1] + 1]",
            "(before[-1] + 1)[None]",
            "the position is",
        ),
        "the prompt": (FOUND, f"text = prompt\n            {FOUND}", "prompt"),
        "what stood before": ("before[-1] + 1", "before[-1] - 1", "what came before the token"),
        "no function": ("        return guess\n", "", "begin returns nothing"),
        "a token from begin": ("return guess\n", "return guess(prompt, None)\n", "begin"),
        "nothing returned from guess": (SAID, SAID.replace("return ", ""), "it never guesses"),
        "a float": ("+ 1]", "+ 1].float()", "float"),
        "a guess of 0 is none": (
            SAID,
            "token = text[:, before[-1] + 1] if len(before) else None\n            return token if token is not None and token.any() else None",
            "token 0",
        ),
        "without super": (
            '    def begin(self, prompt, sampling):\n        """A',
            '    def __init__(self, k=4):\n        self.n = k\n\n    def begin(self, prompt, sampling):\n        """A',
            "the k of",
        ),
        "written into the text": (
            FOUND,
            f"last = text[0, -1].clone()\n            text[0, -1] = -1\n            {FOUND.replace('text[0, -1])', 'last)')}",
            "changes `text`",
        ),
        "all that followed": ("before[-1] + 1]", "int(before[-1]) + 1 :]", "return only the"),
        "not a neighbour": ("text[0, :-1]", "text[0, :-2]", "left out"),
        "by noise": (SAID, "return noise.argmin(-1, keepdim=True)", "noise"),
    },
}
