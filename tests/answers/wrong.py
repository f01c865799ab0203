# ruff: noqa: E501 (code in strings)
"""Wrong answers to the kept blanks, each by the name of its misconception; data of test_checks.py.

An answer is what replaces what in the solution, and, where the message must name the cause, a word
of it.
"""

MASKED = '.masked_fill(~mask, float("-inf"))'
SCALE = " * q.shape[-1] ** -0.5"
RETURN = f"    return scores{MASKED}.softmax(-1)"
KEEP = "        self.k = k\n        self.v = v\n        self.pos = pos\n"
CAT = "k = torch.cat([self.k, k], dim=1)\n            v = torch.cat([self.v, v], dim=1)"
INIT = "    def __init__(self, capacity=None):\n        self.k = self.v = self.pos = None\n"
SLOTS = "    def __init__(self, capacity):\n"
WRITE = "        self.k[:, pos] = k\n        self.v[:, pos] = v\n        self.pos[pos] = pos\n"
ZEROS = "k.new_zeros(k.shape[0], self.capacity, k.shape[2])"
GUARD = "self.cache is not None and not self.training"
SEEN = "visible(pos, k_pos)"
QK = "q = self.query(x)  # (B, T, hs)\n        k = self.key(x)\n"
QKV = f"{QK}        v = self.value(x)\n        k_pos = pos  # (T,)"
LAST = "        return F.dropout(weights, self.dropout, self.training) @ v"
DRAW = "    return (probs / noise).argmax(-1, keepdim=True)"
PROBS = "logits.softmax(-1)"
STEP = "            pos = pos[-1:] + 1"
TOKEN = "tokens = sample(logits[:, -1], row)"

WRONG = {
    "attention_weights": {
        "no mask": (MASKED, "", "mask is not used"),
        "mask inverted": ("~mask", "mask", "you hide it there"),
        "zero instead of -inf": ('float("-inf")', "0.0", "exp(0) is 1"),
        "hidden by -20": ('float("-inf")', "-20", "hide it with -inf"),
        "hidden by -100": ('float("-inf")', "-100", "hide it with -inf"),
        "hidden after the softmax": (
            RETURN,
            "    return scores.softmax(-1) * mask",
            "no longer sum",
        ),
        "no scale": (SCALE, "", "not divided by √hs"),
        "divided by hs": ("-0.5", "-1", "divided by hs, not"),
        "divided by √S": ("q.shape[-1] **", "k.shape[-2] **", "√S"),
        "divided by √T": ("q.shape[-1] **", "q.shape[-2] **", "√T"),
        "half for hs = 4": ("q.shape[-1] ** -0.5", "0.5", "is 2 only"),
        "multiplied by √hs": ("-0.5", "0.5", "multiplied"),
        "softmax down the columns": ("softmax(-1)", "softmax(-2)", "columns"),
        "softmax over dimension 1": ("softmax(-1)", "softmax(1)"),
        "softmax over the texts": ("softmax(-1)", "softmax(0)"),
        "log_softmax": (".softmax", ".log_softmax", "these are log-weights"),
        "no softmax": (".softmax(-1)", "", "softmax is missing"),
        "sigmoid": (".softmax(-1)", ".sigmoid()"),
        "k.T": ("k.transpose(-2, -1)", "k.T"),
        "transposed with texts": ("k.transpose(-2, -1)", "k.transpose(0, -1)"),
        "scores detached": ("scores = q", "scores = q.detach()", "gradient"),
        "all detached": (".softmax(-1)", ".softmax(-1).detach()", "no gradient"),
        "no_grad": (
            "    scores",
            "    torch.set_grad_enabled(True)\n    q, k = q.data, k.data\n    scores",
            "gradient",
        ),
        "keys detached": ("k.transpose", "k.detach().transpose", "gradient of k"),
        "a triangle of its own": (
            "~mask",
            "torch.ones(q.shape[-2], k.shape[-2]).triu(1).bool()",
            "you make your own",
        ),
        "a triangle aligned bottom right": (
            "~mask",
            "torch.ones(q.shape[-2], k.shape[-2]).triu(1 + k.shape[-2] - q.shape[-2]).bool()",
            "you make your own",
        ),
        "float32 inside": (
            "scores = q @ k",
            "q, k = q.float(), k.float()\n    scores = q @ k",
            "dtype",
        ),
        "float32 and back": (
            RETURN,
            f"    return scores.float(){MASKED}.softmax(-1).to(q.dtype)",
            "dtype",
        ),
        "text 0 for all": (".softmax(-1)", ".softmax(-1)[:1].expand_as(scores)"),
        "keys summed over texts": (
            "k.transpose",
            "(k.sum(0, keepdim=True) if k.ndim > 2 else k).transpose",
            "summed",
        ),
        "softmax without the maximum": (
            RETURN,
            f"    p = scores{MASKED}.exp()\n    return p / p.sum(-1, keepdim=True)",
            "overflows",
        ),
        "scaled in place": (
            "    scores = q",
            "    q *= q.shape[-1] ** -0.5\n    scores = q",
            "changes `q`",
        ),
        "mask inverted in place": (
            "    scores",
            "    mask.logical_not_()\n    mask = ~mask\n    scores",
            "changes `mask`",
        ),
        "128 keys at most": (
            RETURN,
            f"    scores{MASKED.replace('fill', 'fill_')}\n    scores[..., 128:] = float('-inf')\n    return scores.softmax(-1)",
        ),
        "queries and keys exchanged": ("q @ k.transpose", "k @ q.transpose"),
    },
    "one_step": {
        "gradients not cleared": ("    optimizer.zero_grad()\n", "", "clear them with"),
        "cleared after backward": (
            "    optimizer.zero_grad()\n    loss.backward()\n",
            "    loss.backward()\n    optimizer.zero_grad()\n",
            "do not move",
        ),
        "no backward": ("    loss.backward()\n", "", "do not move"),
        "no step": ("    optimizer.step()\n", "", "do not move"),
        "a tensor is returned": (".item()", "", "tensor"),
        "nothing is returned": ("return loss", "loss", "None"),
        "the loss after the step": ("return loss", "_, loss = model(x, y)\n    return loss"),
        "two steps": ("    optimizer.step()\n", "    optimizer.step()\n    optimizer.step()\n"),
        "two backward passes": (
            "    loss.backward()\n",
            "    loss.backward(retain_graph=True)\n    loss.backward()\n",
        ),
        "an optimizer of its own": (
            "    optimizer",
            "    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)\n    optimizer",
        ),
        "SGD by hand": (
            "    optimizer.step()\n",
            "    for p in model.parameters():\n        p.data -= 0.1 * p.grad\n",
            "use the one",
        ),
        "x and y exchanged": ("model(x, y)", "model(y, x)"),
        "x as the target": ("model(x, y)", "model(x, x)"),
        "the first text only": ("model(x, y)", "model(x[:1], y[:1])", "all of x and y"),
        "clipped in silence": (
            "    optimizer.step()\n",
            "    nn.utils.clip_grad_norm_(model.parameters(), 1.0)\n    optimizer.step()\n",
            "clipping",
        ),
        "half the loss": ("loss.backward()", "(loss / 2).backward()"),
        "eval left on": ("    _, loss", "    model.eval()\n    _, loss"),
        "eval for the step, train after": (
            "    _, loss",
            "    model.eval()\n    _, loss",
            "eval()",
        ),
        "the loss rounded": ("loss.item()", "round(loss.item())"),
        "another learning rate": (
            "    optimizer.step()\n",
            "    optimizer.param_groups[0]['lr'] = 1.0\n    optimizer.step()\n",
        ),
        "x changed in place": ("    _, loss", "    x.mul_(0.5)\n    _, loss", "changes `x`"),
        "accumulated over four calls": (
            "    optimizer.zero_grad()\n    loss.backward()\n    optimizer.step()\n",
            "    optimizer.calls = getattr(optimizer, 'calls', 0) + 1\n    loss.backward()\n"
            "    if optimizer.calls > 2:\n        optimizer.step()\n        optimizer.zero_grad()\n",
        ),
    },
    "visible": {
        "the future": ("k_pos[None, :] <= q_pos[:, None]", "k_pos[None, :] == k_pos[None, :]"),
        "not itself": ("<=", "<", "its own"),
        "empty slots": (" & (k_pos[None, :] >= 0)", "", "empty slot"),
        "the past inverted": ("<=", ">=", "must see"),
        "turned": (
            "(k_pos[None, :] <= q_pos[:, None]) & (k_pos[None, :] >= 0)",
            "(k_pos[:, None] <= q_pos[None, :]) & (k_pos[:, None] >= 0)",
            "a row for each query",
        ),
        "by place": (
            "(k_pos[None, :] <= q_pos[:, None])",
            "torch.ones(len(q_pos), len(k_pos)).tril().bool()",
        ),
        "a window of 8": (">= 0)", ">= (q_pos[:, None] - 7).clamp(min=0))", "however far"),
        "a window of 64": (">= 0)", ">= (q_pos[:, None] - 63).clamp(min=0))", "however far"),
        "a window of 200": (">= 0)", ">= (q_pos[:, None] - 199).clamp(min=0))", "however far"),
        "8 bits for a position": (
            "    return",
            "    q_pos, k_pos = q_pos.to(torch.int8), k_pos.to(torch.int8)\n    return",
        ),
        "16 bits for a position": (
            "    return",
            "    q_pos, k_pos = q_pos.to(torch.int16), k_pos.to(torch.int16)\n    return",
        ),
        "16 queries": ("q_pos[:, None]", "q_pos[:16, None]", "a row for each query"),
        "position 0 is empty": (">= 0", "> 0"),
        "numbers": ("& (k_pos[None, :] >= 0)", "* 1.0 * (k_pos[None, :] >= 0)", "float"),
        "negative infinity": (
            "    return (k_pos[None, :] <= q_pos[:, None]) & (k_pos[None, :] >= 0)",
            "    m = (k_pos[None, :] <= q_pos[:, None]) & (k_pos[None, :] >= 0)\n"
            "    return torch.zeros(m.shape).masked_fill(~m, float('-inf'))",
            "0 and -inf",
        ),
        "empty slots filled in place": (
            "    return",
            "    k_pos[k_pos < 0] = 10**9\n    return",
            "changes `k_pos`",
        ),
        "sorted keys": ("    return", "    k_pos = k_pos.sort().values\n    return"),
    },
    "KVCache": {
        "keeps nothing": (KEEP, "", "not kept"),
        "another method": ("def update", "def append", "no method `update`"),
        "the new before the old": (
            CAT,
            "k, v = torch.cat([k, self.k], dim=1), torch.cat([v, self.v], dim=1)",
            "newest",
        ),
        "joined along the texts": (
            CAT,
            "k, v = torch.cat([self.k, k], dim=0), torch.cat([self.v, v], dim=0)",
            "along the token dimension",
        ),
        "no positions": (
            "            pos = torch.cat([self.pos, pos])\n",
            "",
            "keep the positions",
        ),
        "counted positions": (
            "            pos = torch.cat([self.pos, pos])\n",
            "        pos = torch.arange(k.shape[1])\n",
            "the positions are",
        ),
        "keys and values exchanged": ("return k, v, pos", "return v, k, pos", "mixed up"),
        "values not kept": (KEEP, "        self.k, self.v, self.pos = k, k, pos\n"),
        "keeps 6": (
            KEEP,
            "        self.k, self.v, self.pos = k[:, -6:], v[:, -6:], pos[-6:]\n        k, v, pos = self.k, self.v, self.pos\n",
        ),
        "keeps 64": (
            KEEP,
            "        k, v, pos = k[:, -64:], v[:, -64:], pos[-64:]\n" + KEEP,
            "forgets",
        ),
        "keeps 200": (
            KEEP,
            "        k, v, pos = k[:, -200:], v[:, -200:], pos[-200:]\n" + KEEP,
            "forgets",
        ),
        "keeps capacity - 1": (INIT, INIT + "        self.most = (capacity or 999) - 1\n", None),
        "keeps the first capacity": (INIT, INIT + "        self.most = capacity or 999\n", None),
        "float32 storage": (KEEP, "        k, v = k.float(), v.float()\n" + KEEP, "Keep the dtype"),
        "bfloat16 storage": (
            KEEP,
            "        k, v = k.bfloat16().to(k.dtype), v.bfloat16().to(v.dtype)\n" + KEEP,
            "lower-precision dtype",
        ),
        "rounded": (KEEP, "        k = k.round(decimals=3)\n" + KEEP),
        "pos changed": (
            "        if self.k",
            "        pos += 0 if self.k is None else 1\n        pos -= 0\n        if self.k",
            "changes `pos`",
        ),
        "k scaled in place": (
            "        if self.k",
            "        k *= 0.5\n        if self.k",
            "changes `k`",
        ),
        "shared by all caches": (
            INIT,
            "    k = v = pos = None\n\n    def __init__(self, capacity=None):\n        pass\n",
            None,
        ),
        "shared in a dict": (
            INIT,
            "    held = {'k': None, 'v': None, 'pos': None}\n\n    def __init__(self, capacity=None):\n        self.__dict__ = self.held\n",
            "second cache",
        ),
        "nothing returned": ("        return k, v, pos", "        pass", "three tensors"),
        "no positions returned": ("return k, v, pos", "return k, v", "two tensors are returned"),
        "text 0 for all": (
            CAT,
            "k, v = torch.cat([self.k, k[:1].expand_as(k)], 1), torch.cat([self.v, v], 1)",
            "text 1",
        ),
        "new token overwrites the last": (
            CAT,
            "k, v = torch.cat([self.k[:, :-1], k], 1), torch.cat([self.v[:, :-1], v], 1)",
        ),
        "wrong beyond 48": (
            KEEP,
            "        if k.shape[1] > 48:\n            k = torch.cat([k[:, 1:], k[:, :1]], 1)\n"
            + KEEP,
        ),
        "one token at a time": (
            "            pos = torch.cat([self.pos, pos])\n",
            "            pos = torch.cat([self.pos, pos[-1:]])\n",
        ),
        "no default capacity": ("capacity=None", "capacity"),
    },
    "Head": {
        "no mask": (SEEN, "torch.ones(len(pos), len(k_pos)).bool()", "future"),
        "a mask by place": (SEEN, "torch.ones(len(pos), len(k_pos)).tril().bool()"),
        "a mask aligned bottom right": (
            SEEN,
            "torch.ones(len(pos), len(k_pos)).tril(len(k_pos) - len(pos)).bool()",
            "StaticCache",
        ),
        "the mask by the queries' positions": (
            SEEN,
            "visible(pos, pos)",
            "the keys' positions",
        ),
        "update's result ignored": (
            "k, v, k_pos = self.cache.update",
            "self.cache.update",
            "is ignored",
        ),
        "keys and values swapped by update": (
            "k, v, k_pos = self.cache.update",
            "v, k, k_pos = self.cache.update",
            "swapped",
        ),
        "keys and values swapped": (
            QKV,
            "q, v, k, k_pos = self.query(x), self.key(x), self.value(x), pos",
            "are swapped: the",
        ),
        "is_causal with one query": (
            f"weights = attention_weights(q, k, {SEEN})  # (B, T, S)\n{LAST}",
            f"return F.scaled_dot_product_attention(q, k, v, is_causal=True)\n{LAST}",
            "by index, like",
        ),
        "another method": ("def forward", "def attend", "forward"),
        "a guard without training": (GUARD, "self.cache is not None", "training"),
        "a guard without a cache": (GUARD, "not self.training", "guard must check both"),
        "a cache asked for its truth": (
            "        self.cache = None  # set and removed by kv_cache(model)\n",
            "        self.cache = False\n",
            "self.cache = None",
        ),
        "no cache attribute": (
            "        self.cache = None  # set and removed by kv_cache(model)\n",
            "",
            "self.cache",
        ),
        "dropout always": ("self.dropout, self.training", "self.dropout", "dropout"),
        "dropout on the output": (
            LAST,
            "        return F.dropout(weights @ v, self.dropout, self.training)",
            "are dropped: dropout belongs",
        ),
        "dropout on the values": (
            LAST,
            "        return weights @ F.dropout(v, self.dropout, self.training)",
            "are dropped: dropout belongs",
        ),
        "no dropout": (LAST, "        return weights @ v", "nothing is dropped"),
        "dropout of another share": ("F.dropout(weights, self.dropout", "F.dropout(weights, 0.5"),
        "dropout without its scale": (
            LAST,
            "        if self.training:\n            weights = weights * (torch.rand_like(weights) > self.dropout)\n        return weights @ v",
            "1 / (1 - p)",
        ),
        "a window of 20": (SEEN, f"{SEEN} & (k_pos[None] > pos[:, None] - 20)"),
        "a window of 64": (SEEN, f"{SEEN} & (k_pos[None] > pos[:, None] - 64)"),
        "a window of 161": (SEEN, f"{SEEN} & (k_pos[None] > pos[:, None] - 161)"),
        "the first text only": (QKV, f"{QKV}\n        k = k[:1].expand_as(k)"),
        "weights detached": (
            "weights = attention_weights(",
            "weights = torch.detach(attention_weights)(",
            None,
        ),
        "keys detached": (
            "self.key(x)",
            "self.key(x.detach()).detach()",
            "gradient",
        ),
        "values detached": ("self.value(x)", "self.value(x).detach()", "gradient"),
        "scaled twice": (
            "attention_weights(q,",
            "attention_weights(q * q.shape[-1] ** -0.5,",
            "hs",
        ),
        "keys mixed": (LAST, LAST[:-1] + "k", "the weights are"),
        "queries and keys exchanged": (
            QK,
            "q = self.key(x)\n        k = self.query(x)\n",
            "are swapped",
        ),
        "values before keys in update": ("update(k, v, pos)", "update(v, k, pos)"),
        "positions counted from 0": (
            "update(k, v, pos)",
            "update(k, v, pos)\n            k_pos = torch.arange(k.shape[1])",
            "numbered from 0",
        ),
        "old positions for the mask": ("k, v, k_pos = self.cache", "k, v, _ = self.cache"),
        "x changed in place": (QKV, f"x -= x.mean()\n        {QKV}", "changes `x`"),
        "a bias": ("bias=False", "bias=True", "weights"),
        "float32 inside": (QKV, f"x = x.float()\n        {QKV}"),
        "another name": ("self.query", "self.q", "weights"),
        "the last read is remembered": (
            QKV,
            f"{QKV}\n        x = self.__dict__.setdefault('last', x)[:1, :1]\n        v = v + x.sum()",
        ),
        "queries in the cache": ("update(k, v, pos)", "update(q, v, pos)"),
        "one for several tokens": ("update(k, v, pos)", "update(k[:, -1:], v[:, -1:], pos[-1:])"),
    },
    "sample": {
        "no noise": (" / noise", "", "noise is not used"),
        "noise multiplied": ("/ noise", "* noise", "is multiplied"),
        "noise added": ("probs / noise", "probs + noise", "is added"),
        "no softmax": (PROBS, "logits", "softmax is missing"),
        "a sigmoid": (PROBS, "logits.sigmoid()", "a sigmoid does"),
        "softmax over the rows": (PROBS, "logits.softmax(0)", "over the rows"),
        "noise of its own": ("noise).arg", "torch.rand_like(noise)).arg", "your code draws"),
        "the least likely": ("argmax", "argmin"),
        "no last dimension": (", keepdim=True", "", "(B, 1)"),
        "temperature 0.9": (PROBS, "(logits / 0.9).softmax(-1)"),
        "temperature 1.01": (PROBS, "(logits / 1.05).softmax(-1)"),
        "the best three": (
            DRAW,
            "    probs = probs * (probs >= probs.topk(min(3, probs.shape[-1])).values[:, -1:])\n"
            + DRAW,
            "All",
        ),
        "the best forty": (
            DRAW,
            "    probs = probs * (probs >= probs.topk(min(40, probs.shape[-1])).values[:, -1:])\n"
            + DRAW,
            "All",
        ),
        "the first 32 candidates": (
            DRAW,
            "    return (probs / noise)[:, :32].argmax(-1, keepdim=True)",
        ),
        "the first row's noise": ("/ noise", "/ noise[:1]", "noise"),
        "softmax without the maximum": (
            PROBS,
            "logits.exp() / logits.exp().sum(-1, keepdim=True)",
            "overflows",
        ),
        "noise changed in place": (
            "(probs / noise)",
            "(noise.reciprocal_() * probs)",
            "changes `noise`",
        ),
        "a probability instead": (
            ".argmax(-1, keepdim=True)",
            ".amax(-1, keepdim=True)",
            "integer",
        ),
    },
    "generate_with_cache": {
        "positions from 0": (STEP, STEP.replace("pos[-1:] + 1", "pos[-1:] * 0"), "is at T"),
        "positions one late": (STEP, STEP.replace("+ 1", "+ 2"), "is at T"),
        "positions stay": (STEP, STEP.replace(" + 1", ""), "the position never"),
        "positions modulo 16": ("pos[-1:] + 1", "(pos[-1:] + 1) % 16", "at its own position"),
        "positions end at 128": (
            "pos[-1:] + 1",
            "(pos[-1:] + 1).clamp(max=128)",
            "at its own position",
        ),
        "gradients": ("@torch.no_grad()\n", "", "no_grad"),
        "tokens without a batch": ("yield tokens", "yield tokens[0]", "shape"),
        "the first logits": ("logits[:, -1]", "logits[:, 0]", "the first logits are used"),
        "no cache": ("with kv_cache(model, cache):", "if True:", "no cache is on"),
        "the whole text again": (
            "yield tokens\n",
            "yield tokens\n            tokens = torch.cat([prompt, tokens], 1)\n",
        ),
        "stops after 20": (
            "            yield tokens\n",
            "            yield tokens\n            if pos[-1] > 20:\n                return\n",
            "tokens",
        ),
        "greedy after 4": (
            TOKEN,
            "tokens = sample(logits[:, -1], row if pos[-1] < 9 else torch.ones_like(row))",
            "noise",
        ),
        "one row of noise": (TOKEN, "tokens = sample(logits[:, -1], noise[0])", "noise"),
        "the first text's noise": (
            TOKEN,
            "tokens = sample(logits[:, -1], row[:1].expand(len(tokens), -1))",
            "noise",
        ),
        "a cache of its own": ("kv_cache(model, cache)", "kv_cache(model)", "a cache of"),
        "eval left on": (
            "    tokens = prompt",
            "    model.eval()\n    tokens = prompt",
            "eval mode",
        ),
        "a list": (
            "            yield tokens\n",
            "            out = [*locals().get('out', []), tokens]\n",
            None,
        ),
        "one token too many read": (
            "            pos = pos[-1:] + 1",
            "            pos = pos[-1:] + 1\n        model(tokens, pos=pos)",
        ),
        "the prompt's last token twice": (
            "    with kv_cache(model, cache):\n",
            "    with kv_cache(model, cache):\n        model(prompt, pos=pos)\n        tokens, pos = prompt[:, -1:], pos[-1:] + 1\n",
            "is read twice",
        ),
        "caches left on": (
            "    with kv_cache(model, cache):\n",
            "    if kv_cache(model, cache).__enter__():\n",
            None,
        ),
        "the prompt changed": (
            "    with kv",
            "    prompt[:, -1] = 0\n    with kv",
            "changes `prompt`",
        ),
        "the noise changed": (TOKEN, "row /= 2\n            " + TOKEN, "changes `noise`"),
    },
    "StaticKVCache": {
        "another method": ("def update", "def append", "no method `update`"),
        "ones": (
            "new_zeros(k.shape[0], self.capacity, k.shape[2])",
            "new_ones(k.shape[0], self.capacity, k.shape[2])",
            "Allocate zeros, and",
        ),
        "empty slots at their place": (
            "pos.new_full((self.capacity,), -1)",
            "torch.arange(self.capacity)",
            "empty slots",
        ),
        "empty slots at 0": (
            "pos.new_full((self.capacity,), -1)",
            "pos.new_zeros(self.capacity)",
            "empty slots",
        ),
        "made again each time": ("if self.k is None", "if True"),
        "float32 always": (
            ZEROS,
            "torch.zeros(k.shape[0], self.capacity, k.shape[2])",
            "dtypes match",
        ),
        "counts slots": (
            WRITE,
            "        n = int((self.pos >= 0).sum())\n        slot = torch.arange(n, n + len(pos))\n"
            "        self.k[:, slot], self.v[:, slot], self.pos[slot] = k, v, pos\n",
            "that its position names",
        ),
        "wrong past 64": (WRITE, WRITE.replace("[:, pos]", "[:, pos % 64]")),
        "wraps at capacity": (
            WRITE,
            "        pos = pos % self.capacity\n" + WRITE,
            "silently loses a token",
        ),
        "wraps at capacity - 1": (WRITE, "        pos = pos % max(1, self.capacity - 1)\n" + WRITE),
        "the last slot is never written": (
            WRITE,
            "        last = pos < max(1, self.capacity - 1)\n        k, v, pos = k[:, last], v[:, last], pos[last]\n"
            + WRITE,
        ),
        "one slot more": (
            "self.k = k.new_zeros(k.shape[0], self.capacity,",
            "self.k = k.new_zeros(k.shape[0], self.capacity + 1,",
            "capacity",
        ),
        "returns only the filled": (
            "return self.k, self.v, self.pos",
            "n = int((self.pos >= 0).sum())\n        return self.k[:, :n], self.v[:, :n], self.pos[:n]",
            "return all `capacity`",
        ),
        "values as keys": (
            "self.v[:, pos] = v",
            "self.v[:, pos] = k",
        ),
        "keys and values exchanged": (
            "return self.k, self.v,",
            "return self.v, self.k,",
            "mixed up",
        ),
        "one tensor for both": (
            "self.v = torch.zeros_like(self.k)",
            "self.v = self.k",
        ),
        "shared by all": (
            SLOTS + "        self.capacity = capacity\n        self.k = self.v = self.pos = None\n",
            "    k = v = pos = None\n\n" + SLOTS + "        type(self).capacity = capacity\n",
            None,
        ),
        "new tensors by torch.cat": (
            WRITE,
            WRITE + "        self.k, self.v = self.k.clone(), self.v.clone()\n",
            "new tensors",
        ),
        "keeps quiet when full": (
            WRITE,
            "        fits = pos < self.capacity\n        k, v, pos = k[:, fits], v[:, fits], pos[fits]\n"
            + WRITE,
            "silently loses a token",
        ),
        "the positions counted": (
            "self.pos[pos] = pos",
            "self.pos[pos] = torch.arange(len(pos))",
        ),
        "text 0 for all": ("self.k[:, pos] = k", "self.k[:, pos] = k[:1]"),
        "v scaled in place": (WRITE, "        v *= 0.5\n" + WRITE, "changes `v`"),
    },
    "multiplications": {
        "values forgotten": (" * 2 ", " ", "values are missing"),
        "layers forgotten": (" * L", "", "each of the L layers"),
        "one query": ("n * T *", "T *", "count one token's"),
        "all tokens read": ("n = 1 if cached else T", "n = T"),
        "cached the other way round": ("if cached", "if not cached"),
        "half the square": ("n * T * 2", "n * (T + 1)"),
        "no matrices": ("n * W + ", ""),
        "right up to 10": ("    return", "    T = min(T, 10)\n    return"),
        "matrices once": ("n * W", "W", "passes through"),
    },
    "latency": {
        "ITL with the first": (
            "b - a for a, b in zip(moments, moments[1:])]",
            "b - a for a, b in zip(moments, moments[1:])]\n    rest = [first, *rest]",
            "TTFT",
        ),
        "TPOT with the first": (
            "sum(rest) / len(rest)",
            "(first + sum(rest)) / (1 + len(rest))",
            "first token",
        ),
        "median as TPOT": ("sum(rest) / len(rest)", "median(rest)", "median"),
        "E2EL from the first token": ("moments[0]", "moments[1]"),
        "no single token": (" if rest else None", "", "ZeroDivisionError"),
        "0 for a single token": ("else None", "else 0.0", "None"),
    },
    "paired_speedup": {
        "the other way round": ("x / y", "y / x", "b / a"),
        "a mean": (
            "median(x / y for x, y in zip(a, b))",
            "sum(x / y for x, y in zip(a, b)) / len(a)",
            "mean",
        ),
        "the ratio of medians": (
            "median(x / y for x, y in zip(a, b))",
            "median(a) / median(b)",
            "medians",
        ),
        "the upper of two": (
            "median(x / y for x, y in zip(a, b))",
            "sorted(x / y for x, y in zip(a, b))[len(a) // 2]",
            "half-way",
        ),
        "the middle, unsorted": (
            "median(x / y for x, y in zip(a, b))",
            "[x / y for x, y in zip(a, b)][len(a) // 2]",
        ),
    },
    "step_bytes": {
        "keys only": ("2 * ", "", "value"),
        "one layer": (" * n_layer", "", "layer"),
        "one head": (" * n_head", "", "head"),
        "a count of numbers": (
            "(n_weights + cache) * itemsize",
            "n_weights * itemsize + cache",
            "itemsize",
        ),
        "four bytes always": ("* itemsize", "* 4"),
        "whole tokens": ("* tokens", "* int(tokens)", "round"),
        "no weights": ("(n_weights + cache)", "cache"),
    },
    "fastest": {
        "added": (
            "max(flop / peak, n_bytes / bandwidth)",
            "(flop / peak + n_bytes / bandwidth)",
            "add",
        ),
        "seconds": ("1 / max", "max", "time per token"),
        "the shorter": ("max", "min", "shorter"),
        "reading only": (
            "max(flop / peak, n_bytes / bandwidth)",
            "(n_bytes / bandwidth)",
            "arithmetic",
        ),
        "whole tokens": (
            "1 / max(flop / peak, n_bytes / bandwidth)",
            "round(1 / max(flop / peak, n_bytes / bandwidth))",
        ),
    },
    "round_row": {
        "the largest with its sign": ("abs(number)", "number", "sign"),
        "minus the smallest": ("max(abs(number) for number in row)", "-min(row)"),
        "cut off": ("round(number / scale)", "int(number / scale)", "int()"),
        "floor": ("round(number / scale)", "int(number // scale)", "floor"),
        "divided by 128": ("/ 127", "/ 128", "127"),
        "zeros": ("    if scale == 0:\n        return [0] * len(row), 0.0\n", "", "zeros"),
        "the scale upside down": ("for number in row], scale", "for number in row], 1 / scale"),
    },
}
FORGETS = """\
class KVCache:
    def __init__(self, capacity=None):
        self.k = self.v = self.pos = None
        self.most = MOST

    def update(self, k, v, pos):
        if self.k is not None:
            k, v = torch.cat([self.k, k], dim=1), torch.cat([self.v, v], dim=1)
            pos = torch.cat([self.pos, pos])
        k, v, pos = k[:, -self.most :], v[:, -self.most :], pos[-self.most :]
        self.k, self.v, self.pos = k, v, pos
        return k, v, pos
"""
SHARED = """\
class KVCache:
    held = []

    def __init__(self, capacity=None):
        pass

    def update(self, k, v, pos):
        self.held.append((k, v, pos))
        k, v, pos = zip(*self.held)
        return torch.cat(k, 1), torch.cat(v, 1), torch.cat(pos)
"""
STATIC_SHARED = """\
class StaticKVCache:
    k = v = pos = None

    def __init__(self, capacity):
        self.capacity = capacity

    def update(self, k, v, pos):
        own = type(self)
        if own.k is None or own.k.shape != (k.shape[0], self.capacity, k.shape[2]) or own.k.dtype != k.dtype:
            own.k = k.new_zeros(k.shape[0], self.capacity, k.shape[2])
            own.v, own.pos = torch.zeros_like(own.k), pos.new_full((self.capacity,), -1)
        self.k[:, pos], self.v[:, pos], self.pos[pos] = k, v, pos
        return self.k, self.v, self.pos
"""
LEFT_ON = """\
@torch.no_grad()
def generate_with_cache(model, prompt, noise, cache):
    tokens, pos = prompt, torch.arange(prompt.shape[1])
    from nanogpt.cache import disable_kv_cache, enable_kv_cache

    enable_kv_cache(model, cache)
    for row in noise:
        logits, _ = model(tokens, pos=pos)
        tokens = sample(logits[:, -1], row)
        yield tokens
        pos = pos[-1:] + 1
    disable_kv_cache(model)
"""
LISTED = """\
@torch.no_grad()
def generate_with_cache(model, prompt, noise, cache):
    tokens, pos, out = prompt, torch.arange(prompt.shape[1]), []
    with kv_cache(model, cache):
        for row in noise:
            logits, _ = model(tokens, pos=pos)
            tokens = sample(logits[:, -1], row)
            out.append(tokens)
            pos = pos[-1:] + 1
    return torch.cat(out, dim=1)
"""
# Whole answers, where a replacement would not say it.
WRONG["KVCache"] |= {
    "keeps capacity - 1": ("", FORGETS.replace("MOST", "(capacity or 999) - 1"), "forgets"),
    "keeps the last capacity": (
        "",
        FORGETS.replace("MOST", "capacity or 10**6"),
        "silently loses a token",
    ),
    "shared by all caches": ("", SHARED, "needs its own tensors"),
}
del WRONG["KVCache"]["keeps the first capacity"]
WRONG["StaticKVCache"]["shared by all"] = ("", STATIC_SHARED, "needs its own tensors")
WRONG["generate_with_cache"] |= {
    "caches left on": ("", LEFT_ON, "stops in the middle"),
    "a list": ("", LISTED, "yield"),
}
WRONG["Head"]["weights detached"] = (
    "@ v",
    "@ v - F.dropout(weights, 0.0) @ v + weights.detach() @ v",
    "gradient",
)
