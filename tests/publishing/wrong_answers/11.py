"""Plausible wrong answers to the blanks of notebook 11, and what the judge says of each."""

RATE = "def learning_rate(step, steps, warmup):\n    "
PARTS = """\
def accumulate(model, x, y, parts):
    total = 0.0
    for x_part, y_part in zip(x.chunk(parts), y.chunk(parts)):
        {}
        loss.backward()
        total += loss.item()
    return total
"""
MFU = "def mfu(chars, seconds, parameters, layers, width, block, peak):\n    "
WORK = f"{MFU}work = 6 * parameters + 12 * layers * width * block\n    "

WRONG = {
    "learning-rate": [
        (f"{RATE}return min(1, step / warmup) * (1 - step / steps)", "read for nothing"),
        (f"{RATE}return (step + 1) / warmup * (1 - step / steps)", "the rise stops at 1"),
        (
            f"{RATE}late = max(0, step - warmup) / (steps - warmup)\n"
            "    return min(1, (step + 1) / warmup) * (1 - late)",
            "your line begins after the warm-up",
        ),
        (f"{RATE}return 1 - step / steps", "the factor at step 0 is 0.1"),
        (f"{RATE}return min(1, (step + 1) / warmup)", "look at the fall"),
    ],
    "accumulate": [
        (PARTS.format("loss = model(x_part, y_part)[1]"), "twice too large"),
        (
            PARTS.format("model.zero_grad()\n        loss = model(x_part, y_part)[1] / parts"),
            "do not clear",
        ),
        (PARTS.format("loss = model(x, y)[1] / parts"), "called with [4, 4]"),
        (
            PARTS.format("loss = model(x_part, y_part)[1] / parts").replace(
                "total += ", "total = "
            ),
            "the loss is 12.5",
        ),
    ],
    "mfu": [
        (f"{MFU}return 6 * parameters * chars / seconds / peak", "attention is missing"),
        (f"{WORK}return peak / (work * chars / seconds)", "used / peak"),
        (f"{WORK}return work * chars / peak", "divide by the seconds"),
        (f"{WORK}return work * chars / seconds", "divide them by the peak"),
        (f"{WORK}return (work - 4 * parameters) * chars / seconds / peak", "the way forward alone"),
    ],
}
