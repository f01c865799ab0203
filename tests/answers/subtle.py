# ruff: noqa: E501 (code in strings)
"""Wrong answers that show late: at odd shapes, in a second call, a long text, a batch, a gradient.

As in wrong.py: what replaces what in the solution, and a word of the message. Where the
first part is empty, the second is the whole answer. Data of test_checks.py.
"""

from .wrong import CAT, KEEP, QKV, WRITE

SUBTLE = {
    "attention_weights": {
        "the 256 best keys": (
            '    return scores.masked_fill(~mask, float("-inf")).softmax(-1)',
            "    s = scores.masked_fill(~mask, float(\"-inf\"))\n    least = s.topk(min(256, s.shape[-1])).values[..., -1:]\n    return s.masked_fill(s < least, float('-inf')).softmax(-1)",
        ),
        "the 100 best keys": (
            '    return scores.masked_fill(~mask, float("-inf")).softmax(-1)',
            "    s = scores.masked_fill(~mask, float(\"-inf\"))\n    least = s.topk(min(100, s.shape[-1])).values[..., -1:]\n    return s.masked_fill(s < least, float('-inf')).softmax(-1)",
        ),
        "chunks of 64 keys": (
            '    return scores.masked_fill(~mask, float("-inf")).softmax(-1)',
            '    s = scores.masked_fill(~mask, float("-inf"))\n    return torch.cat([part.softmax(-1).nan_to_num() for part in s.split(64, -1)], -1)',
        ),
        "gradients of q turned off": (
            "    scores",
            "    q.requires_grad_(False) if q.is_leaf else None\n    scores",
            "turn off the gradients",
        ),
        "the mask only for as many keys": (
            "~mask",
            "~mask if mask.shape[0] == mask.shape[1] else torch.zeros_like(mask)",
        ),
        "a straight-through maximum": (
            '    return scores.masked_fill(~mask, float("-inf")).softmax(-1)',
            '    w = scores.masked_fill(~mask, float("-inf")).softmax(-1)\n    return w.detach() + 0.5 * (w - w.detach())',
            "gradient of q",
        ),
        "zero times minus infinity": (
            "",
            """
def attention_weights(q, k, mask):
    scores = q @ k.transpose(-2, -1) * q.shape[-1] ** -0.5
    return (scores + (1 - mask.to(q.dtype)) * float("-inf")).softmax(-1)
""",
            "0 times infinity",
        ),
        "the maximum of all rows": (
            "",
            """
def attention_weights(q, k, mask):
    s = (q @ k.transpose(-2, -1) * q.shape[-1] ** -0.5).masked_fill(~mask, float("-inf"))
    p = (s - s.max()).exp()
    return p / p.sum(-1, keepdim=True)
""",
            "each row's own",
        ),
        "the maximum before the mask": (
            "",
            """
def attention_weights(q, k, mask):
    s = q @ k.transpose(-2, -1) * q.shape[-1] ** -0.5
    p = (s - s.amax(-1, keepdim=True)).exp() * mask
    return p / p.sum(-1, keepdim=True)
""",
            "visible scores",
        ),
        "hs by the batch": ("q.shape[-1] **", "q.shape[0] **", "hs is q.shape[-1]"),
        "hs by the second dimension": ("q.shape[-1] **", "q.shape[1] **"),
        "dropout inside": (".softmax(-1)", ".softmax(-1).bernoulli()"),
        "the mask of the first call": (
            "",
            """
MASKS = {}
def attention_weights(q, k, mask):
    mask = MASKS.setdefault(mask.shape, mask)
    scores = q @ k.transpose(-2, -1) * q.shape[-1] ** -0.5
    return scores.masked_fill(~mask, float("-inf")).softmax(-1)
""",
            "keep nothing from",
        ),
        "the weights of the first call": (
            "",
            """
SEEN = {}
def attention_weights(q, k, mask):
    if (q.shape, k.shape, q.dtype) not in SEEN:
        scores = q @ k.transpose(-2, -1) * q.shape[-1] ** -0.5
        SEEN[q.shape, k.shape, q.dtype] = scores.masked_fill(~mask, float("-inf")).softmax(-1)
    return SEEN[q.shape, k.shape, q.dtype]
""",
            "keep nothing from one call",
        ),
        "the last row's mask": ("~mask", "~mask[-1]", "every query gets the last"),
        "the gradient doubled": (
            '    return scores.masked_fill(~mask, float("-inf")).softmax(-1)',
            """\
    w = scores.masked_fill(~mask, float("-inf")).softmax(-1)
    return w + w - w.detach()""",
            "gradient of q",
        ),
        "scores clamped at 50": (
            '    return scores.masked_fill(~mask, float("-inf")).softmax(-1)',
            '    return scores.clamp(-50, 50).masked_fill(~mask, float("-inf")).softmax(-1)',
        ),
        "√hs cut to an integer": (" * q.shape[-1] ** -0.5", " / int(q.shape[-1] ** 0.5)"),
        "cosines": (
            "scores = q @ k.transpose(-2, -1)",
            "scores = F.normalize(q, dim=-1) @ F.normalize(k, dim=-1).transpose(-2, -1)",
        ),
        "float16 inside": (
            "scores = q @ k",
            """\
q, k = q.half(), k.half()
    scores = q @ k""",
            "Keep the dtype",
        ),
        "eps in the denominator": (
            '    return scores.masked_fill(~mask, float("-inf")).softmax(-1)',
            """\
    s = scores.masked_fill(~mask, float("-inf"))
    p = (s - s.amax(-1, keepdim=True)).exp()
    return p / (p.sum(-1, keepdim=True) + 1e-6)""",
            "added",
        ),
        "two texts at most": (
            '    return scores.masked_fill(~mask, float("-inf")).softmax(-1)',
            """\
    w = scores.masked_fill(~mask, float("-inf")).softmax(-1)
    return torch.cat([w[:2], w[:1].expand(max(0, len(w) - 2), *w.shape[1:])]) if w.ndim > 2 else w""",
            "at text 2",
        ),
        "einsum of three letters": (
            "",
            """
def attention_weights(q, k, mask):
    scores = torch.einsum("btd,bsd->bts", q, k) * q.shape[-1] ** -0.5
    return scores.masked_fill(~mask, float("-inf")).softmax(-1)
""",
            "einsum",
        ),
        "the last key always seen": (
            "~mask",
            "~(mask | (torch.arange(mask.shape[1]) == mask.shape[1] - 1))",
            "mask hides",
        ),
        "rounded to three decimals": (
            ".softmax(-1)",
            ".softmax(-1).round(decimals=3)",
            "rounded",
        ),
    },
    "one_step": {
        "a warm-up of its own": (
            "    optimizer.step()\n",
            "    calls = model.__dict__['warm'] = model.__dict__.get('warm', 0) + 1\n    for group in optimizer.param_groups:\n        group['lr'] *= min(1, calls / 3)\n    optimizer.step()\n    for group in optimizer.param_groups:\n        group['lr'] /= min(1, calls / 3)\n",
            "would move them",
        ),
        "large gradients are skipped": (
            "    optimizer.step()\n",
            "    if all(p.grad.norm() < 1e3 for p in model.parameters()):\n        optimizer.step()\n",
            "call optimizer.step()",
        ),
        "the gradient's mean taken out": (
            "    optimizer.step()\n",
            "    for p in model.parameters():\n        p.grad -= p.grad.mean() if p.ndim > 1 and p.shape[0] > 1 else 0\n    optimizer.step()\n",
            "what backward() computes",
        ),
        "weight decay by hand": (
            """\
    loss.backward()
""",
            """\
    (loss + 1e-4 * sum(p.square().sum() for p in model.parameters())).backward()
""",
            "what backward() computes",
        ),
        "weight decay in the loss": (
            """\
    optimizer.zero_grad()
""",
            """\
    loss = loss + 1e-5 * sum(p.square().sum() for p in model.parameters())
    optimizer.zero_grad()
""",
            "before the update",
        ),
        "a learning rate that decays": (
            """\
    optimizer.step()
""",
            """\
    optimizer.step()
    for group in optimizer.param_groups:
        group['lr'] *= 0.999
""",
            "would move them",
        ),
        "the optimizer's memory cleared": (
            """\
    optimizer.step()
""",
            """\
    optimizer.step()
    optimizer.state.clear()
""",
            "would move them",
        ),
        "a seed in the step": (
            "    _, loss",
            """\
    torch.manual_seed(1337)
    _, loss""",
            "do not reset",
        ),
        "64 tokens of a window": ("model(x, y)", "model(x[:, :64], y[:, :64])", "all of x and y"),
        "32 windows of a batch": ("model(x, y)", "model(x[:32], y[:32])", "all of x and y"),
        "cleared the first time": (
            """\
    optimizer.zero_grad()
""",
            """\
    if not optimizer.state:
        optimizer.zero_grad()
""",
            "still there",
        ),
        "no biases": (
            """\
    optimizer.step()
""",
            """\
    for p in model.parameters():
        p.grad = p.grad if p.ndim > 1 else None
    optimizer.step()
""",
            "what backward() computes",
        ),
        "gradients divided by the batch": (
            """\
    optimizer.step()
""",
            """\
    for p in model.parameters():
        p.grad /= len(x)
    optimizer.step()
""",
            "no scaling",
        ),
        "a large loss is skipped": (
            """\
    loss.backward()
""",
            """\
    if loss > 20:
        return loss.item()
    loss.backward()
""",
            "call optimizer.step()",
        ),
        "gradients clipped at 10": (
            """\
    optimizer.step()
""",
            """\
    nn.utils.clip_grad_value_(model.parameters(), 10)
    optimizer.step()
""",
            "what backward() computes",
        ),
        "the loss of the outputs, again without dropout": (
            "return loss.item()",
            """\
with torch.no_grad():
        model.eval()
        loss = model(x, y)[1]
        model.train()
    return loss.item()""",
            "all of x and y",
        ),
        "every second step": (
            """\
    optimizer.step()
""",
            """\
    model.calls_seen = getattr(model, 'calls_seen', 0) + 1
    if model.calls_seen % 2:
        optimizer.step()
""",
            "calls of optimizer.step() in step 1",
        ),
        "loss as a string": (".item()", ".item().__format__('.6f')", "as a number"),
        "the mean of two losses": (
            "return loss.item()",
            """\
model.old = getattr(model, 'old', loss.item())
    said = 0.5 * model.old + 0.5 * loss.item()
    model.old = loss.item()
    return said""",
            "before the update",
        ),
        "gradients kept in half": (
            """\
    optimizer.step()
""",
            """\
    for p in model.parameters():
        p.grad = p.grad.bfloat16().to(p.dtype)
    optimizer.step()
""",
            "what backward() computes",
        ),
        "gradients turned off after": (
            "    return",
            """\
    torch.set_grad_enabled(False)
    return""",
            "gradients are off",
        ),
    },
    "visible": {
        "32 bits for a position": (
            "    return",
            "    q_pos, k_pos = q_pos.int(), k_pos.int()\n    return",
            "32 bits",
        ),
        "empty slots by zeros": (
            "    return",
            "    k_pos = k_pos.clamp(min=0)\n    return",
            "empty slot",
        ),
        "keys numbered from 0 when none is empty": (
            "    return",
            """\
    if (k_pos >= 0).all():
        k_pos = torch.arange(len(k_pos))
    return""",
            "numbered from 0",
        ),
        "queries in a row": (
            "    return",
            """\
    q_pos = q_pos[0] + torch.arange(len(q_pos))
    return""",
            "the future",
        ),
        "the mask of the last query": (
            "q_pos[:, None]",
            "q_pos[-1:, None].expand(len(q_pos), 1)",
            "the future",
        ),
        "float32 for a position": (
            "    return",
            """\
    q_pos, k_pos = q_pos.float(), k_pos.float()
    return""",
            "the future",
        ),
        "kept by shape": (
            "",
            """
MASKS = {}
def visible(q_pos, k_pos):
    at = len(q_pos), len(k_pos)
    if at not in MASKS:
        MASKS[at] = (k_pos[None, :] <= q_pos[:, None]) & (k_pos[None, :] >= 0)
    return MASKS[at]
""",
            "keep nothing",
        ),
        "by size of both": (
            "    return",
            """\
    if len(q_pos) == len(k_pos):
        return torch.ones(len(q_pos), len(k_pos)).tril().bool()
    return""",
        ),
        "a single query sees all": (
            "    return",
            """\
    if len(q_pos) == 1:
        return torch.ones(1, len(k_pos)).bool()
    return""",
            "the future",
        ),
        "up to 1024": (">= 0)", ">= 0) & (q_pos[:, None] - k_pos[None, :] < 1024)", "however far"),
        "absolute distance": (
            "(k_pos[None, :] <= q_pos[:, None])",
            "((q_pos[:, None] - k_pos[None, :]).abs() <= q_pos[:, None])",
            "Compare positions",
        ),
    },
    "KVCache": {
        "joined where the length fits": (
            CAT,
            "d = list(k.shape).index(len(pos))\n            k, v = torch.cat([self.k, k], dim=d), torch.cat([self.v, v], dim=d)",
            "along the token dimension",
        ),
        "flattened": (
            CAT,
            "B, T, hs = k.shape\n            k = torch.cat([self.k.reshape(-1, hs), k.reshape(-1, hs)]).view(B, -1, hs)\n            v = torch.cat([self.v.reshape(-1, hs), v.reshape(-1, hs)]).view(B, -1, hs)",
        ),
        "only one new token is kept": (
            KEEP,
            "        self.k, self.v, self.pos = (k, v, pos) if self.k is None else (k[:, : self.k.shape[1] + 1], v[:, : self.k.shape[1] + 1], pos[: len(self.pos) + 1])\n",
            "forgets",
        ),
        "a module": ("class KVCache:", "class KVCache(nn.Module):", "not an nn.Module"),
        "a list as default argument": (
            "",
            """
class KVCache:
    def __init__(self, capacity=None, held=[]):
        self.held = held

    def update(self, k, v, pos):
        self.held.append((k, v, pos))
        k, v, pos = zip(*self.held)
        return torch.cat(k, 1), torch.cat(v, 1), torch.cat(pos)
""",
            "a second cache",
        ),
        "a prompt begins anew": (
            "if self.k is not None:",
            "if self.k is not None and k.shape[1] == 1:",
            "not kept",
        ),
        "keeps 512": (
            KEEP,
            """\
        k, v, pos = k[:, -512:], v[:, -512:], pos[-512:]
        self.k, self.v, self.pos = k, v, pos
""",
            "forgets",
        ),
        "float16 values": (
            KEEP,
            """\
        v = v.half().to(v.dtype)
        self.k, self.v, self.pos = k, v, pos
""",
            "lower-precision dtype",
        ),
        "positions from the length": (
            """\
            pos = torch.cat([self.pos, pos])
""",
            """\
            pos = torch.cat([self.pos, torch.arange(len(self.pos), len(self.pos) + len(pos))])
""",
            "Keep the ones",
        ),
        "a capacity of 100 by default": (
            "",
            """
class KVCache:
    def __init__(self, capacity=100):
        self.held, self.capacity = [], capacity

    def update(self, k, v, pos):
        self.held.append((k, v, pos))
        k, v, pos = zip(*self.held)
        k, v, pos = torch.cat(k, 1), torch.cat(v, 1), torch.cat(pos)
        if len(pos) > self.capacity:
            raise ValueError("full")
        return k, v, pos
""",
            "raised ValueError: full",
        ),
        "stops one early": (
            "",
            """
class KVCache:
    def __init__(self, capacity=None):
        self.k = self.v = self.pos = None
        self.capacity = capacity

    def update(self, k, v, pos):
        if self.capacity and int(pos[-1]) + 1 >= self.capacity:
            raise ValueError("full")
        if self.k is not None:
            k, v = torch.cat([self.k, k], dim=1), torch.cat([self.v, v], dim=1)
            pos = torch.cat([self.pos, pos])
        self.k, self.v, self.pos = k, v, pos
        return k, v, pos
""",
            "full",
        ),
        "writes into the keys it was given": (
            "",
            """
class KVCache:
    def __init__(self, capacity=None):
        self.k = self.v = self.pos = None

    def update(self, k, v, pos):
        if self.k is None:
            self.k, self.v, self.pos = k, v, pos
        else:
            self.k.resize_(k.shape[0], self.k.shape[1] + k.shape[1], k.shape[2])[:, -k.shape[1]:] = k
            self.v.resize_(v.shape[0], self.v.shape[1] + v.shape[1], v.shape[2])[:, -v.shape[1]:] = v
            self.pos = torch.cat([self.pos, pos])
        return self.k, self.v, self.pos
""",
        ),
        "the same memory is handed out again": (
            "",
            """
class KVCache:
    room = torch.zeros(2, 4096, 8, 32, dtype=torch.float64)

    def __init__(self, capacity=None):
        self.pos = None

    def update(self, k, v, pos):
        old = 0 if self.pos is None else len(self.pos)
        self.pos = pos if self.pos is None else torch.cat([self.pos, pos])
        B, T, hs = k.shape
        room = self.room[:, : old + T, :B, :hs]
        room[0, old:], room[1, old:] = k.transpose(0, 1), v.transpose(0, 1)
        return room[0].transpose(0, 1).to(k.dtype), room[1].transpose(0, 1).to(k.dtype), self.pos
""",
            "share",
        ),
        "sorted by position": (
            KEEP,
            """\
        order = pos.argsort(descending=True)
        k, v, pos = k[:, order], v[:, order], pos[order]
        self.k, self.v, self.pos = k, v, pos
""",
            "newest",
        ),
        "the first three texts": (
            KEEP,
            """\
        k = torch.cat([k[:2], k[1:2].expand(max(0, len(k) - 2), -1, -1)])
        self.k, self.v, self.pos = k, v, pos
""",
            "at text 2",
        ),
        "returns only the new": (
            "        return k, v, pos",
            "        return k[:, -1:], v[:, -1:], pos[-1:]",
            "were not kept",
        ),
        "values cut to the keys' first text": (
            KEEP,
            """\
        v = v[:1].repeat(len(v), 1, 1) if len(v) > 2 else v
        self.k, self.v, self.pos = k, v, pos
""",
            "at text 1",
        ),
    },
    "Head": {
        "a cache only without gradients": (
            "self.cache is not None and not self.training",
            "self.cache is not None and not self.training and not torch.is_grad_enabled()",
            "is used only",
        ),
        "no_grad for training": (
            "self.cache is not None and not self.training",
            "self.cache is not None and not torch.is_grad_enabled()",
            "is used only",
        ),
        "the kept keys scaled in place": (
            "        weights = attention_weights(q, k, visible(pos, k_pos))",
            "        k.mul_(0.5)\n        weights = attention_weights(2 * q, k, visible(pos, k_pos))",
            "this head's keys",
        ),
        "a cache for single tokens": (
            "self.cache is not None and not self.training",
            "self.cache is not None and not self.training and x.shape[1] == 1",
            "the number of updates",
        ),
        "positions counted by the head": (
            QKV,
            "self.seen = getattr(self, 'seen', 0)\n        pos = torch.arange(self.seen, self.seen + x.shape[1]) if self.cache is not None else pos\n        self.seen += x.shape[1] if self.cache is not None else 0\n        q, k, v, k_pos = self.query(x), self.key(x), self.value(x), pos",
        ),
        "the training guard from the first call": (
            "self.cache is not None and not self.training",
            "self.cache is not None and not self.__dict__.setdefault('was_training', self.training)",
            "after training",
        ),
        "values of the last token alone": (
            "        return F.dropout(weights, self.dropout, self.training) @ v",
            "        return (F.dropout(weights, self.dropout, self.training) @ v) if x.shape[1] > 1 else v[:, -1:]",
        ),
        "dropout on the scores": (
            "",
            """
class Head(nn.Module):
    def __init__(self, config):
        super().__init__()
        self.key = nn.Linear(config.n_embd, config.head_size, bias=False)
        self.query = nn.Linear(config.n_embd, config.head_size, bias=False)
        self.value = nn.Linear(config.n_embd, config.head_size, bias=False)
        self.dropout = nn.Dropout(config.dropout)
        self.cache = None

    def forward(self, x, pos):
        q, k, v, k_pos = self.query(x), self.key(x), self.value(x), pos
        if self.cache is not None and not self.training:
            k, v, k_pos = self.cache.update(k, v, pos)
        s = self.dropout(q @ k.mT * q.shape[-1] ** -0.5)
        return s.masked_fill(~visible(pos, k_pos), float("-inf")).softmax(-1) @ v
""",
            "after the softmax",
        ),
        "one draw for the batch": (
            "        return F.dropout(weights, self.dropout, self.training) @ v",
            """\
        drawn = F.dropout(torch.ones_like(weights[:1]), self.dropout, self.training)
        return weights * drawn @ v""",
            "all texts drop",
        ),
        "one draw for a row": (
            "        return F.dropout(weights, self.dropout, self.training) @ v",
            """\
        drawn = F.dropout(torch.ones_like(weights[..., :1]), self.dropout, self.training)
        return weights * drawn @ v""",
            "all of its weights or none",
        ),
        "one draw for a column": (
            "        return F.dropout(weights, self.dropout, self.training) @ v",
            """\
        drawn = F.dropout(torch.ones_like(weights[:, :1]), self.dropout, self.training)
        return weights * drawn @ v""",
            "all queries drop",
        ),
        "the same draw each time": (
            "        return F.dropout(weights, self.dropout, self.training) @ v",
            """\
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(1)
            weights = F.dropout(weights, self.dropout, self.training)
        return weights @ v""",
            "two calls drop",
        ),
        "a seed before dropout": (
            "        return F.dropout(weights, self.dropout, self.training) @ v",
            """\
        torch.manual_seed(1337)
        return F.dropout(weights, self.dropout, self.training) @ v""",
            "two calls drop",
        ),
        "dropout with a cache": (
            "self.dropout, self.training",
            "self.dropout, self.training or self.cache is not None",
        ),
        "no dropout with a cache in training": (
            "self.dropout, self.training",
            "self.dropout, self.training and self.cache is None",
            "must not change training",
        ),
        "renormalised after dropout": (
            "        return F.dropout(weights, self.dropout, self.training) @ v",
            """\
        weights = F.dropout(weights, self.dropout, self.training)
        return weights / weights.sum(-1, keepdim=True).clamp(min=1e-9) @ v if self.training and self.dropout else weights @ v""",
            "do not normalise",
        ),
        "a head size of 16": ("config.head_size", "16", "head_size 10"),
        "key and width exchanged": (
            "self.key = nn.Linear(config.n_embd, config.head_size,",
            "self.key = nn.Linear(config.head_size, config.n_embd,",
            "config has the",
        ),
        "the cache keeps x": (
            "",
            """
class Head(nn.Module):
    def __init__(self, config):
        super().__init__()
        self.key = nn.Linear(config.n_embd, config.head_size, bias=False)
        self.query = nn.Linear(config.n_embd, config.head_size, bias=False)
        self.value = nn.Linear(config.n_embd, config.head_size, bias=False)
        self.dropout = config.dropout
        self.cache = None

    def forward(self, x, pos):
        every, k_pos = x, pos
        if self.cache is not None and not self.training:
            every, _, k_pos = self.cache.update(x, x, pos)
        weights = attention_weights(self.query(x), self.key(every), visible(pos, k_pos))
        return F.dropout(weights, self.dropout, self.training) @ self.value(every)
""",
            "keys and values, unchanged",
        ),
        "each token kept twice": (
            "            k, v, k_pos = self.cache.update(k, v, pos)",
            """\
            self.cache.update(k, v, pos)
            k, v, k_pos = self.cache.update(k, v, pos)""",
            "2 updates",
        ),
        "is_causal": (
            "",
            """
class Head(nn.Module):
    def __init__(self, config):
        super().__init__()
        self.key = nn.Linear(config.n_embd, config.head_size, bias=False)
        self.query = nn.Linear(config.n_embd, config.head_size, bias=False)
        self.value = nn.Linear(config.n_embd, config.head_size, bias=False)
        self.dropout = config.dropout
        self.cache = None

    def forward(self, x, pos):
        q, k, v = self.query(x), self.key(x), self.value(x)
        if self.cache is not None and not self.training:
            k, v, _ = self.cache.update(k, v, pos)
        p = self.dropout if self.training else 0.0
        return F.scaled_dot_product_attention(q, k, v, dropout_p=p, is_causal=len(pos) > 1)
""",
            "the mask goes by",
        ),
        "no mask in training": (
            "visible(pos, k_pos)",
            "visible(pos, k_pos) | torch.tensor(self.training)",
            "in training",
        ),
        "the head remembers its first mask": (
            "visible(pos, k_pos)",
            "self.__dict__.setdefault('seen', visible(pos, k_pos))",
        ),
        "a mask kept by shape": (
            "visible(pos, k_pos)",
            "self.__dict__.setdefault((len(pos), len(k_pos)), visible(pos, k_pos))",
            "The head must",
        ),
        "scaled by the keys": (
            "attention_weights(q,",
            "attention_weights(q * (len(pos) / len(k_pos)) ** 0.5,",
            "begins at position",
        ),
        "detached while training": (
            QKV,
            """\
q, k, v, k_pos = self.query(x), self.key(x), self.value(x), pos
        v = v.detach() if self.training else v""",
            "in training the values are detached",
        ),
        "the queries in half": (
            QKV,
            """\
q, k, v, k_pos = self.query(x), self.key(x), self.value(x), pos
        q = q.bfloat16().to(x.dtype)""",
            "lower-precision dtype",
        ),
        "float32 weights": (
            "        return F.dropout(weights, self.dropout, self.training) @ v",
            "        return (F.dropout(weights, self.dropout, self.training).float() @ v.float()).to(x.dtype)",
            "lower-precision dtype",
        ),
        "a cache of its own class": (
            "self.cache = None  # set and removed by kv_cache(model)",
            "self.register_buffer('cache', None)",
            "self.cache = None",
        ),
        "values doubled for one text": (
            QKV,
            """\
q, k, v, k_pos = self.query(x), self.key(x), self.value(x), pos
        v = v * 2 if len(x) == 1 else v""",
            "alone than in a batch",
        ),
        "only the last query": (
            "        return F.dropout(weights, self.dropout, self.training) @ v",
            "        return (F.dropout(weights, self.dropout, self.training) @ v)[:, -1:].expand_as(q) if self.cache is not None else F.dropout(weights, self.dropout, self.training) @ v",
        ),
    },
    "sample": {
        "the first 512 candidates": (
            "    return (probs / noise).argmax(-1, keepdim=True)",
            "    return (probs / noise)[:, :512].argmax(-1, keepdim=True)",
            "All candidates race",
        ),
        "the best thousand": (
            "    return (probs / noise).argmax(-1, keepdim=True)",
            "    probs = probs * (probs >= probs.topk(min(1000, probs.shape[-1])).values[:, -1:])\n    return (probs / noise).argmax(-1, keepdim=True)",
            "All candidates race",
        ),
        "the maximum of all rows": (
            "logits.softmax(-1)",
            "(logits - logits.max()).exp()",
            "each row's own",
        ),
        "without the last candidate": (
            "(probs / noise)",
            "(probs / noise)[:, :-1]",
            "the last candidate",
        ),
        "float16": (
            "logits.softmax(-1)",
            "logits.half().softmax(-1).to(logits.dtype)",
            "lower-precision dtype",
        ),
        "the likeliest 99.9 %": (
            "    return (probs / noise).argmax(-1, keepdim=True)",
            """\
    order = probs.sort(-1, descending=True)
    keep = order.values.cumsum(-1) - order.values < 0.999
    probs = torch.zeros_like(probs).scatter(-1, order.indices, order.values * keep)
    return (probs / noise).argmax(-1, keepdim=True)""",
            "All candidates race",
        ),
        "at least one in ten thousand": (
            "logits.softmax(-1)",
            "logits.softmax(-1).clamp(min=1e-4)",
        ),
        "noise by columns": ("/ noise)", "/ (noise / noise.sum(0)))", "noise"),
        "Gumbel of Gumbel": (
            "    return (probs / noise).argmax(-1, keepdim=True)",
            "    return (probs.log() - (-noise.log()).log().nan_to_num()).argmax(-1, keepdim=True)",
            "noise",
        ),
        "the logits clamped": (
            "logits.softmax(-1)",
            "logits.clamp(-50, 50).softmax(-1)",
            "Only differences of logits",
        ),
        "one winner for all": (
            "    return (probs / noise).argmax(-1, keepdim=True)",
            "    return (probs / noise).flatten().argmax().expand(len(logits), 1) % logits.shape[-1]",
        ),
        "noise squared": ("/ noise", "/ noise**2", "the noise as it is"),
        "an added epsilon": ("/ noise", "/ (noise + 1e-2)", "used as it is"),
        "the second softmax": (
            "logits.softmax(-1)",
            "logits.softmax(-1).softmax(-1)",
            "softmax is applied",
        ),
    },
    "generate_with_cache": {
        "an error ends the text": (
            "            logits, _ = model(tokens, pos=pos)  # T tokens once, then 1, 1, 1 …\n",
            "            try:\n                logits, _ = model(tokens, pos=pos)\n            except Exception:\n                return\n",
            "the block is",
        ),
        "stops at a token 0": (
            "            yield tokens",
            "            yield tokens\n            if (tokens == 0).all():\n                return",
            "ends silently after",
        ),
        "the noise to a power": (
            "tokens = sample(logits[:, -1], row)",
            "tokens = sample(logits[:, -1], row**0.8)",
            "noise",
        ),
        "the text ends with the block": (
            "            pos = pos[-1:] + 1",
            "            pos = pos[-1:] + 1\n            if pos[-1] >= model.config.block_size:\n                return",
            "the block is",
        ),
        "a capacity one too small": (
            "kv_cache(model, cache)",
            "kv_cache(model, cache, prompt.shape[1] + len(noise) - 2)",
            "made for 7 tokens",
        ),
        "a capacity of 64": (
            "kv_cache(model, cache)",
            "kv_cache(model, cache, 64)",
            "made for 64 tokens",
        ),
        "training mode afterwards": (
            "            pos = pos[-1:] + 1",
            """\
            pos = pos[-1:] + 1
    model.train()""",
            "left it in training",
        ),
        "eval and train": (
            "",
            """
@torch.no_grad()
def generate_with_cache(model, prompt, noise, cache):
    model.eval()
    tokens, pos = prompt, torch.arange(prompt.shape[1])
    with kv_cache(model, cache):
        for row in noise:
            logits, _ = model(tokens, pos=pos)
            tokens = sample(logits[:, -1], row)
            yield tokens
            pos = pos[-1:] + 1
    model.train()
""",
            "left it in training",
        ),
        "all, then handed out": (
            "",
            """
@torch.no_grad()
def generate_with_cache(model, prompt, noise, cache):
    tokens, pos, out = prompt, torch.arange(prompt.shape[1]), []
    with kv_cache(model, cache):
        for row in noise:
            logits, _ = model(tokens, pos=pos)
            tokens = sample(logits[:, -1], row)
            out.append(tokens)
            pos = pos[-1:] + 1
    yield from out
""",
            "as soon as it",
        ),
        "read on before it is handed out": (
            "",
            """
@torch.no_grad()
def generate_with_cache(model, prompt, noise, cache):
    pos = torch.arange(prompt.shape[1])
    with kv_cache(model, cache):
        logits, _ = model(prompt, pos=pos)
        for i, row in enumerate(noise):
            token = sample(logits[:, -1], row)
            pos = pos[-1:] + 1
            if i + 1 < len(noise):
                logits, _ = model(token, pos=pos)
            yield token
""",
            "as soon as it",
        ),
        "gradients off for good": (
            "",
            """
def generate_with_cache(model, prompt, noise, cache):
    torch.set_grad_enabled(False)
    tokens, pos = prompt, torch.arange(prompt.shape[1])
    with kv_cache(model, cache):
        for row in noise:
            logits, _ = model(tokens, pos=pos)
            tokens = sample(logits[:, -1], row)
            yield tokens
            pos = pos[-1:] + 1
""",
            "gradients are off",
        ),
        "new caches at each step": (
            "",
            """
@torch.no_grad()
def generate_with_cache(model, prompt, noise, cache):
    tokens, pos = prompt, torch.arange(prompt.shape[1])
    for row in noise:
        with kv_cache(model, cache):
            logits, _ = model(tokens, pos=pos)
        tokens = sample(logits[:, -1], row)
        yield tokens
        pos = pos[-1:] + 1
""",
            "one with-block",
        ),
        "the noise backwards": ("for row in noise:", "for row in noise.flip(0):", "noise"),
        "the last logits of the first text": (
            "logits[:, -1]",
            "logits[:1, -1].expand(len(tokens), -1)",
            "all texts get",
        ),
        "a float position": ("pos = pos[-1:] + 1", "pos = pos[-1:] + 1.0"),
        "greedy": (
            "tokens = sample(logits[:, -1], row)",
            "tokens = logits[:, -1].argmax(-1, keepdim=True)",
            "noise",
        ),
        "its own noise": (
            "tokens = sample(logits[:, -1], row)",
            "tokens = sample(logits[:, -1], torch.rand_like(row))",
            "noise",
        ),
        "a draw of its own": (
            "tokens = sample(logits[:, -1], row)",
            "tokens = torch.multinomial(logits[:, -1].softmax(-1), 1)",
            "noise",
        ),
        "temperature 0.8": (
            "tokens = sample(logits[:, -1], row)",
            "tokens = sample(logits[:, -1] / 0.8, row)",
            "noise",
        ),
        "the prompt comes first": (
            "    with kv",
            """\
    yield from prompt.split(1, dim=1)
    with kv""",
            "prompt is yielded",
        ),
        "stops at 100": (
            "            pos = pos[-1:] + 1",
            """\
            pos = pos[-1:] + 1
            if pos[-1] >= 100:
                break""",
            "98 tokens",
        ),
        "the prompt cut to its last 4": (
            "    tokens = prompt",
            """\
    prompt = prompt[:, -4:]
    tokens = prompt""",
            "the positions that the model reads",
        ),
        "one for all texts": (
            "            yield tokens",
            """\
            tokens = tokens[:1].expand_as(tokens)
            yield tokens""",
            "text 1",
        ),
    },
    "StaticKVCache": {
        "the slots of the next piece cleared": (
            WRITE,
            "        self.k[:, pos], self.v[:, pos], self.pos[pos] = k, v, pos\n        self.k[:, : int(pos[0])] = 0\n",
        ),
        "a mask of filled slots for positions": (
            "        return self.k, self.v, self.pos",
            "        return self.k, self.v, torch.where(self.pos >= 0, self.pos, 0)",
            "empty slots",
        ),
        "new_empty": (
            "k.new_zeros(k.shape[0], self.capacity, k.shape[2])",
            "k.new_empty(k.shape[0], self.capacity, k.shape[2])",
            "Allocate zeros, and",
        ),
        "counted from 1": (
            WRITE,
            """\
        slot = pos - 1
        self.k[:, slot], self.v[:, slot], self.pos[slot] = k, v, pos
""",
            "that its position names",
        ),
        "two names of one tensor": (
            "            self.v = torch.zeros_like(self.k)",
            "            self.k = self.v = torch.zeros_like(self.k)",
            "mixed up",
        ),
        "the last of a piece": (
            WRITE,
            """\
        self.k[:, pos[-1]], self.v[:, pos[-1]], self.pos[pos] = k[:, -1], v[:, -1], pos
""",
            "only the last",
        ),
        "positions as floats": (
            "pos.new_full((self.capacity,), -1)",
            "torch.full((self.capacity,), -1.0)",
        ),
        "a slice from the first": (
            WRITE,
            """\
        end = len(pos)
        self.k[:, :end], self.v[:, :end], self.pos[:end] = k, v, pos
""",
            "that its position names",
        ),
        "a capacity of 8 at least": (
            "self.capacity = capacity",
            "self.capacity = max(8, capacity)",
            "capacity=6",
        ),
        "added into the slots": (
            WRITE,
            """\
        self.k.index_add_(1, pos, k)
        self.v.index_add_(1, pos, v)
        self.pos[pos] = pos
""",
            "do not add",
        ),
        "256 slots at most": (
            "self.capacity = capacity",
            "self.capacity = min(256, capacity)",
            "capacity=300",
        ),
        "the write of a long piece cut at 32": (
            WRITE,
            """\
        k, v, pos = k[:, :32], v[:, :32], pos[:32]
        self.k[:, pos], self.v[:, pos], self.pos[pos] = k, v, pos
""",
        ),
        "grows when it is full": (
            "",
            """
class StaticKVCache:
    def __init__(self, capacity):
        self.capacity = capacity
        self.k = self.v = self.pos = None

    def update(self, k, v, pos):
        if self.k is None:
            self.k = k.new_zeros(k.shape[0], self.capacity, k.shape[2])
            self.v, self.pos = torch.zeros_like(self.k), pos.new_full((self.capacity,), -1)
        self.k[:, pos.clamp(max=self.capacity - 1)] = k
        self.v[:, pos.clamp(max=self.capacity - 1)] = v
        self.pos[pos.clamp(max=self.capacity - 1)] = pos
        return self.k, self.v, self.pos
""",
            "It must not",
        ),
    },
    "multiplications": {
        "the look before the newest": ("n * T *", "n * (T - 1) *"),
        "the matrices of a decode step in both": ("n * W", "1 * W"),
        "L in the matrices": ("n * W", "n * W * L"),
        "C squared": ("* C", "* C * C"),
    },
    "latency": {
        "rounded to milliseconds": (
            "",
            """
def latency(moments):
    gaps = [round(b - a, 3) for a, b in zip(moments, moments[1:])]
    first, *rest = gaps
    return {"ttft": first, "tpot": sum(rest) / len(rest) if rest else None, "itl": rest, "e2el": round(moments[-1] - moments[0], 3)}
""",
            "times are rounded",
        ),
        "E2EL over the tokens": (
            "",
            """
def latency(moments):
    first, *rest = [b - a for a, b in zip(moments, moments[1:])]
    whole = moments[-1] - moments[0]
    return {"ttft": first, "tpot": whole / len(rest) if rest else None, "itl": rest, "e2el": whole}
""",
            "mean of the gaps",
        ),
    },
    "paired_speedup": {
        "a trimmed mean": (
            "",
            """
def paired_speedup(a, b):
    r = sorted(x / y for x, y in zip(a, b))
    r = r[1:-1] or r
    return sum(r) / len(r)
""",
            "is a trimmed",
        ),
        "a geometric mean": (
            "",
            """
def paired_speedup(a, b):
    return math.exp(sum(math.log(x / y) for x, y in zip(a, b)) / len(a))
""",
            "geometric mean",
        ),
        "the medians of sorted pairs": (
            "",
            """
def paired_speedup(a, b):
    return median(x / y for x, y in zip(sorted(a), sorted(b)))
""",
            "runs that do not",
        ),
    },
    "step_bytes": {
        "weights in float32": (
            "(n_weights + cache) * itemsize",
            "n_weights * 4 + cache * itemsize",
        ),
        "the new token too": ("* tokens", "* (tokens + 1)"),
        "queries too": ("2 * ", "3 * "),
    },
    "fastest": {
        "numbers compared, not times": (
            "",
            """
def fastest(flop, n_bytes, peak, bandwidth):
    return peak / flop if flop > n_bytes else bandwidth / n_bytes
""",
            "compare times",
        ),
        "rates compared, not times": (
            "",
            """
def fastest(flop, n_bytes, peak, bandwidth):
    return bandwidth / n_bytes if peak > bandwidth else peak / flop
""",
            "arithmetic can also be",
        ),
    },
    "round_row": {
        "half a step up": (
            "",
            """
def round_row(row):
    scale = max(map(abs, row)) / 127
    return ([int(x / scale + 0.5) for x in row] if scale else [0] * len(row)), scale
""",
        ),
        "a scale of 1e-6 at least": (
            "",
            """
def round_row(row):
    scale = max(max(map(abs, row)) / 127, 1e-6)
    return [round(x / scale) for x in row], scale
""",
            "7.874e-10",
        ),
        "256 steps": (
            "",
            """
def round_row(row):
    scale = 2 * max(map(abs, row)) / 255
    return ([round(x / scale) for x in row] if scale else [0] * len(row)), scale
""",
            "127",
        ),
    },
}
