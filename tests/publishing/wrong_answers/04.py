"""Plausible wrong answers to the blanks of notebook 04, and a piece of what the judge says."""

HEAD = """
class MaskedHead(Head):
    def forward(self, x, pos):
        q, k, v, k_pos = self.query(x), self.key(x), self.value(x), pos
        if self.cache is not None:
            k, v, k_pos = self.cache.update(k, v, pos)
        T, S = len(pos), len(k_pos)
        return attend(q, k, v, {mask})
"""
LOOP = """
def repaired_loop(model, prompt, noise):
    T, out = prompt.shape[1], []
    with kv_cache(model, DynamicCache):
        logits, _ = model(prompt, pos=places(0, T, prompt))
        for t, row in enumerate(noise):
            out.append(x := sample(logits[:, -1], row))
            logits, _ = model(x, pos=places({start}, 1, x))
    return torch.cat(out, dim=1)
"""
RECOMPUTED = """
def repaired_loop(model, prompt, noise):
    text = prompt
    for row in noise:
        text = torch.cat([text, sample(model(text)[0][:, -1], row)], dim=1)
    return text[:, prompt.shape[1] :]
"""
TWICE = """
def repaired_loop(model, prompt, noise):
    T, x, out = prompt.shape[1], prompt[:, -1:], []
    with kv_cache(model, DynamicCache):
        model(prompt, pos=places(0, T, prompt))
        for t, row in enumerate(noise):
            x = sample(model(x, pos=places(T + t, 1, x))[0][:, -1], row)
            out.append(x)
    return torch.cat(out, dim=1)
"""
POSITIONS = """
def step_positions(step, T):
    return torch.arange(T) if step == 0 else torch.tensor([{later}])
"""
BASELINE = """
def repaired_baseline(model, prompt, noise):
    text = prompt
    {before}
    for row in noise:
        text = torch.cat([text, sample(model(text)[0][:, -1], row)], dim=1)
    {after}
    return text[:, prompt.shape[1] :]
"""
ASKED = """
class AskedHead(Head):
    def __init__(self, config):
        super().__init__(config)
        self.memory = None

    def forward(self, x, pos):
        q, k, v = self.query(x), self.key(x), self.value(x)
        if {guard}:
            self.memory = self.memory or []
            self.memory.append((k, v))
            k, v = (torch.cat(rows, dim=1) for rows in zip(*self.memory))
        order = torch.arange(k.shape[1], device=x.device)
        return attend(q, k, v, visible(order[-x.shape[1] :], order))
"""
LENGTH = """
def check_length(T, n_new, block_size):
    if {too_long}:
        raise ValueError(f"{message}")
"""
ONE_TEXT = """
def one_text(model, prompt, noise):
    heads = [module for module in model.modules() if isinstance(module, MemoryHead)]
    {before}
    text = decode(model, prompt, noise)
    {after}
    return text
"""
CLEAR = "[head.memory.clear() for head in heads]"
FIXED = """
class FixedAttention(nn.Module):
    def __init__(self):
        super().__init__()
        self.register_buffer("k", torch.zeros(1, 32, 16))
        self.register_buffer("v", torch.zeros(1, 32, 16))

    def forward(self, q, k, v, pos):
        {body}
"""
SLICED = """p = int(pos)
        self.k[:, p : p + 1], self.v[:, p : p + 1] = k, v
        return (q @ self.k[:, : p + 1].mT * 0.25).softmax(-1) @ self.v[:, : p + 1]"""
UNMASKED = """self.k.index_copy_(1, pos, k)
        self.v.index_copy_(1, pos, v)
        return (q @ self.k.mT * 0.25).softmax(-1) @ self.v"""
SLOT_0 = """self.k[:, 0:1], self.v[:, 0:1] = k, v
        scores = (q @ self.k.mT * 0.25).masked_fill(torch.arange(32) > pos, float("-inf"))
        return scores.softmax(-1) @ self.v"""

WRONG = {
    "masked-head": [
        (HEAD.format(mask="torch.ones(T, S, dtype=torch.bool)"), "sees a later one"),
        (HEAD.format(mask="torch.ones(T, S, dtype=torch.bool).tril()"), "every key that is cached"),
        (
            HEAD.format(mask="torch.ones(T, S, dtype=torch.bool).tril(0 if T > 1 else S)"),
            "pieces of 3",
        ),
    ],
    "repaired-loop": [
        (TWICE, "the prefill's own logits"),
        (LOOP.format(start="T + t + 1"), "in turn t (from 0) stands"),
        (RECOMPUTED, "24 are enough"),
    ],
    "step-positions": [
        (POSITIONS.format(later="0"), "position 0 again"),
        (POSITIONS.format(later="T + step"), "reads positions [5], not [6]"),
    ],
    "repaired-baseline": [
        (BASELINE.format(before="pass", after="pass"), "something else is random"),
        (BASELINE.format(before="model.eval()", after="pass"), "left the model in eval mode"),
        (BASELINE.format(before="model.eval()", after="model.train()"), "left it in training mode"),
    ],
    "asked-head": [
        (ASKED.format(guard="not self.training"), "nobody turned the memory on"),
        (ASKED.format(guard="self.memory and not self.training"), "counts as false"),
        (ASKED.format(guard="self.memory is not None"), "in training it wrote"),
    ],
    "check-length": [
        (LENGTH.format(too_long="T + n_new > block_size", message="{T}"), "it refuses"),
        (LENGTH.format(too_long="T + n_new > block_size + 1", message="too long"), "does not say"),
        (LENGTH.format(too_long="T > block_size", message="too long"), "breaks off"),
    ],
    "one-text": [
        (ONE_TEXT.format(before=CLEAR, after="pass"), "still hold the text"),
        (ONE_TEXT.format(before="pass", after=CLEAR), "half-way"),
        (ONE_TEXT.format(before="pass", after="pass"), "the second text is wrong"),
    ],
    "fixed-attention": [
        (FIXED.format(body=SLICED), "graphs: some shape still changes"),
        (FIXED.format(body=UNMASKED), "slots that are still empty"),
        (FIXED.format(body=SLOT_0), "in a slot of its own"),
    ],
}
