"""Plausible wrong answers to the blanks of notebook 06, and what the judge says of each."""

WRONG = {
    "step-bytes": [
        (
            """
def step_bytes(n_weights, n_layer, n_head, head_size, tokens, itemsize=4):
    return (n_weights + n_layer * n_head * head_size * tokens) * itemsize
""",
            "there are two, a key and a value",
        ),
        (
            """
def step_bytes(n_weights, n_layer, n_head, head_size, tokens, itemsize=4):
    return (n_weights + 2 * n_head * head_size * tokens) * itemsize
""",
            "each of the 3 has its own",
        ),
        (
            """
def step_bytes(n_weights, n_layer, n_head, head_size, tokens, itemsize=4):
    return n_weights * itemsize + 2 * n_layer * n_head * head_size * tokens
""",
            "this is a count of numbers",
        ),
    ],
    "fastest": [
        (
            """
def fastest(flop, n_bytes, peak, bandwidth):
    return 1 / (flop / peak + n_bytes / bandwidth)
""",
            "you add the two times",
        ),
        (
            """
def fastest(flop, n_bytes, peak, bandwidth):
    return bandwidth / n_bytes
""",
            "arithmetic can be the limit too",
        ),
        (
            """
def fastest(flop, n_bytes, peak, bandwidth):
    return max(flop / peak, n_bytes / bandwidth)
""",
            "tokens per second are 1 over that",
        ),
    ],
    "round-row": [
        (
            """
def round_row(row):
    scale = max(row) / 127
    return [round(number / scale) for number in row], scale
""",
            "counts without its sign",
        ),
        (
            """
def round_row(row):
    scale = max(abs(number) for number in row) / 127
    return [int(number / scale) for number in row], scale
""",
            "int() cuts off",
        ),
        (
            """
def round_row(row):
    scale = max(abs(number) for number in row) / 127
    return [round(number / scale) for number in row], scale
""",
            "a row of zeros",
        ),
    ],
}
