"""Plausible wrong answers to the blanks of notebook 01, and what the judge says of each."""

PAIR = "def one_window(data, start, block_size):\n    stop = start + block_size\n    "
HEAD = """\
def attention_weights(q, k):
    T, hs = q.shape
    scores, mask = q @ k.T / hs**0.5, torch.ones(T, T).tril().bool()
    """
UNIFORM = "def uniform_loss(vocab_size):\n    return "
STEP = "def one_step(model, optimizer, x, y):\n    _, loss = model(x, y)\n    "

WRONG = {
    "one-window": [
        (f"{PAIR}return data[start:stop], data[start:stop]", "learns to copy"),
        (f"{PAIR}return data[start:stop], data[start + 1 : stop]", "has a target too"),
        (f"{PAIR}return data[start:stop], data[start - 1 : stop - 1]", "the token before each"),
        (f"{PAIR}return data[start : stop + 1], data[start + 1 :]", "x has block_size tokens"),
    ],
    "attention-weights": [
        (f"{HEAD}return scores.softmax(-1)", "the future is not hidden"),
        (f"{HEAD}return scores.masked_fill(~mask, 0).softmax(-1)", "exp(0) is 1"),
        (f"{HEAD}return scores.softmax(-1) * mask", "hide after the softmax"),
        (f"{HEAD}return scores.masked_fill(mask, -1e9).softmax(-1)", "yours is"),
        (
            f"{HEAD}return (q @ k.T).masked_fill(~mask, float('-inf')).softmax(-1)",
            "not divided by √hs",
        ),
        (f"{HEAD}return scores.masked_fill(~mask, float('-inf')).softmax(0)", "down the columns"),
        (
            f"{HEAD}return scores.masked_fill(~mask.T, float('-inf')).softmax(-1)",
            "the past is hidden, not the future",
        ),
        (f"{HEAD}return (scores.masked_fill(~mask, float('-inf')).softmax(-1) @ k)", "are (5, 4)"),
    ],
    "uniform-loss": [
        (f"{UNIFORM}1 / vocab_size", "the probability of each character"),
        (f"{UNIFORM}log(1 / vocab_size)", "the sign is turned"),
        (f"{UNIFORM}log(vocab_size) / log(2)", "in bits"),
        (f"{UNIFORM}vocab_size", "hesitates between"),
    ],
    "one-step": [
        (f"{STEP}loss.backward()\n    optimizer.step()\n    return loss.item()", "still there"),
        (f"{STEP}loss.backward()\n    optimizer.zero_grad()\n    optimizer.step()", "do not move"),
        (
            f"{STEP}optimizer.zero_grad()\n    loss.backward()\n    optimizer.step()",
            "you return None",
        ),
    ],
}
