"""A small GPT of another library, and an adapter for it: what the tests make odd or wrong."""

import torch
import torch.nn.functional as F
from torch import nn

VOCAB = 40
LONGEST = 64
LAYERS = 2
HEADS = 2
SIZE = 8  # of a head
WIDTH = HEADS * SIZE


class Net(nn.Module):
    """Learned positions, pre-norm blocks, tied output.  (B, T), a Store -> (B, T, V)"""

    def __init__(self, seed=0):
        super().__init__()
        generator = torch.Generator().manual_seed(seed)
        self.tokens = nn.Embedding(VOCAB, WIDTH)
        self.places = nn.Embedding(LONGEST, WIDTH)
        self.qkv = nn.ModuleList(nn.Linear(WIDTH, 3 * WIDTH, bias=False) for _ in range(LAYERS))
        self.proj = nn.ModuleList(nn.Linear(WIDTH, WIDTH, bias=False) for _ in range(LAYERS))
        self.head = nn.Linear(WIDTH, VOCAB, bias=False)
        with torch.no_grad():
            for p in self.parameters():
                p.copy_(torch.randn(p.shape, generator=generator) * 0.5)

    def mask(self, q_pos, k_pos):
        """(T, S), true where a query sees a key."""
        return k_pos <= q_pos[:, None]

    def finish(self, x):
        """The logits of the last layer's output.  (B, T, C) -> (B, T, V)"""
        return self.head(F.layer_norm(x, (WIDTH,)))

    def forward(self, ids, store=None):
        store = store or Store()
        b, t = ids.shape
        pos = store.positions(torch.arange(store.length, store.length + t))
        x = self.tokens(ids) + self.places(pos)
        for layer in range(LAYERS):
            qkv = self.qkv[layer](F.layer_norm(x, (WIDTH,)))
            q, k, v = qkv.view(b, t, 3, HEADS, SIZE).permute(2, 0, 3, 1, 4)
            k, v = store.put(layer, k, v)
            k_pos = store.key_positions(torch.arange(k.shape[2]))
            see = self.mask(torch.arange(store.length, store.length + t), k_pos)
            scores = q @ k.mT * SIZE**-0.5
            y = scores.masked_fill(~see, -torch.inf).softmax(-1) @ v
            x = x + self.proj[layer](y.transpose(1, 2).reshape(b, t, WIDTH))
        store.length += t
        return self.finish(x)


class Store:
    """The keys and values of a batch, (B, H, S, hs) for each layer."""

    def __init__(self):
        self.length = 0
        self.keys = {}
        self.values = {}

    def positions(self, pos):
        return pos

    def key_positions(self, pos):
        return pos

    def put(self, layer, k, v):
        if layer in self.keys:
            k = torch.cat([self.keys[layer], k], 2)
            v = torch.cat([self.values[layer], v], 2)
        self.keys[layer] = k
        self.values[layer] = v
        return k, v


class Session:
    """One batch of texts, which reads through a Store."""

    store = Store

    def __init__(self, net, rows):
        self.net = net
        self.rows = rows
        self.held = self.store()

    def read(self, ids):
        return self.net(ids, self.held)

    def rewind(self, n):
        self.held.length -= n
        self.each(lambda x: x[:, :, : self.held.length])

    def reorder(self, rows):
        self.each(lambda x: x[rows])

    def keep(self, rows):
        self.each(lambda x: x[rows])

    def each(self, change):
        for held in (self.held.keys, self.held.values):
            held.update({layer: change(x) for layer, x in held.items()})

    def fork(self):
        other = type(self)(self.net, self.rows)
        other.held.length = self.held.length
        other.held.keys = dict(self.held.keys)
        other.held.values = dict(self.held.values)
        return other


class Adapter:
    """The adapter of this library."""

    net_type = Net
    session_type = Session
    longest = LONGEST

    def __init__(self, seed=0):
        self.net = self.net_type(seed).eval()

    def plain(self, ids):
        return self.net(ids)

    def start(self, rows):
        return self.session_type(self.net, rows)
