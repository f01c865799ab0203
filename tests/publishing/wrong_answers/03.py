"""Plausible wrong answers to the blanks of notebook 03, and a piece of what the judge says."""


def function(name, arguments, body):
    return f"def {name}({arguments}):\n    {body}"


WRONG = {
    "race": [
        (function("race", "probs, noise", "return probs.argmax(-1, keepdim=True)"), "likeliest"),
        (
            function("race", "probs, noise", "return (probs * noise).argmax(-1, keepdim=True)"),
            "last to ring",
        ),
        (function("race", "probs, noise", "return torch.multinomial(probs, 1)"), "of its own"),
        (function("race", "probs, noise", "return (probs / noise).argmax()"), "(B, 1)"),
    ],
    "first-difference": [
        (function("first_difference", "a, b", "return int((a != b).sum())"), "not 0"),
        (
            function("first_difference", "a, b", "return int((a != b).int().argmax()) or None"),
            "0 counts as false",
        ),
        (
            function("first_difference", "a, b", "return int((a != b)[0].nonzero()[0])"),
            "raised IndexError",
        ),
    ],
    "margin": [
        (
            function("margin", "logits, noise", "a, b = logits.topk(2).values\n    return a - b"),
            "does not look at the noise",
        ),
        (
            function(
                "margin",
                "logits, noise",
                "a, b = (logits + noise.log()).topk(2).values\n    return a - b",
            ),
            "it adds log(noise)",
        ),
        (
            function(
                "margin",
                "logits, noise",
                "a, b = (logits.softmax(-1) / noise).topk(2).values\n    return a - b",
            ),
            "the margin is 1.0, not 0.4",
        ),
    ],
}
