"""Plausible wrong answers to the blanks of notebook 07, and what the judge says of each."""

WRONG = {
    "tokens-gained": [
        (
            """
def tokens_gained(proposals, choices):
    return choices[: matching(proposals, choices)]
""",
            "drop the 5",
        ),
        (
            """
def tokens_gained(proposals, choices):
    return choices
""",
            "belongs to another text",
        ),
        (
            """
def tokens_gained(proposals, choices):
    right = [a for a, b in zip(proposals, choices) if a == b]
    return right + [choices[len(right)]]
""",
            "agree by chance",
        ),
    ],
    "total-variation": [
        (
            """
def total_variation(p, q):
    return (p - q).abs().sum(-1)
""",
            "take half the sum",
        ),
        (
            """
def total_variation(p, q):
    return (p - q).sum(-1) / 2
""",
            "take absolute values",
        ),
        (
            """
def total_variation(p, q):
    return (p - q).abs().sum() / 2
""",
            "sum over the last dimension",
        ),
    ],
    "expected-gain": [
        (
            """
def expected_gain(a, k):
    return 1 + a * k
""",
            "only if the first one was right too",
        ),
        (
            """
def expected_gain(a, k):
    return sum(a**i for i in range(1, k + 1))
""",
            "the proposals alone",
        ),
        (
            """
def expected_gain(a, k):
    return (1 - a ** (k + 1)) / (1 - a)
""",
            "divides 0 by 0",
        ),
    ],
    "my-draft": [
        (
            """
class MyDraft(Draft):
    def begin(self, prompt, sampling):
        return lambda text, noise: text[:, -1:]
""",
            "the last token: what followed",
        ),
        (
            """
class MyDraft(Draft):
    def begin(self, prompt, sampling):
        def guess(text, noise):
            before = (text[0, :-1] == text[0, -1]).nonzero()
            return text[:, before[0] + 1] if len(before) else None

        return guess
""",
            "take the latest place",
        ),
        (
            """
class MyDraft(Draft):
    def begin(self, prompt, sampling):
        return lambda text, noise: int(text[0, -1])
""",
            "a guess is a tensor",
        ),
    ],
}
