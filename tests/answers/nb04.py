# ruff: noqa: E501 (code in strings)
"""Answers to the blanks of notebook 04: right ones in other styles, and wrong ones by their cause."""

RIGHT = {
    "MaskedHead": {
        "two branches": """
class MaskedHead(Head):
    def forward(self, x, pos):
        q, k, v = self.query(x), self.key(x), self.value(x)
        if self.cache is None:
            return attend(q, k, v, visible(pos, pos))
        k, v, k_pos = self.cache.update(k, v, pos)
        return attend(q, k, v, visible(pos, k_pos))
""",
        "a mask by hand": """
class MaskedHead(Head):
    def forward(self, x, pos):
        kv = self.key(x), self.value(x), pos
        k, v, k_pos = self.cache.update(*kv) if self.cache is not None else kv
        mask = (k_pos <= pos.unsqueeze(1)) & (k_pos != -1)
        return attend(self.query(x), k, v, mask)
""",
        "the weights of notebook 01, and a guard": """
class MaskedHead(Head):
    def forward(self, x, pos):
        q = self.query(x)
        k = self.key(x)
        v = self.value(x)
        seen = pos
        if not self.training and self.cache:
            k, v, seen = self.cache.update(k, v, pos)
        return attention_weights(q, k, visible(pos, seen)) @ v
""",
        "the parent's": """
class MaskedHead(Head):
    def forward(self, x, pos):
        return super().forward(x, pos)
""",
        "scaled_dot_product_attention": """
class MaskedHead(Head):
    def forward(self, x, pos):
        k, v, k_pos = self.key(x), self.value(x), pos
        if self.cache is not None:
            k, v, k_pos = self.cache.update(k, v, pos)
        return F.scaled_dot_product_attention(self.query(x), k, v, attn_mask=visible(pos, k_pos))
""",
    },
    "repaired_loop": {
        "all but the last token first": """
def repaired_loop(model, prompt, noise):
    out = []
    with kv_cache(model, KVCache):
        if prompt.shape[1] > 1:
            model(prompt[:, :-1], pos=places(0, prompt.shape[1] - 1, prompt))
        x = prompt[:, -1:]
        for start, row in enumerate(noise, prompt.shape[1] - 1):
            x = sample(model(x, pos=places(start, 1, x))[0][:, -1], row)
            out.append(x)
    return torch.cat(out, dim=1)
""",
        "a prefill of its own": """
def repaired_loop(model, prompt, noise):
    T = prompt.shape[1]
    with kv_cache(model, KVCache):
        logits, _ = model(prompt, pos=torch.arange(T))
        text = prompt
        for t in range(len(noise)):
            text = torch.cat([text, sample(logits[:, -1], noise[t])], 1)
            if t + 1 < len(noise):
                logits, _ = model(text[:, -1:], pos=torch.tensor([T + t]))
    return text[:, T:]
""",
        "the prompt token by token, StaticKVCache": """
@torch.no_grad()
def repaired_loop(model, prompt, noise):
    ids = prompt[0].tolist()
    with kv_cache(model, StaticKVCache):
        for t in range(len(ids) + len(noise) - 1):
            logits = model(torch.tensor([[ids[t]]]), pos=torch.tensor([t]))[0]
            if t >= prompt.shape[1] - 1:
                ids.append(int(sample(logits[:, -1], noise[t - prompt.shape[1] + 1])))
    return torch.tensor([ids[prompt.shape[1] :]])
""",
        "the loop of notebook 02": """
def repaired_loop(model, prompt, noise):
    return torch.cat([*generate_with_cache(model, prompt, noise, KVCache)], dim=1)
""",
    },
    "read_on": {
        "any attribute": """
def read_on(model, x):
    heads = [module for module in model.modules() if hasattr(module, "memory")]
    start = 0
    for k, _ in heads[-1].memory:
        start = start + k.size(1)
    logits, _ = model(x, pos=torch.arange(start, start + x.size(1)))
    return logits
""",
        "the first head of the first block, by its values": """
def read_on(model, x):
    memory = model.blocks[0].sa.heads[0].memory
    start = torch.cat([v for _, v in memory], dim=1).shape[1] if memory else 0
    return model(x, None, places(start, x.shape[1], x))[0]
""",
        "token by token": """
def read_on(model, x):
    heads = [m for m in model.modules() if isinstance(m, MemoryHead)]
    out = []
    for token in x.split(1, dim=1):
        start = sum(len(k[0]) for k, v in heads[0].memory)
        out.append(model(token, pos=torch.tensor([start]))[0])
    return torch.cat(out, dim=1)
""",
    },
    "repaired_baseline": {
        "try and finally": """
def repaired_baseline(model, prompt, noise):
    before = model.training
    try:
        model.train(False)
        new = prompt[:, :0]
        for row in noise:
            logits = model(torch.cat([prompt, new], 1))[0]
            new = torch.cat([new, sample(logits[:, -1], row)], 1)
    finally:
        model.train(before)
    return new
""",
        "a copy": """
from copy import deepcopy

def repaired_baseline(model, prompt, noise):
    quiet = deepcopy(model).eval()
    text = prompt
    out = []
    for t in range(noise.shape[0]):
        out.append(sample(quiet(text)[0][:, -1, :], noise[t]))
        text = torch.cat((text, out[-1]), dim=-1)
    return torch.cat(out, dim=-1)
""",
        "two branches, with positions": """
@torch.no_grad()
def repaired_baseline(model, prompt, noise):
    if model.training:
        model.eval()
        new = repaired_baseline(model, prompt, noise)
        model.train()
        return new
    text = prompt.clone()
    for row in noise:
        logits, _ = model(text, pos=places(0, text.shape[1], text))
        text = torch.cat([text, sample(logits[:, -1], row)], dim=1)
    return text[:, -len(noise) :]
""",
        "the last block_size tokens": """
def repaired_baseline(model, prompt, noise):
    mode = model.training
    model.eval()
    text = prompt
    for row in noise:
        logits, _ = model(text[:, -model.config.block_size :])
        text = torch.hstack([text, sample(logits[:, -1], row)])
    if mode:
        model.train()
    return text[:, prompt.shape[1] :]
""",
    },
    "AskedHead": {
        "joined, and put back as one pair": """
class AskedHead(Head):
    def __init__(self, config):
        super().__init__(config)
        self.memory = None

    def forward(self, x, pos):
        q, k, v = self.query(x), self.key(x), self.value(x)
        T = x.shape[1]
        if not self.training and self.memory is not None:
            if len(self.memory) > 0:
                k = torch.cat([self.memory[0][0], k], 1)
                v = torch.cat([self.memory[0][1], v], 1)
            self.memory = [(k, v)]
        S = k.shape[1]
        return attend(q, k, v, torch.ones(T, S).tril(S - T).bool())
""",
        "by positions": """
class AskedHead(Head):
    def __init__(self, config):
        super().__init__(config)
        self.memory = None

    def forward(self, x, pos):
        pairs = [(self.key(x), self.value(x))]
        if self.memory is not None and not self.training:
            self.memory += pairs
            pairs = self.memory
        k = torch.cat([k for k, _ in pairs], dim=1)
        v = torch.cat([v for _, v in pairs], dim=1)
        return attend(self.query(x), k, v, visible(pos, torch.arange(k.shape[1])))
""",
        "dropout in training, early return": """
class AskedHead(Head):
    def __init__(self, config):
        super().__init__(config)
        self.memory = None

    def forward(self, x, pos):
        q = self.query(x)
        k = self.key(x)
        v = self.value(x)
        if self.training or self.memory is None:
            return attend(q, k, v, visible(pos, pos), self.dropout if self.training else 0.0)
        self.memory.append((k, v))
        k = torch.cat([pair[0] for pair in self.memory], 1)
        v = torch.cat([pair[1] for pair in self.memory], 1)
        order = torch.arange(k.shape[1])
        return attend(q, k, v, visible(order, order)[-q.shape[1] :])
""",
    },
    "check_length": {
        "two questions": """
def check_length(T, n_new, block_size):
    most = block_size - T + 1
    if T > block_size:
        raise ValueError(f"the prompt of {T} is longer than {block_size}: 0 tokens are possible")
    if not n_new <= most:
        raise ValueError(f"at most {most}")
""",
        "by the last position": """
def check_length(T, n_new, block_size):
    last = T + n_new - 2
    if T - 1 >= block_size or last >= block_size:
        raise ValueError("%d tokens do not fit, and %d do" % (n_new, max(0, block_size - T + 1)))
    return None
""",
        "an error class of its own": """
class TooLong(ValueError):
    pass

def check_length(T, n_new, block_size):
    free = range(T, block_size + 1)
    if T > block_size or n_new > len(free):
        raise TooLong(f"only {len(free)}, and you want {n_new}")
""",
    },
    "one_text": {
        "except and raise": """
def one_text(model, prompt, noise):
    def forget():
        for head in filter(lambda m: isinstance(m, MemoryHead), model.modules()):
            del head.memory[:]

    forget()
    try:
        text = decode(model, prompt, noise)
    except BaseException:
        forget()
        raise
    forget()
    return text
""",
        "a context manager": """
from contextlib import contextmanager

@contextmanager
def forgotten(model):
    heads = [m for m in model.modules() if isinstance(m, MemoryHead)]
    def empty():
        for head in heads:
            head.memory = []
    empty()
    try:
        yield
    finally:
        empty()

def one_text(model, prompt, noise):
    with forgotten(model):
        return decode(model, prompt, noise)
""",
        "an ExitStack": """
from contextlib import ExitStack

def one_text(model, prompt, noise):
    with ExitStack() as stack:
        for block in model.blocks:
            for head in block.sa.heads:
                head.memory.clear()
                stack.callback(head.memory.clear)
        return decode(model, prompt, noise)
""",
    },
    "FixedAttention": {
        "assigned slots, SDPA": """
class FixedAttention(nn.Module):
    def __init__(self):
        super().__init__()
        self.register_buffer("k", torch.zeros(1, 32, 16))
        self.register_buffer("v", torch.zeros(1, 32, 16))

    def forward(self, q, k, v, pos):
        self.k[:, pos] = k
        self.v[:, pos] = v
        seen = torch.arange(32)[None] <= pos[:, None]
        return F.scaled_dot_product_attention(q, self.k, self.v, attn_mask=seen)
""",
        "new buffers": """
class FixedAttention(nn.Module):
    def __init__(self):
        super().__init__()
        self.register_buffer("k", torch.zeros(1, 32, 16))
        self.register_buffer("v", torch.zeros(1, 32, 16))

    def forward(self, q, k, v, pos):
        here = (torch.arange(32) == pos)[None, :, None]
        self.k = torch.where(here, k, self.k)
        self.v = torch.where(here, v, self.v)
        scores = q @ self.k.transpose(1, 2) / 4
        return F.softmax(torch.where(torch.arange(32) <= pos, scores, -1e9), dim=-1) @ self.v
""",
        "weights of zero": """
class FixedAttention(nn.Module):
    def __init__(self):
        super().__init__()
        self.register_buffer("k", torch.zeros(1, 32, 16))
        self.register_buffer("v", torch.zeros(1, 32, 16))

    def forward(self, q, k, v, pos):
        self.k.index_copy_(1, pos, k)
        self.v.index_copy_(1, pos, v)
        return attend(q, self.k, self.v, visible(pos, torch.arange(32)))
""",
    },
}

MASK = "visible(pos, k_pos)"
ONES = "torch.ones(len(pos), len(k_pos)).bool()"
GUARD = "self.cache is not None and not self.training"
UPDATE = "k, v, k_pos = self.cache.update(k, v, pos)"
POS = "pos=places(start, x.shape[1], x)"
COUNT = "sum(k.shape[1] for k, v in head.memory)"
ON = "self.memory is not None and not self.training"
JOIN = "            k, v = (torch.cat(rows, dim=1) for rows in zip(*self.memory))\n"
APPEND = "            self.memory.append((k, v))\n"
ORDER = "visible(order[-x.shape[1] :], order)"
ROOM = "block_size + 1 - T"
HIDDEN = '.masked_fill(torch.arange(32) > pos, float("-inf"))'
READ = ": int(pos) + 1]"
WRITE = "        self.k.index_copy_(1, pos, k)\n        self.v.index_copy_(1, pos, v)\n"
CLEARED = "    for head in heads:\n        head.memory.clear()\n    try"
LAST = "    finally:\n        for head in heads:\n            head.memory.clear()\n"
WRONG = {
    "MaskedHead": {
        "no mask": (MASK, ONES, "no mask at all"),
        "no mask in the prefill": (
            f"        return attend(q, k, v, {MASK})",
            f"        if self.cache is None:\n            return attend(q, k, v, {MASK})\n        return attend(q, k, v, {ONES})",
            "something to hide",
        ),
        "a triangle": (MASK, f"{ONES}.tril()", "top left"),
        "a triangle at the bottom": (
            MASK,
            f"{ONES}.tril(len(k_pos) - len(pos))",
            "Compare positions",
        ),
        "is_causal": (MASK, "None", "top left"),
        "only the first piece": (
            MASK,
            f"{MASK} if len(pos) == len(k_pos) else {ONES}",
            "later piece",
        ),
        "one query without a mask": (MASK, f"{MASK} if len(pos) > 1 else {ONES}", "empty slots"),
        "empty slots": (MASK, "k_pos[None] <= pos[:, None]", "-1"),
        "its own token": (MASK, "(k_pos[None] < pos[:, None]) & (k_pos >= 0)", ""),
        "the queries' positions": (MASK, "visible(pos, pos)", "k_pos"),
        "numbered keys": (MASK, "visible(pos, torch.arange(k.shape[1]))", "numbered"),
        "numbered queries": (
            MASK,
            "visible(torch.arange(len(pos)), k_pos)",
            "queries are numbered",
        ),
        "no cache": (GUARD, "False", "not used"),
        "always a cache": (GUARD, "not self.training", "self.cache is not None"),
        "ignored": (UPDATE, "self.cache.update(k, v, pos)", "ignored"),
        "values first": (UPDATE, "k, v, k_pos = self.cache.update(v, k, pos)", "before keys"),
        "queries kept": (
            UPDATE,
            "k, v, k_pos = self.cache.update(q, v, pos)",
            "queries are cached",
        ),
        "swapped": (UPDATE, "v, k, k_pos = self.cache.update(k, v, pos)", "swapped"),
        "twice": (UPDATE, f"{UPDATE}\n            {UPDATE}", "updates"),
        "no return": ("return attend", "attend", "Return the weights"),
        "dropout": (f"{MASK})", f"{MASK}, self.dropout)", "dropout"),
        "turned": (MASK, f"{MASK}.T", ""),
    },
    "repaired_loop": {
        "at position 0": ("start, x.shape[1], x)", "0, x.shape[1], x)", "T + t"),
        "the trap": (
            "",
            "def repaired_loop(model, prompt, noise):\n    T = prompt.shape[1]\n    x = prompt[:, -1:]\n    out = []\n    with kv_cache(model, KVCache):\n        model(prompt, pos=places(0, T, prompt))\n        for t, row in enumerate(noise):\n            logits, _ = model(x, pos=places(T + t, 1, x))\n            x = sample(logits[:, -1], row)\n            out.append(x)\n    return torch.cat(out, dim=1)\n",
            "prefill's own logits",
        ),
        "the trap, at T - 1": (
            "",
            "def repaired_loop(model, prompt, noise):\n    T = prompt.shape[1]\n    x = prompt[:, -1:]\n    out = []\n    with kv_cache(model, KVCache):\n        model(prompt, pos=places(0, T, prompt))\n        for t, row in enumerate(noise):\n            logits, _ = model(x, pos=places(T - 1 + t, 1, x))\n            x = sample(logits[:, -1], row)\n            out.append(x)\n    return torch.cat(out, dim=1)\n",
            "T - 1",
        ),
        "no positions": (f", {POS}", "", "a KV cache is on"),
        "no cache": ("with kv_cache(model, KVCache):", "if True:", "kv_cache"),
        "one too far": ("start = 0", "start = 1", ""),
        "one further": ("start += x.shape[1]", "start += 1", ""),
        "first logits": ("logits[:, -1]", "logits[:, 0]", "last"),
        "greedy": ("sample(logits[:, -1], row)", "logits[:, -1].argmax(-1, keepdim=True)", "noise"),
        "one noise": ("sample(logits[:, -1], row)", "sample(logits[:, -1], noise[0])", "first row"),
        "the last prompt token": ("x = prompt\n", "x = prompt[:, -1:]\n", ""),
        "with the prompt": (
            "torch.cat(out, dim=1)",
            "torch.cat([prompt, *out], dim=1)",
            "in front",
        ),
        "a list": ("torch.cat(out, dim=1)", "out", "list"),
        "in a column": ("torch.cat(out, dim=1)", "torch.cat(out)", "the tokens are"),
        "new caches": (
            "    with kv_cache(model, KVCache):\n        for row in noise:\n            logits, _ = model(x, pos=places(start, x.shape[1], x))\n",
            "    if True:\n        for row in noise:\n            with kv_cache(model, KVCache):\n                logits, _ = model(x, pos=places(start, x.shape[1], x))\n",
            "forgotten",
        ),
        "the whole text": (
            "",
            "def repaired_loop(model, prompt, noise):\n    text = prompt\n    for row in noise:\n        text = torch.cat([text, sample(model(text)[0][:, -1], row)], 1)\n    return text[:, prompt.shape[1] :]\n",
            "whole text",
        ),
        "one read too many": (
            "    return torch.cat",
            "        model(x, pos=places(start, 1, x))\n    return torch.cat",
            "last new token",
        ),
        "one token too few": ("for row in noise:", "for row in noise[1:]:", ""),
    },
    "read_on": {
        "pieces": (COUNT, "sum(1 for k, v in head.memory)", "pieces"),
        "length of the list": (COUNT, "len(head.memory)", "pieces"),
        "logits and loss": ("))[0]", "))", "a loss"),
        "from 0": (COUNT, "0", "from 0"),
        "no positions": (", pos=places(start, x.shape[1], x)", "", "from 0"),
        "texts": ("k.shape[1]", "k.shape[0]", "dimension 1"),
        "numbers": ("k.shape[1]", "k.shape[2]", "dimension 1"),
        "one too far": (COUNT, f"{COUNT} + 1", "one too large"),
        "one too low": (COUNT, f"max(0, {COUNT} - 1)", "from the second"),
        "the last piece": (
            COUNT,
            "head.memory[-1][0].shape[1] if head.memory else 0",
            "last piece",
        ),
        "an empty list": (COUNT, "head.memory[-1][0].shape[1]", "empty"),
        "the new ones too": ("places(start,", "places(start + x.shape[1],", "before they are read"),
        "all heads": (
            "",
            "def read_on(model, x):\n    heads = [m for m in model.modules() if isinstance(m, MemoryHead)]\n    start = sum(k.shape[1] for head in heads for k, v in head.memory)\n    return model(x, pos=places(start, x.shape[1], x))[0]\n",
            "ask one",
        ),
        "the last logits": ("))[0]", "))[0][:, -1]", "all T"),
        "one position": ("places(start, x.shape[1], x)", "places(start, 1, x)", "pos"),
        "counted by itself": (
            "",
            "TOTAL = [0]\n\ndef read_on(model, x):\n    start = TOTAL[0]\n    TOTAL[0] += x.shape[1]\n    return model(x, pos=places(start, x.shape[1], x))[0]\n",
            "",
        ),
        "probabilities": ("))[0]", "))[0].softmax(-1)", "softmax"),
    },
    "repaired_baseline": {
        "no eval": ("    model.eval()\n", "", "random"),
        "no_grad alone": (
            "    model.eval()\n    for row in noise:\n        logits, _ = model(text)\n",
            "    for row in noise:\n        with torch.no_grad():\n            logits, _ = model(text)\n",
            "random",
        ),
        "left in eval": ("    model.train(was_training)\n", "", "left in eval"),
        "train always": ("model.train(was_training)", "model.train()", "put into training"),
        "eval at the end": ("model.train(was_training)", "model.eval()", "left in eval"),
        "turned round": ("(was_training)", "(not was_training)", "opposite"),
        "asked after eval": (
            "    was_training = model.training\n    text = prompt\n    model.eval()\n",
            "    model.eval()\n    was_training = model.training\n    text = prompt\n",
            "before eval()",
        ),
        "by hand": ("model.train(was_training)", "model.training = was_training", "by hand"),
        "a seed": ("    model.eval()\n", "    torch.manual_seed(0)\n", "eval()"),
        "with the prompt": ("text[:, prompt.shape[1] :]", "text", "leave it out"),
        "the last token": ("model(text)", "model(text[:, -1:])", "whole text"),
        "the prompt alone": ("model(text)", "model(prompt)", "again and again"),
        "first logits": ("logits[:, -1]", "logits[:, 0]", "last"),
        "one noise": ("row)", "noise[0])", "first row"),
        "greedy": ("sample(logits[:, -1], row)", "logits[:, -1].argmax(-1, keepdim=True)", "noise"),
        "eval in the loop": (
            "    model.eval()\n    for row in noise:\n        logits, _ = model(text)\n",
            "    for row in noise:\n        logits, _ = model(text)\n        model.eval()\n",
            "before the loop",
        ),
        "no return": ("return text", "text", "return"),
    },
    "AskedHead": {
        "an empty list is false": ("self.memory is not None", "self.memory", "an empty list"),
        "in training too": (" and not self.training", "", "in training"),
        "whenever in eval mode": (ON, "not self.training", "is not None"),
        "turned on by itself": (
            f"        if {ON}:\n",
            "        if self.memory is None:\n            self.memory = []\n        if not self.training:\n",
            "turned",
        ),
        "in training alone": ("not self.training", "self.training", ""),
        "never appended": (APPEND, "", ""),
        "never joined": (JOIN, "", "join"),
        "appended twice": (APPEND, APPEND * 2, "twice"),
        "joined along the texts": ("dim=1", "dim=0", "dimension 1"),
        "swapped": (f"{JOIN}", JOIN.replace("k, v =", "v, k ="), "are swapped"),
        "queries kept": ("append((k, v))", "append((q, v))", ""),
        "no mask": (ORDER, "torch.ones(x.shape[1], k.shape[1]).bool()", "no mask"),
        "top left": (ORDER, "visible(order[: x.shape[1]], order)", "top left"),
        "square": (ORDER, "visible(pos, pos)", "larger than T"),
        "newest first": ("zip(*self.memory)", "zip(*self.memory[::-1])", "newest"),
        "the first piece": ("zip(*self.memory)", "zip(*self.memory[:1])", ""),
        "cleared in training": (
            f"        if {ON}:\n",
            f"        if self.training and self.memory:\n            self.memory.clear()\n        if {ON}:\n",
            "emptied",
        ),
        "replaced": (APPEND, "            self.memory[:] = [(k, v)]\n", ""),
        "appended after": (
            f"{APPEND}{JOIN}",
            f"            pair = (k, v)\n            if self.memory:\n    {JOIN}            self.memory.append(pair)\n",
            "themselves",
        ),
        "no return": ("return attend", "attend", "return"),
    },
    "check_length": {
        "one too few": (ROOM, "block_size - T", "too few"),
        "one too many": (ROOM, "block_size + 2 - T", "too many"),
        "the prompt forgotten": (ROOM, "block_size", "the prompt is"),
        "64": (ROOM, "64 + 1 - T", ""),
        "full prompts refused": ("T > block_size", "T >= block_size", "refused"),
        "long prompts only": (" or n_new > room", "", "compare n_new"),
        "no prompt too long": ("T > block_size or ", "", "T >"),
        "returned": (
            '        raise ValueError(f"a prompt of {T} leaves room for {max(room, 0)} tokens, not {n_new}")',
            "        return False\n    return True",
            "False",
        ),
        "True": ('not {n_new}")', 'not {n_new}")\n    return True', "True"),
        "printed": ("raise ValueError", "print", "raise"),
        "not raised": ("raise ValueError", "return ValueError", "raise"),
        "an assertion": ("raise ValueError(", "raise AssertionError(", "AssertionError"),
        "no number": (
            'f"a prompt of {T} leaves room for {max(room, 0)} tokens, not {n_new}"',
            '"too long"',
            "number",
        ),
        "the wrong number": ("{max(room, 0)}", "{block_size}", "how many"),
        "the excess": ("{max(room, 0)} tokens, not {n_new}", "{n_new - room} fewer", "how many"),
        "at least": ("n_new > room", "n_new >= room", ""),
        "turned round": ("n_new > room", "n_new < room", ""),
    },
    "one_text": {
        "only at the beginning": (
            "for head in heads:\n            ",
            "for head in []:\n            ",
            "still",
        ),
        "only at the end": (CLEARED, "    try", "it assumes that"),
        "never": (
            "heads = [module for module in model.modules() if isinstance(module, MemoryHead)]",
            "heads = []",
            "never",
        ),
        "not after an error": (
            f"    try:\n        return decode(model, prompt, noise)\n{LAST}",
            "    text = decode(model, prompt, noise)\n    for head in heads:\n        head.memory.clear()\n    return text\n",
            "that must always run",
        ),
        "Exception": (
            f"    try:\n        return decode(model, prompt, noise)\n{LAST}",
            "    try:\n        text = decode(model, prompt, noise)\n    except Exception:\n        for head in heads:\n            head.memory.clear()\n        raise\n    for head in heads:\n        head.memory.clear()\n    return text\n",
            "stop button",
        ),
        "swallowed by return": (
            f"        return decode(model, prompt, noise)\n{LAST}",
            f"        text = decode(model, prompt, noise)\n{LAST}        return text\n",
            "",
        ),
        "swallowed": (
            "    finally:",
            "    except Exception:\n        pass\n    finally:",
            "reach the caller",
        ),
        "the first head": (
            "isinstance(module, MemoryHead)]",
            "isinstance(module, MemoryHead)][:1]",
            "only the first head",
        ),
        "the last head": (
            LAST,
            "    finally:\n        for head in heads:\n            pass\n        head.memory.clear()\n",
            "the end only",
        ),
        "None": (
            LAST,
            "    finally:\n        for head in heads:\n            head.memory = None\n",
            "None",
        ),
        "one list for all": (
            "        head.memory.clear()\n    try",
            "        head.memory = []\n    memory = []\n    for head in heads:\n        head.memory = memory\n    try",
            "each needs its",
        ),
        "with the prompt": (
            "return decode(model, prompt, noise)",
            "return torch.cat([prompt, decode(model, prompt, noise)], 1)",
            "in front",
        ),
        "nothing comes back": ("return decode", "decode", "return"),
        "popped": ("head.memory.clear()", "head.memory[-1:] = []", "last piece"),
        "kv_cache": (
            "",
            "def one_text(model, prompt, noise):\n    with kv_cache(model):\n        return decode(model, prompt, noise)\n",
            "never",
        ),
    },
    "FixedAttention": {
        "empty slots seen": (HIDDEN, "", "empty"),
        "slot 0": ("index_copy_(1, pos", "index_copy_(1, pos * 0", "slot"),
        "a slice": (
            "scores.softmax(-1) @ self.v",
            f"scores[..., {READ}.softmax(-1) @ self.v[:, {READ}",
            "graph",
        ),
        "not itself": ("> pos", ">= pos", "NaN"),
        "one too many": ("> pos", "> pos + 1", "one slot too many"),
        "turned round": ("> pos", "< pos", "the mask is"),
        "the newest alone": ("torch.arange(32) > pos", "torch.arange(32) != pos", "newest"),
        "no scale": (" * 0.25", "", "0.25"),
        "divided by 16": ("0.25", "0.0625", "16"),
        "hidden by 0": ('float("-inf")', "0.0", "weight"),
        "hidden by 1": ('float("-inf")', "-1.0", ""),
        "values not written": (
            "        self.v.index_copy_(1, pos, v)\n",
            "",
            "values are not written",
        ),
        "keys not written": ("        self.k.index_copy_(1, pos, k)\n", "", ""),
        "not in place": ("index_copy_(", "index_copy(", ""),
        "read first": (
            WRITE,
            "        old_k, old_v = self.k.clone(), self.v.clone()\n"
            + WRITE
            + "        self.k, old_k = old_k, self.k\n",
            "",
        ),
        "keys for values": ("softmax(-1) @ self.v", "softmax(-1) @ self.k", "values"),
        "no softmax": ("scores.softmax(-1)", "scores.nan_to_num(neginf=0)", "softmax"),
        "one dimension less": (
            "return scores.softmax(-1) @ self.v",
            "return (scores.softmax(-1) @ self.v)[0]",
            "(1, 1, 16)",
        ),
        "added": ("index_copy_", "index_add_", "overwrite it instead"),
        "a new tensor each time": (
            "        scores = (q @ self.k.mT * 0.25)",
            "        n = int(pos) + 1\n        keys = self.k[:, :n]\n        return (q @ keys.mT * 0.25).softmax(-1) @ self.v[:, :n]\n        scores = (q @ self.k.mT * 0.25)",
            "graph",
        ),
        "no return": ("return scores", "scores", "(1, 1, 16)"),
    },
}
