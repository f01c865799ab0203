# ruff: noqa: E501 (code in strings)
"""Right answers to the kept blanks, each in another style; data of test_checks.py."""

RIGHT = {
    "attention_weights": {
        "the logarithm of the mask": """
def attention_weights(q, k, mask):
    return torch.softmax(q @ k.mT / q.shape[-1] ** 0.5 + mask.to(q.dtype).log(), dim=-1)
""",
        "logsumexp": """
def attention_weights(q, k, mask):
    *_, hs = q.shape
    s = torch.where(mask, (q * (1 / math.sqrt(hs))) @ k.transpose(-1, -2), -torch.inf)
    return torch.exp(s - torch.logsumexp(s, dim=-1, keepdim=True))
""",
        "text by text": """
def attention_weights(q, k, mask):
    if q.ndim > 2:
        return torch.stack([attention_weights(a, b, mask) for a, b in zip(q, k)])
    rows = []
    for i in range(len(q)):
        row = torch.zeros(len(k), dtype=q.dtype)
        here = mask[i].nonzero()[:, 0]
        row = row.index_add(0, here, (k[here] @ q[i] / len(q[i]) ** 0.5).softmax(0))
        rows.append(row)
    return torch.stack(rows)
""",
        "an nn.Softmax, in place": """
SOFTMAX = nn.Softmax(dim=-1)

def attention_weights(q, k, mask):
    scores = q.matmul(k.swapaxes(-1, -2)).mul_(q.size(-1) ** -0.5)
    scores[..., ~mask] = float("-inf")
    return SOFTMAX(scores)
""",
        "the smallest float": """
def attention_weights(q, k, mask):
    hs = q.shape[-1]
    scores = (q / hs ** 0.25) @ (k / hs ** 0.25).mT
    return scores.masked_fill(torch.logical_not(mask), torch.finfo(scores.dtype).min).softmax(-1)
""",
        "float64 inside and back": """
def attention_weights(q, k, mask):
    scores = q.double() @ k.double().mT / q.shape[-1] ** 0.5
    return scores.masked_fill(~mask, float("-inf")).softmax(-1).to(q.dtype)
""",
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
        "a closure": """
def one_step(model, optimizer, x, y):
    def closure():
        optimizer.zero_grad()
        loss = model(x, y)[1]
        loss.backward()
        return loss
    return optimizer.step(closure).item()
""",
        "arguments by name": """
def one_step(model, optimizer, x, y):
    logits, loss = model(x, targets=y)
    optimizer.zero_grad(set_to_none=True)
    loss.backward()
    optimizer.step()
    return loss.item()
""",
        "grad set to None": """
def one_step(model, optimizer, x, y):
    for p in model.parameters():
        p.grad = None
    _, loss = model(x, y)
    torch.autograd.backward([loss])
    optimizer.step()
    return loss.detach().cpu().numpy().item()
""",
        "try and finally": """
def one_step(model, optimizer, x, y):
    try:
        out = model(x, y)
        (out[1] * 1.0).backward()
        optimizer.step()
        return out[1].item()
    finally:
        optimizer.zero_grad()
""",
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
        "numpy": """
def visible(q_pos, k_pos):
    q, k = q_pos.numpy(), k_pos.numpy()
    return torch.from_numpy((k[None] >= 0) & (k[None] <= q[:, None]))
""",
        "a meshgrid": """
def visible(q_pos, k_pos):
    q, k = torch.meshgrid(q_pos, k_pos, indexing="ij")
    return ~((k > q) | (k == -1))
""",
        "clamped": """
def visible(q_pos, k_pos):
    return k_pos.clamp(min=-1).expand(len(q_pos), -1).ne(-1).logical_and(q_pos[:, None].sub(k_pos).sign() != -1)
""",
        "vmap": """
def visible(q_pos, k_pos):
    return torch.vmap(lambda q: (k_pos <= q) & (0 <= k_pos))(q_pos)
""",
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
        "a dataclass": """
from dataclasses import dataclass


@dataclass
class KVCache:
    capacity: int | None = None
    k: Tensor | None = None
    v: Tensor | None = None
    pos: Tensor | None = None

    def update(self, k, v, pos):
        if self.k is None:
            self.k, self.v, self.pos = k, v, pos
            return k, v, pos
        self.k, self.v = torch.cat([self.k, k], 1), torch.cat([self.v, v], 1)
        self.pos = torch.cat([self.pos, pos])
        return self.k, self.v, self.pos
""",
        "slots and padding": """
class KVCache:
    __slots__ = ("rows",)

    def __init__(self, capacity=None):
        self.rows = ()

    def update(self, k, v, pos):
        if self.rows:
            T = k.shape[1]
            old_k, old_v, old_pos = self.rows
            K, V, P = F.pad(old_k, (0, 0, 0, T)), F.pad(old_v, (0, 0, 0, T)), F.pad(old_pos, (0, T))
            K[:, -T:], V[:, -T:], P[-T:] = k, v, pos
            self.rows = K, V, P
        else:
            self.rows = k, v, pos
        return self.rows
""",
        "a subclass of list": """
class KVCache(list):
    def __init__(self, capacity=None):
        super().__init__()

    def update(self, k, v, pos):
        self.append((k, v, pos))
        return tuple(torch.concat(part, dim=0 if part[0].ndim == 1 else 1) for part in zip(*self))
""",
        "token by token": """
class KVCache:
    def __init__(self, capacity=None, /):
        self.tokens = []

    def update(self, k, v, pos):
        self.tokens += zip(k.unbind(1), v.unbind(1), pos.unbind(0))
        keys, values, places = zip(*self.tokens)
        return torch.stack(keys, 1), torch.stack(values, 1), torch.stack(places)
""",
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
        "a base class": """
class Cached(nn.Module):
    def __init__(self, config):
        super().__init__()
        self.cache = None

    def seen(self, k, v, pos):
        if self.training or self.cache is None:
            return k, v, pos
        return self.cache.update(k, v, pos)


class Head(Cached):
    def __init__(self, config):
        super().__init__(config)
        self.query = nn.Linear(config.n_embd, config.head_size, bias=False)
        self.key = nn.Linear(config.n_embd, config.head_size, bias=False)
        self.value = nn.Linear(config.n_embd, config.head_size, bias=False)
        self.drop = nn.Dropout(config.dropout)

    def forward(self, x, pos):
        k, v, at = self.seen(self.key(x), self.value(x), pos)
        return self.drop(attention_weights(self.query(x), k, visible(pos, at))).bmm(v)
""",
        "one product for three": """
class Head(nn.Module):
    def __init__(self, config):
        super().__init__()
        for name in ("key", "query", "value"):
            self.add_module(name, nn.Linear(config.n_embd, config.head_size, bias=False))
        self.dropout = config.dropout
        self.cache = None

    def forward(self, x, pos):
        three = torch.cat([self.query.weight, self.key.weight, self.value.weight])
        q, k, v = F.linear(x, three).chunk(3, dim=-1)
        k_pos = pos
        if self.cache is not None and self.training is False:
            k, v, k_pos = self.cache.update(k.contiguous(), v.contiguous(), pos)
        w = torch.dropout(attention_weights(q, k, visible(pos, k_pos)), self.dropout, self.training)
        return torch.einsum("bts,bsd->btd", w, v)
""",
        "dropout by a bernoulli draw": """
class Head(nn.Module):
    def __init__(self, config):
        super().__init__()
        self.key = nn.Linear(config.n_embd, config.head_size, bias=False)
        self.query = nn.Linear(config.n_embd, config.head_size, bias=False)
        self.value = nn.Linear(config.n_embd, config.head_size, bias=False)
        self.keep = 1 - config.dropout
        self.scale = config.head_size ** -0.5
        self.cache = None

    def forward(self, x, pos):
        k, v, k_pos = (self.key(x), self.value(x), pos)
        if not (self.cache is None or self.training):
            k, v, k_pos = self.cache.update(k=k, v=v, pos=pos)
        s = torch.bmm(self.query(x), k.transpose(1, 2)) * self.scale
        w = torch.where(k_pos[None, :] > pos[:, None], -torch.inf, s)
        w = torch.where(k_pos < 0, -torch.inf, w).softmax(-1)
        if self.training:
            w = w * torch.bernoulli(torch.full_like(w, self.keep)) / self.keep
        return w @ v
""",
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
        "a sort": """
def sample(logits, noise):
    return torch.sort(logits.softmax(dim=-1) / noise, dim=-1, descending=True)[1][:, :1]
""",
        "powers by hand": """
def sample(logits, noise):
    powers = (logits - logits.max(dim=-1, keepdim=True)[0]).exp()
    shares = powers / powers.sum(dim=-1, keepdim=True)
    return torch.argmax(shares * noise.reciprocal(), dim=-1).view(-1, 1)
""",
        "Python's max": """
def sample(logits, noise):
    race = (logits.log_softmax(-1) - noise.log()).tolist()
    return torch.tensor([[max(range(len(row)), key=row.__getitem__)] for row in race])
""",
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
        "yield from": """
@torch.no_grad()
def generate_with_cache(model, prompt, noise, cache):
    def steps(tokens, start, rows):
        for row in rows:
            pos = start + torch.arange(tokens.size(1))
            start += tokens.size(1)
            tokens = sample(model(tokens, pos=pos)[0][:, -1], row)
            yield tokens

    with kv_cache(model, cache):
        yield from steps(prompt, 0, noise)
""",
        "eval and back": """
@torch.no_grad()
def generate_with_cache(model, prompt, noise, cache):
    was = model.training
    model.eval()
    try:
        with kv_cache(model, cache, prompt.shape[1] + len(noise) - 1):
            new, pos = prompt, torch.arange(prompt.shape[1])
            for i in range(noise.shape[0]):
                new = sample(model(new, pos=pos)[0][:, -1, :], noise[i])
                yield new
                pos = torch.tensor([prompt.shape[1] + i])
    finally:
        model.train(was)
""",
        "a while loop over a text": """
@torch.no_grad()
def generate_with_cache(model, prompt, noise, cache):
    T, n = prompt.shape[1], len(noise)
    text = torch.cat([prompt, prompt.new_zeros(len(prompt), n)], dim=1)
    places = torch.arange(T + n)
    begin, end = 0, T
    with kv_cache(model, cache):
        while end < T + n:
            logits, loss = model(idx=text[:, begin:end], targets=None, pos=places[begin:end])
            text[:, end : end + 1] = sample(logits[:, -1], noise[end - T])
            yield text[:, end : end + 1].clone()
            begin, end = end, end + 1
""",
        "an iterator of its own": """
class Loop:
    def __init__(self, model, prompt, noise, cache):
        self.model, self.tokens, self.noise, self.pos = model, prompt, iter(noise), torch.arange(prompt.shape[1])
        self.on = kv_cache(model, cache)

    def __iter__(self):
        with torch.no_grad(), self.on:
            for row in self.noise:
                self.tokens = sample(self.model(self.tokens, pos=self.pos)[0][:, -1], row)
                self.pos = self.pos[-1:] + 1
                yield self.tokens


def generate_with_cache(model, prompt, noise, cache):
    return iter(Loop(model, prompt, noise, cache))
""",
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
        "slots first": """
class StaticKVCache:
    def __init__(self, capacity):
        self.capacity, self.room, self.at = capacity, None, torch.full((capacity,), -1)

    def update(self, k, v, pos):
        if self.room is None:
            self.room = k.new_zeros(self.capacity, 2, *k[:, 0].shape)
        self.room[pos, 0] = k.transpose(0, 1)
        self.room[pos, 1] = v.transpose(0, 1)
        self.at[pos] = pos
        return self.room[:, 0].transpose(0, 1), self.room[:, 1].transpose(0, 1), self.at
""",
        "room for more": """
class StaticKVCache:
    def __init__(self, capacity):
        self.capacity = capacity

    def update(self, k, v, pos):
        if not hasattr(self, "k"):
            room = -(-self.capacity // 8) * 8
            self.k, self.v = (torch.zeros(len(k), room, k.shape[-1], dtype=k.dtype) for _ in range(2))
            self.pos = torch.full((room,), -1, dtype=torch.int64)
        if pos.max() >= self.capacity:
            raise IndexError(f"position {pos.max()} of {self.capacity}")
        self.k[:, pos], self.v[:, pos], self.pos[pos] = k, v, pos
        c = self.capacity
        return self.k[:, :c], self.v[:, :c], self.pos[:c]
""",
        "narrow and copy_": """
class StaticKVCache:
    def __init__(self, capacity):
        self.capacity = capacity
        self.k = self.v = self.pos = None

    def update(self, k, v, pos):
        first, T = pos[0].item(), pos.numel()
        if self.k is None:
            self.k = torch.zeros_like(k[:, :1]).repeat(1, self.capacity, 1)
            self.v = self.k.clone()
            self.pos = torch.zeros(self.capacity, dtype=torch.long) - 1
        for kept, new in ((self.k, k), (self.v, v)):
            kept.narrow(1, first, T).copy_(new)
        self.pos.narrow(0, first, T).copy_(pos)
        return self.k, self.v, self.pos
""",
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
        "a factor": """
def multiplications(T, W, L, C, cached):
    return (W + 2 * L * C * T) * T ** (not cached)
""",
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
        "statistics": """
def latency(moments):
    import statistics
    call, first, *rest = moments
    itl = [b - a for a, b in zip([first, *rest], rest)]
    tpot = statistics.mean(itl) if itl else None
    return {"e2el": (rest or [first])[-1] - call, "itl": itl, "tpot": tpot, "ttft": first - call}
""",
        "by index": """
def latency(moments):
    gaps = [moments[i] - moments[i - 1] for i in range(2, len(moments))]
    e2el, ttft = moments[-1] - moments[0], moments[1] - moments[0]
    tpot = (e2el - ttft) / len(gaps) if len(gaps) > 0 else None
    return dict(ttft=ttft, tpot=tpot, itl=tuple(gaps), e2el=e2el)
""",
    },
    "paired_speedup": {
        "numpy": """
def paired_speedup(a, b):
    import numpy
    return numpy.median(numpy.array(a) / numpy.array(b))
""",
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
        "numbers first": """
def step_bytes(n_weights, n_layer, n_head, head_size, tokens, itemsize=4):
    numbers = n_weights
    for _layer in range(n_layer):
        for _head in range(n_head):
            numbers += tokens * head_size  # keys
            numbers += tokens * head_size  # values
    return numbers * itemsize
""",
        "bytes first": """
def step_bytes(n_weights, n_layer, n_head, head_size, tokens, itemsize=4):
    per_token = n_layer * n_head * (head_size + head_size) * itemsize
    return n_weights * itemsize + per_token * tokens
""",
    },
    "fastest": {
        "an if": """
def fastest(flop, n_bytes, peak, bandwidth):
    compute, read = flop / peak, n_bytes / bandwidth
    if compute >= read:
        return compute ** -1
    return read ** -1
""",
        "the smaller of two rates": """
def fastest(flop, n_bytes, peak, bandwidth):
    return min(peak / flop, bandwidth / n_bytes)
""",
    },
    "round_row": {
        "clamped codes": """
def round_row(row):
    scale = max(max(row), -min(row)) / 127 or 1.0
    return [max(-127, min(127, int(math.copysign(abs(x) / scale + 0.5, x)))) for x in row], scale
""",
        "torch": """
def round_row(row):
    x = torch.tensor(row, dtype=torch.float64)
    largest = x.abs().max().item()
    scale = largest / 127 if largest else 1.0
    return (x / scale).round().int().tolist(), scale
""",
    },
}
