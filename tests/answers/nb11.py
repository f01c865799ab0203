# ruff: noqa: E501 (code in strings)
"""Answers to the blanks of notebook 11: right ones in other styles, and wrong ones.

A wrong answer is what replaces what in the solution, and a part of the message about it.
"""

RISE = "min(1, (step + 1) / warmup)"
FALL = "(1 - step / steps)"
CHUNKS = "zip(x.chunk(parts), y.chunk(parts))"
WORK = "6 * parameters + 12 * layers * width * block"

RIGHT = {
    "learning_rate": {
        "branches": """
def learning_rate(step, steps, warmup):
    line = (steps - step) / steps
    if step + 1 < warmup:
        return (step + 1) / warmup * line
    return line
""",
        "a quotient": """
def learning_rate(step, steps, warmup):
    return min(warmup, step + 1) * (steps - step) / (warmup * steps)
""",
        "clipped by numpy": """
import numpy as np

def learning_rate(step, steps, warmup):
    return float(np.clip((step + 1) / warmup, 0, 1) * np.interp(step, [0, steps], [1, 0]))
""",
        "a tensor": """
def learning_rate(step, steps, warmup):
    rise = torch.tensor((step + 1) / warmup, dtype=torch.float64).clamp(max=1)
    return rise * (1 - step / steps)
""",
        "added up": """
def learning_rate(step, steps, warmup):
    rise = 0
    for _ in range(min(step + 1, warmup)):
        rise += 1 / warmup
    return rise - rise * step / steps
""",
    },
    "accumulate": {
        "indices": """
def accumulate(model, x, y, parts):
    n = len(x) // parts
    losses = []
    for i in range(parts):
        _, loss = model(x[i * n : (i + 1) * n], y[i * n : (i + 1) * n])
        (loss / parts).backward()
        losses.append(loss.item())
    return sum(losses) / parts
""",
        "every parts-th example": """
def accumulate(model, x, y, parts):
    total = 0
    for i in range(parts):
        loss = model(x[i::parts], y[i::parts])[1] / parts
        loss.backward()
        total = total + loss.detach()
    return total
""",
        "gradients divided at the end": """
def accumulate(model, x, y, parts):
    total = 0.0
    for part in zip(x.chunk(parts), y.chunk(parts)):
        logits, loss = model(*part)
        loss.backward()
        total += float(loss)
    for p in model.parameters():
        p.grad /= parts
    return total / parts
""",
        "weighed by examples, cleared first": """
def accumulate(model, x, y, parts):
    model.zero_grad()
    total = torch.zeros(())
    for a, b in zip(torch.tensor_split(x, parts), torch.tensor_split(y, parts)):
        loss = model(a, targets=b)[1] * len(a) / len(x)
        torch.autograd.backward(loss)
        total = total + loss.detach()
    return total.item()
""",
        "a gradient handed to backward": """
def accumulate(model, x, y, parts):
    losses = []
    for a, b in reversed(list(zip(x.split(len(x) // parts), y.split(len(y) // parts)))):
        loss = model(a, b)[1]
        loss.backward(torch.tensor(1 / parts, dtype=loss.dtype))
        losses.append(loss.detach())
    return torch.stack(losses).mean()
""",
    },
    "mfu": {
        "step by step": """
def mfu(chars, seconds, parameters, layers, width, block, peak):
    weights = 6 * parameters
    attention = 12 * layers * width * block
    speed = chars / seconds
    return speed * (weights + attention) / peak
""",
        "forward times three": """
def mfu(chars, seconds, parameters, layers, width, block, peak):
    forward = 2 * parameters + 2 * 2 * layers * width * block
    return 3 * forward * chars / (seconds * peak)
""",
        "seconds at the peak": """
def mfu(chars, seconds, parameters, layers, width, block, peak):
    at_best = chars * 6 * (parameters + 2 * layers * width * block) / peak
    return at_best / seconds
""",
    },
}

WRONG = {
    "learning_rate": {
        "begins at 0": ("(step + 1)", "step", "step 0 the"),
        "rises on": (RISE, "(step + 1) / warmup", "stops there"),
        "max for min": ("min(1", "max(1", "max(1, …)"),
        "no rise": ("return rise * ", "return ", "there is no rise"),
        "no fall": (f"rise * {FALL}", "rise", "there is no fall"),
        "one step late": ("/ warmup", "/ (warmup + 1)", "one step too late"),
        "ahead": ("(step + 1)", "(step + 2)", "rise is one step ahead"),
        "whole numbers": ("(step + 1) / warmup", "(step + 1) // warmup", "whole numbers"),
        "the line after the warm-up": (
            FALL,
            "(1 if step < warmup else 1 - (step - warmup) / (steps - warmup))",
            "begins after the warm-up",
        ),
        "the line to the last step": (
            FALL,
            "(1 - step / (steps - 1) if steps > 1 else 1)",
            "the line reaches",
        ),
        "the line to the last step, alone": (
            FALL,
            "(1 - step / (steps - 1))",
            "the line reaches",
        ),
        "the line ahead": (FALL, "(1 - (step + 1) / steps)", "line is one step ahead"),
        "a rising line": (FALL, "(step / steps)", "the line rises"),
        "the smaller one": (f"rise * {FALL}", f"min(rise, {FALL})", "smaller of the two"),
        "added": (f"rise * {FALL}", f"rise + {FALL}", "you add the"),
        "two pieces": (
            f"    return rise * {FALL}",
            f"    return rise if step < warmup else {FALL}",
            "missing during the warm-up",
        ),
        "a cosine": (FALL, "0.5 * (1 + math.cos(math.pi * step / steps))", "cosine"),
        "negative": (FALL, "-step / steps", "negative"),
        "the floor of the line": (FALL, "(1 - step // steps)", "there is no fall"),
        "a tenth at least": (FALL, "max(1 - step / steps, 0.1)", "a tenth"),
        "steps and warm-up exchanged": (
            "    rise",
            "    steps, warmup = warmup, steps\n    rise",
            "`steps` and `warmup`",
        ),
        "float16": (f"rise * {FALL}", f"torch.tensor(rise * {FALL}).half()", "0.09998"),
        "printed": (f"return rise * {FALL}", f"print(rise * {FALL})", "it returned None"),
    },
    "accumulate": {
        "not divided": (" / parts", "", "divide the loss of each part"),
        "divided afterwards": (
            " / parts\n        loss.backward()\n        total += loss.item()",
            "\n        loss.backward()\n        total += loss.item() / parts",
            "divide before backward()",
        ),
        "cleared in between": (
            "        loss = ",
            "        model.zero_grad()\n        loss = ",
            "cleared in between",
        ),
        "cleared at the end": (
            "    return total",
            "    model.zero_grad()\n    return total",
            "at the end",
        ),
        "no backward": ("        loss.backward()\n", "", "no gradient is computed"),
        "backward behind the loop": (
            "        loss.backward()\n        total += loss.item()\n",
            "        total += loss.item()\n    loss.backward()\n",
            "for the last part only",
        ),
        "one backward": (
            "",
            """def accumulate(model, x, y, parts):
    total = 0
    for a, b in zip(x.chunk(parts), y.chunk(parts)):
        total = total + model(a, b)[1] / parts
    total.backward()
    return total.item()
""",
            "all parts stay in memory",
        ),
        "the whole batch": (
            "",
            "def accumulate(model, x, y, parts):\n    loss = model(x, y)[1]\n    loss.backward()\n    return loss.item()\n",
            "read at once",
        ),
        "split": ("chunk", "split", "x.split(n)"),
        "y whole": (CHUNKS, "((part, y) for part in x.chunk(parts))", "split both"),
        "the last loss": ("total += loss.item()", "total = loss.item()", "only the last part's"),
        "divided twice": ("return total", "return total / parts", "divided twice"),
        "the sum of losses": (
            "total += loss.item()",
            "total += loss.item() * parts",
            "sum of all parts",
        ),
        "nothing": ("    return total\n", "", "it returned None"),
        "returned too early": ("    return total", "        return total", "only the first part"),
        "by the examples": ("[1] / parts", "[1] / len(x_part)", "divided by the"),
        "by all examples": ("[1] / parts", "[1] / len(x)", "already their mean"),
        "the logits": ("[1] / parts", "[0] / parts", "only for scalar outputs"),
        "no index": ("(x_part, y_part)[1]", "(x_part, y_part)", "TypeError"),
        "a step": (
            "    return total",
            "    with torch.no_grad():\n        for p in model.parameters():\n            p -= 0.1 * p.grad\n    return total",
            "your code updates",
        ),
        "eval mode": ("    total = 0.0", "    model.eval()\n    total = 0.0", "eval mode"),
        "the targets turned": (
            "zip(x.chunk(parts), y.chunk(parts))",
            "zip(x.chunk(parts), y.chunk(parts)[::-1])",
            "the gradient",
        ),
        "averaged gradients": (
            "    return total",
            "    for p in model.parameters():\n        p.grad /= parts\n    return total",
            "the gradient",
        ),
        "no gradients": (
            "    total = 0.0",
            "    torch.set_grad_enabled(False)\n    total = 0.0",
            "does not require grad",
        ),
    },
    "mfu": {
        "no attention": (" + 12 * layers * width * block", "", "attention is missing"),
        "no weights": ("6 * parameters + ", "", "weights are missing"),
        "no peak": (" / peak", "", "these are operations"),
        "no seconds": (" / seconds", "", "divide by the seconds"),
        "upside down": (
            "work * chars / seconds / peak",
            "peak / (work * chars / seconds)",
            "the fraction is",
        ),
        "no characters": ("work * chars", "work", "one character is counted"),
        "forward alone": ("6 * parameters", "2 * parameters", "2 operations per"),
        "attention by 6": ("12 *", "6 *", "attention is counted with 6"),
        "exchanged": (WORK, "12 * parameters + 6 * layers * width * block", "6 and 12 are swapped"),
        "a third": (WORK, "2 * parameters + 4 * layers * width * block", "a third"),
        "one layer": ("12 * layers *", "12 *", "one layer's"),
        "no block": (" * width * block", " * width", "block is missing"),
        "no width": (" * width * block", " * block", "width is missing"),
        "a square of the block": ("width * block", "width * block**2", "block is squared"),
        "in percent": ("/ peak", "/ peak * 100", "percent"),
        "multiplied seconds": ("chars / seconds", "chars * seconds", "you multiply by"),
        "precedence": ("/ seconds / peak", "/ (seconds / peak)", "needs no parentheses"),
        "layers of weights": ("6 * parameters", "6 * parameters * layers", "weights are counted"),
        "rounded": (
            "return work * chars / seconds / peak",
            "return round(work * chars / seconds / peak, 2)",
            "rounded",
        ),
        "whole numbers": ("/ peak", "// peak", "whole number"),
        "a text": (
            "return work * chars / seconds / peak",
            'return f"{work * chars / seconds / peak:.1%}"',
            "got 50.0%",
        ),
    },
}
