"""Right answers to the kept blanks, each in another style; data of test_judges.py."""

RIGHT = {
    "attention_weights": {
        "einsum": """
def attention_weights(q, k, mask):
    scores = torch.einsum("...td,...sd->...ts", q, k) / math.sqrt(q.size(-1))
    return torch.softmax(scores.masked_fill(mask == 0, -torch.inf), dim=-1)
""",
        "torch.where": """
def attention_weights(q, k, mask):
    scores = torch.matmul(q, k.mT) / q.shape[-1] ** 0.5
    return F.softmax(torch.where(mask, scores, float("-inf")), -1)
""",
        "an added mask": """
def attention_weights(q, k, mask):
    hidden = torch.zeros(mask.shape, dtype=q.dtype).masked_fill(mask.logical_not(), float("-inf"))
    return ((q * q.shape[-1] ** -0.5) @ k.transpose(-1, -2) + hidden).softmax(dim=-1)
""",
        "a large number for infinity": """
def attention_weights(q, k, mask):
    scores = q @ k.transpose(-2, -1) / (k.shape[-1] ** 0.5)
    return scores.masked_fill(~mask, -1e9).softmax(-1)
""",
        "softmax by hand": """
def attention_weights(q, k, mask):
    scores = (q @ k.transpose(-2, -1) / q.shape[-1] ** 0.5).masked_fill(~mask, float("-inf"))
    powers = (scores - scores.amax(-1, keepdim=True)).exp()
    return powers / powers.sum(-1, keepdim=True)
""",
        "scaled_dot_product_attention of the identity": """
def attention_weights(q, k, mask):
    eye = torch.eye(k.shape[-2], dtype=q.dtype).expand(*k.shape[:-1], k.shape[-2])
    return F.scaled_dot_product_attention(q, k, eye, attn_mask=mask)
""",
    },
    "one_step": {
        "cleared at the end": """
def one_step(model, optimizer, x, y):
    logits, loss = model(x, y)
    loss.backward()
    optimizer.step()
    optimizer.zero_grad(set_to_none=True)
    return float(loss)
""",
        "cleared by the model": """
def one_step(model, optimizer, x, y):
    model.zero_grad()
    loss = model(x, y)[1]
    loss.backward()
    optimizer.step()
    return loss.detach().item()
""",
        "gradients by hand": """
def one_step(model, optimizer, x, y):
    loss = model(x, y)[-1]
    weights = [p for group in optimizer.param_groups for p in group["params"]]
    for p, gradient in zip(weights, torch.autograd.grad(loss, weights)):
        p.grad = gradient
    optimizer.step()
    return loss.item()
""",
        "in training mode, said": """
def one_step(model, optimizer, x, y):
    model.train()
    optimizer.zero_grad(set_to_none=False)
    with torch.enable_grad():
        _, loss = model(x, y)
    loss.backward()
    optimizer.step()
    return loss.tolist()
""",
    },
    "visible": {
        "a loop": """
def visible(q_pos, k_pos):
    mask = torch.zeros(len(q_pos), len(k_pos), dtype=torch.bool)
    keys = k_pos.tolist()
    for i, q in enumerate(q_pos.tolist()):
        mask[i] = torch.tensor([0 <= key <= q for key in keys])
    return mask
""",
        "unsqueeze": """
def visible(q_pos, k_pos):
    q_pos, k_pos = q_pos.unsqueeze(1), k_pos.unsqueeze(0)
    return torch.logical_and(q_pos >= k_pos, k_pos > -1)
""",
        "outer difference": """
def visible(q_pos, k_pos):
    gap = torch.sub(q_pos.view(-1, 1), k_pos.view(1, -1))
    return (gap >= 0) & ~(k_pos < 0)
""",
        "torch.where": """
def visible(q_pos, k_pos):
    keys = torch.where(k_pos < 0, torch.iinfo(torch.int64).max, k_pos)
    return keys[None] <= q_pos[:, None]
""",
        "broadcast by ge.outer": """
def visible(q_pos, k_pos):
    return q_pos[:, None].ge(k_pos) * k_pos.ge(0)
""",
    },
    "KVCache": {
        "a list": """
class KVCache:
    def __init__(self, capacity=None):
        self.held = []

    def update(self, k, v, pos):
        self.held.append((k, v, pos))
        k, v, pos = zip(*self.held)
        return [torch.cat(k, 1), torch.cat(v, 1), torch.cat(pos)]
""",
        "clones": """
class KVCache:
    def __init__(self, capacity=None):
        self.k = self.v = self.pos = None

    def update(self, k, v, pos):
        if self.k is None:
            self.k, self.v, self.pos = k.clone(), v.clone(), pos.clone()
        else:
            self.k = torch.cat((self.k, k.clone()), dim=-2)
            self.v = torch.cat((self.v, v.clone()), dim=-2)
            self.pos = torch.cat((self.pos, pos.clone()), dim=-1)
        return self.k.clone(), self.v.clone(), self.pos.clone()
""",
        "buffers that double": """
class KVCache:
    def __init__(self, capacity=None):
        self.k = self.v = self.pos = None
        self.n = 0

    def update(self, k, v, pos):
        end = self.n + k.shape[1]
        if self.k is None:
            self.k, self.v, self.pos = k[:, :0], v[:, :0], pos[:0]
        if end > self.k.shape[1]:
            room = max(2 * self.k.shape[1], end) - self.k.shape[1]
            self.k = torch.cat([self.k, k.new_empty(k.shape[0], room, k.shape[2])], 1)
            self.v = torch.cat([self.v, v.new_empty(v.shape[0], room, v.shape[2])], 1)
            self.pos = torch.cat([self.pos, pos.new_full((room,), -1)])
        self.k[:, self.n : end] = k
        self.v[:, self.n : end] = v
        self.pos[self.n : end] = pos
        self.n = end
        return self.k[:, :end], self.v[:, :end], self.pos[:end]
""",
        "one tensor for both": """
class KVCache:
    def __init__(self, capacity=None):
        self.kv, self.pos = None, None

    def update(self, k, v, pos):
        new = torch.stack([k, v])
        self.kv = new if self.kv is None else torch.cat([self.kv, new], dim=2)
        self.pos = pos if self.pos is None else torch.hstack([self.pos, pos])
        return *self.kv.unbind(0), self.pos
""",
        "empty tensors instead of None": """
class KVCache:
    def __init__(self, capacity=None):
        self.parts = {"k": [], "v": [], "pos": []}

    def update(self, k, v, pos):
        for name, new in (("k", k), ("v", v), ("pos", pos)):
            self.parts[name] = [torch.cat([*self.parts[name], new], dim=min(1, new.ndim - 1))]
        return tuple(part[0] for part in self.parts.values())
""",
    },
    "Head": {
        "the lecture's triangle as a buffer": """
class Head(nn.Module):
    def __init__(self, config):
        super().__init__()
        self.key = nn.Linear(config.n_embd, config.head_size, bias=False)
        self.query = nn.Linear(config.n_embd, config.head_size, bias=False)
        self.value = nn.Linear(config.n_embd, config.head_size, bias=False)
        self.register_buffer("tril", torch.tril(torch.ones(config.block_size, config.block_size)))
        self.dropout = nn.Dropout(config.dropout)
        self.cache = None

    def forward(self, x, pos):
        B, T, C = x.shape
        k, q, v, k_pos = self.key(x), self.query(x), self.value(x), pos
        if not self.training and self.cache is not None:
            k, v, k_pos = self.cache.update(k, v, pos)
        wei = q @ k.transpose(-2, -1) * k.shape[-1] ** -0.5
        seen = (self.tril[pos][:, k_pos] == 1) & (k_pos >= 0)
        wei = F.softmax(wei.masked_fill(~seen, float("-inf")), dim=-1)
        return self.dropout(wei) @ v
""",
        "scaled_dot_product_attention": """
class Head(nn.Module):
    def __init__(self, config):
        super().__init__()
        for name in ("key", "query", "value"):
            setattr(self, name, nn.Linear(config.n_embd, config.head_size, bias=False))
        self.p, self.cache = config.dropout, None

    def forward(self, x, pos):
        new = self.key(x), self.value(x), pos
        use = self.cache is not None and not self.training
        k, v, k_pos = self.cache.update(*new) if use else new
        p = self.p if self.training else 0.0
        mask = visible(pos, k_pos)
        return F.scaled_dot_product_attention(self.query(x), k, v, attn_mask=mask, dropout_p=p)
""",
        "einsum": """
class Head(nn.Module):
    def __init__(self, config):
        super().__init__()
        C, hs = config.n_embd, config.n_embd // config.n_head
        self.key, self.query, self.value = (nn.Linear(C, hs, bias=False) for _ in range(3))
        self.drop = nn.Dropout(p=config.dropout)
        self.cache, self.hs = None, hs

    def forward(self, x, pos):
        q, k, v = self.query(x), self.key(x), self.value(x)
        key_pos = pos
        if self.cache is None or self.training:
            pass
        else:
            k, v, key_pos = self.cache.update(k, v, pos)
        scores = torch.einsum("btd,bsd->bts", q, k) / math.sqrt(self.hs)
        scores = scores.masked_fill(~visible(pos, key_pos), float("-inf"))
        return torch.einsum("bts,bsd->btd", self.drop(scores.softmax(-1)), v)
""",
        "dropout by hand": """
class Head(nn.Module):
    def __init__(self, config):
        super().__init__()
        self.key = nn.Linear(config.n_embd, config.head_size, bias=False)
        self.query = nn.Linear(config.n_embd, config.head_size, bias=False)
        self.value = nn.Linear(config.n_embd, config.head_size, bias=False)
        self.config = config
        self.cache = None

    def forward(self, x, pos):
        k, v, k_pos = self.key(x), self.value(x), pos
        if not self.training:
            if self.cache is not None:
                k, v, k_pos = self.cache.update(k, v, k_pos)
        w = attention_weights(self.query(x), k, visible(pos, k_pos))
        if self.training and self.config.dropout > 0:
            p = self.config.dropout
            w = w * (torch.rand_like(w) > p) / (1 - p)
        return torch.matmul(w, v)
""",
    },
    "sample": {
        "logarithms": """
def sample(logits, noise):
    return (logits.log_softmax(-1) - noise.log()).argmax(-1, keepdim=True)
""",
        "without the softmax": """
def sample(logits, noise):
    return (logits - torch.log(noise)).max(dim=-1, keepdim=True).indices
""",
        "the first clock": """
def sample(logits, noise):
    rings = noise / F.softmax(logits, dim=-1)
    return torch.argmin(rings, dim=1)[:, None]
""",
        "topk": """
def sample(logits, noise):
    return torch.topk(torch.softmax(logits, 1).div(noise), 1).indices
""",
        "row by row": """
def sample(logits, noise):
    rows = [(row.softmax(0) / clock).argmax() for row, clock in zip(logits, noise)]
    return torch.stack(rows).unsqueeze(1)
""",
    },
    "generate_with_cache": {
        "a prefill of its own": """
@torch.no_grad()
def generate_with_cache(model, prompt, noise, cache):
    T = prompt.shape[1]
    with kv_cache(model, cache):
        logits = model(prompt, pos=torch.arange(T))[0]
        token = sample(logits[:, -1], noise[0])
        yield token
        for i in range(1, len(noise)):
            logits = model(token, pos=torch.tensor([T + i - 1]))[0]
            token = sample(logits[:, -1, :], noise[i])
            yield token
""",
        "inference mode": """
@torch.inference_mode()
def generate_with_cache(model, prompt, noise, cache):
    with kv_cache(model, cache, model.config.block_size):
        start, tokens = 0, prompt
        for row in noise:
            end = start + tokens.shape[1]
            logits, _ = model(tokens, None, torch.arange(start, end, device=tokens.device))
            start, tokens = end, sample(logits[:, -1], row)
            yield tokens
""",
        "the prompt token by token": """
@torch.no_grad()
def generate_with_cache(model, prompt, noise, cache):
    with kv_cache(model, cache):
        for t in range(prompt.shape[1]):
            logits, _ = model(prompt[:, t : t + 1], pos=torch.tensor([t]))
        for i, row in enumerate(noise):
            token = sample(logits[:, -1], row)
            yield token
            if i + 1 < len(noise):
                t += 1
                logits, _ = model(token, pos=torch.tensor([t]))
""",
        "no_grad inside": """
def generate_with_cache(model, prompt, noise, cache):
    text = prompt.clone()
    with torch.no_grad(), kv_cache(model, cache):
        read = 0
        for row in noise:
            pos = torch.arange(text.shape[1])[read:]
            logits, _ = model(text[:, read:], pos=pos)
            read = text.shape[1]
            text = torch.cat([text, sample(logits[:, -1], row)], 1)
            yield text[:, -1:]
""",
    },
    "StaticKVCache": {
        "index_copy_": """
class StaticKVCache:
    def __init__(self, capacity):
        self.capacity, self.k = capacity, None

    def update(self, k, v, pos):
        if self.k is None:
            B, _, hs = k.shape
            self.k = torch.zeros(B, self.capacity, hs, dtype=k.dtype, device=k.device)
            self.v = torch.zeros_like(self.k)
            self.pos = torch.full((self.capacity,), -1, dtype=pos.dtype, device=pos.device)
        self.k.index_copy_(1, pos, k)
        self.v.index_copy_(1, pos, v)
        self.pos.index_copy_(0, pos, pos)
        return [self.k, self.v, self.pos]
""",
        "token by token": """
class StaticKVCache:
    def __init__(self, capacity):
        self.capacity = capacity
        self.buffers = {}

    def update(self, k, v, pos):
        if not self.buffers:
            self.buffers["k"] = k.new_zeros(len(k), self.capacity, k.size(-1))
            self.buffers["v"] = v.new_zeros(len(v), self.capacity, v.size(-1))
            self.buffers["pos"] = -torch.ones(self.capacity, dtype=torch.long)
        for t, place in enumerate(pos.tolist()):
            self.buffers["k"][:, place], self.buffers["v"][:, place] = k[:, t], v[:, t]
            self.buffers["pos"][place] = place
        return tuple(self.buffers.values())
""",
        "one tensor for both, clones out": """
class StaticKVCache:
    def __init__(self, capacity):
        self.capacity = capacity
        self.kv = None

    def update(self, k, v, pos):
        if self.kv is None:
            self.kv = k.new_zeros(2, k.shape[0], self.capacity, k.shape[2])
            self.pos = pos.new_full((self.capacity,), -1)
        self.kv[0, :, pos], self.kv[1, :, pos], self.pos[pos] = k, v, pos
        return self.kv[0].clone(), self.kv[1].clone(), self.pos.clone()
""",
        "scatter_": """
class StaticKVCache:
    def __init__(self, capacity):
        self.capacity = capacity
        self.k = self.v = self.pos = None

    def update(self, k, v, pos):
        if int(pos[-1]) >= self.capacity:
            raise ValueError("the cache is full")
        if self.k is None:
            self.k, self.v = (x.new_zeros(x.shape[0], self.capacity, x.shape[2]) for x in (k, v))
            self.pos = torch.full([self.capacity], -1)
        where = pos[None, :, None].expand_as(k)
        self.k.scatter_(1, where, k)
        self.v.scatter_(1, where, v)
        self.pos[pos] = pos
        return self.k, self.v, self.pos
""",
    },
    "multiplications": {
        "two cases": """
def multiplications(T, W, L, C, cached):
    if cached:
        return W + L * (T * C + T * C)
    return T * W + L * 2 * T * T * C
""",
        "token by token": """
def multiplications(T, W, L, C, cached):
    reads = [T - 1] if cached else range(T)
    return sum(W + sum(2 * C * T for _ in range(L)) for _ in reads)
""",
    },
    "latency": {
        "by index": """
def latency(moments):
    gaps = [moments[i] - moments[i - 1] for i in range(2, len(moments))]
    e2el, ttft = moments[-1] - moments[0], moments[1] - moments[0]
    tpot = (e2el - ttft) / len(gaps) if len(gaps) > 0 else None
    return dict(ttft=ttft, tpot=tpot, itl=tuple(gaps), e2el=e2el)
""",
    },
    "paired_speedup": {
        "sorted by hand": """
def paired_speedup(a, b):
    r = sorted(x / y for x, y in zip(a, b))
    n = len(r)
    return (r[(n - 1) // 2] + r[n // 2]) / 2
""",
        "torch.quantile": """
def paired_speedup(a, b):
    ratios = torch.tensor(a, dtype=torch.float64) / torch.tensor(b, dtype=torch.float64)
    return ratios.quantile(0.5).item()
""",
    },
    "step_bytes": {
        "bytes first": """
def step_bytes(n_weights, n_layer, n_head, head_size, tokens, itemsize=4):
    per_token = n_layer * n_head * (head_size + head_size) * itemsize
    return n_weights * itemsize + per_token * tokens
""",
    },
    "fastest": {
        "the smaller of two rates": """
def fastest(flop, n_bytes, peak, bandwidth):
    return min(peak / flop, bandwidth / n_bytes)
""",
    },
    "round_row": {
        "torch": """
def round_row(row):
    x = torch.tensor(row, dtype=torch.float64)
    largest = x.abs().max().item()
    scale = largest / 127 if largest else 1.0
    return (x / scale).round().int().tolist(), scale
""",
    },
}
