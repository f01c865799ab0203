"""Karpathy's character-level GPT with a KV cache in every head, all in one file.

    python -m nanogpt.minimal [text file] [--steps 1500]

Trains the GPT of https://github.com/karpathy/ng-video-lecture (his names, his arithmetic) on any
text, then generates twice, without and with the cache, and checks that both texts are equal.
It imports only torch and the standard library: copy it and change it.
Shapes: B batch, T tokens, C width, hs head size, S cached and new tokens, V vocabulary.
"""

import argparse
import os
import sys
import time
from pathlib import Path

import torch
import torch.nn as nn
import torch.nn.functional as F

# A small model for a laptop's CPU. The lecture's own sizes are in brackets.
batch_size = 8  # texts in one step [64]
block_size = 128  # the longest context, in characters [256]
n_layer = 3  # blocks [6]
n_head = 3  # heads in a block [6]
n_embd = 96  # width of the model; each head has n_embd // n_head of it [384]
dropout = 0.0  # a model this small needs none [0.2]
learning_rate = 2e-3  # [3e-4]
eval_interval = 250  # steps between two lines of output [500]
eval_iters = 20  # batches for a loss estimate [200]
seed = 1337
device = "cpu"
if torch.backends.mps.is_available():
    device = "mps"
if torch.cuda.is_available():
    device = "cuda"

# ------------------------------------------------------------------ the model


class KVCache:
    """The keys and values of one head, for every token it has seen."""

    def __init__(self):
        self.k = None  # (B, S, hs) after the first update
        self.v = None

    def update(self, k, v):
        """Append new keys and values, return all.  2 × (B, T, hs) -> 2 × (B, S, hs)"""
        # Tokens are dimension 1: append the new ones to those already held.
        if self.k is not None:
            k = torch.cat([self.k, k], dim=1)
            v = torch.cat([self.v, v], dim=1)
        self.k = k
        self.v = v
        return k, v


class Head(nn.Module):
    """One head of causal self-attention."""

    def __init__(self, head_size):
        super().__init__()
        self.key = nn.Linear(n_embd, head_size, bias=False)
        self.query = nn.Linear(n_embd, head_size, bias=False)
        self.value = nn.Linear(n_embd, head_size, bias=False)
        tril = torch.tril(torch.ones(block_size, block_size))
        self.register_buffer("tril", tril, persistent=False)  # not a weight: not saved
        self.dropout = nn.Dropout(dropout)
        self.cache = None  # a KVCache while `generate` uses one

    def forward(self, x):
        T = x.shape[1]
        k = self.key(x)  # (B, T, hs)
        q = self.query(x)  # (B, T, hs)
        v = self.value(x)  # (B, T, hs)
        # A key and a value depend only on their token and the tokens before it, so they never
        # change: compute them once and keep them. Training needs every query, so it caches nothing.
        if self.cache is not None and not self.training:
            k, v = self.cache.update(k, v)  # (B, S, hs)
        S = k.shape[1]  # without a cache S = T
        wei = q @ k.transpose(-2, -1) * k.shape[-1] ** -0.5  # (B, T, hs) @ (B, hs, S) -> (B, T, S)
        # The new tokens are the last T of S: their rows of the triangle are S - T to S - 1.
        wei = wei.masked_fill(self.tril[S - T : S, :S] == 0, float("-inf"))
        wei = F.softmax(wei, dim=-1)
        wei = self.dropout(wei)
        return wei @ v  # (B, T, S) @ (B, S, hs) -> (B, T, hs)


class MultiHeadAttention(nn.Module):
    """Several heads side by side, and a projection that mixes their outputs."""

    def __init__(self):
        super().__init__()
        self.heads = nn.ModuleList([Head(n_embd // n_head) for _ in range(n_head)])
        self.proj = nn.Linear(n_embd, n_embd)
        self.dropout = nn.Dropout(dropout)

    def forward(self, x):
        # Each head returns hs numbers for each token; concatenated, they are as wide as x again.
        out = torch.cat([head(x) for head in self.heads], dim=-1)  # (B, T, C)
        return self.dropout(self.proj(out))


class FeedForward(nn.Module):
    """Two linear layers with a ReLU between them, applied to each token separately."""

    def __init__(self):
        super().__init__()
        self.net = nn.Sequential(
            nn.Linear(n_embd, 4 * n_embd),
            nn.ReLU(),
            nn.Linear(4 * n_embd, n_embd),
            nn.Dropout(dropout),
        )

    def forward(self, x):
        return self.net(x)


class Block(nn.Module):
    """Communication, then computation, each added to its input."""

    def __init__(self):
        super().__init__()
        self.sa = MultiHeadAttention()
        self.ffwd = FeedForward()
        self.ln1 = nn.LayerNorm(n_embd)
        self.ln2 = nn.LayerNorm(n_embd)

    def forward(self, x):
        x = x + self.sa(self.ln1(x))  # the only place where a token sees the tokens before it
        x = x + self.ffwd(self.ln2(x))
        return x


class GPTLanguageModel(nn.Module):
    """Characters in, logits for the next character out."""

    def __init__(self, vocab_size):
        super().__init__()
        self.token_embedding_table = nn.Embedding(vocab_size, n_embd)
        self.position_embedding_table = nn.Embedding(block_size, n_embd)
        self.blocks = nn.ModuleList([Block() for _ in range(n_layer)])
        self.ln_f = nn.LayerNorm(n_embd)
        self.lm_head = nn.Linear(n_embd, vocab_size)
        self.apply(self._init_weights)

    def _init_weights(self, module):
        if isinstance(module, (nn.Linear, nn.Embedding)):
            nn.init.normal_(module.weight, mean=0.0, std=0.02)
        if isinstance(module, nn.Linear) and module.bias is not None:
            nn.init.zeros_(module.bias)

    def forward(self, idx, targets=None, start=0):
        """Logits and, with targets, the loss.  (B, T) -> (B, T, V), ()

        `start` is the position of idx[:, 0] in the text: with a cache, the number of tokens held.
        """
        B, T = idx.shape
        # What each character is plus where it is: a row of each table. With a cache, the first
        # token of idx is not the first token of the text.
        pos = torch.arange(start, start + T, device=idx.device)  # (T,)
        x = self.token_embedding_table(idx) + self.position_embedding_table(pos)  # (B, T, C)
        for block in self.blocks:
            x = block(x)
        # At each of the T positions, a score for every character that could come next.
        logits = self.lm_head(self.ln_f(x))  # (B, T, V)
        loss = None
        if targets is not None:
            loss = F.cross_entropy(logits.view(B * T, -1), targets.view(B * T))
        return logits, loss


# ------------------------------------------------------------------ generation


@torch.no_grad()
def generate(model, idx, noise, cached):
    """Append one token for each row of noise.  (B, T), (n, B, V) -> (B, T + n)"""
    # The position table ends at block_size. The last token is returned but never read.
    assert idx.shape[1] + len(noise) - 1 <= block_size, "the text is longer than block_size"
    model.eval()
    heads = [module for module in model.modules() if isinstance(module, Head)]
    # Each head of each block gets its own cache for this text, removed at the end.
    for head in heads:
        head.cache = KVCache() if cached else None
    start = 0  # how many tokens the caches hold
    for row in noise:
        # Without a cache, read the whole text again for every token. With one, read the prompt at
        # the first step (prefill), then only the newest token (decode).
        logits, _ = model(idx[:, start:], start=start)
        if cached:
            start = idx.shape[1]
        # Sample the next token. With exponential noise this argmax is what torch.multinomial
        # computes. Both runs get the same noise, so they can be compared.
        probs = F.softmax(logits[:, -1], dim=-1)  # (B, V)
        idx_next = (probs / row).argmax(dim=-1, keepdim=True)  # (B, 1)
        idx = torch.cat([idx, idx_next], dim=1)
    for head in heads:
        head.cache = None
    return idx


# ------------------------------------------------------------------ training


def get_batch(data):
    """Inputs at random offsets in the text, and targets shifted by one.  -> 2 × (B, T)"""
    # The target of each character is the next one: T examples in one window.
    ix = torch.randint(len(data) - block_size, (batch_size,))
    x = torch.stack([data[i : i + block_size] for i in ix])
    y = torch.stack([data[i + 1 : i + block_size + 1] for i in ix])
    return x.to(device), y.to(device)


@torch.no_grad()
def estimate_loss(model, data):
    """The mean loss over several random batches: a single batch is too noisy."""
    model.eval()
    losses = [model(*get_batch(data))[1].item() for _ in range(eval_iters)]
    model.train()
    return sum(losses) / eval_iters


def read_text(path):
    """The training text. Exits with a one-line error if it is missing or too short."""
    path = path or os.environ.get("NANOGPT_DATA") or "data/input.txt"
    shortest = 10 * (block_size + 2)  # so that the last tenth has more than one window
    try:
        text = Path(path).expanduser().read_text(encoding="utf-8-sig")
    except FileNotFoundError:
        stop(f"no file {path}: name any UTF-8 text, e.g. python -m nanogpt.minimal book.txt")
    except (OSError, UnicodeDecodeError) as error:
        stop(f"{path} is not a readable UTF-8 text: {error}")
    if len(text) < shortest:
        stop(f"{path} has {len(text):,} characters: block_size {block_size} needs {shortest:,}")
    return text


def stop(reason):
    """End the program with exit code 2."""
    print(f"error: {reason}", file=sys.stderr)
    sys.exit(2)


def main():
    parser = argparse.ArgumentParser(prog="python -m nanogpt.minimal")
    parser.add_argument("text", nargs="?", help="default: $NANOGPT_DATA, then data/input.txt")
    parser.add_argument("--steps", type=int, default=1500, help="updates of the weights")
    args = parser.parse_args()
    if args.steps < 1:
        stop(f"--steps {args.steps}: train for at least 1 step")
    sys.stdout.reconfigure(errors="replace")  # a terminal may not support every character

    # 1. The text as numbers: one for each distinct character, in sorted order.
    text = read_text(args.text)
    chars = sorted(set(text))
    stoi = {char: i for i, char in enumerate(chars)}
    data = torch.tensor([stoi[char] for char in text])  # (N,)
    n = int(0.9 * len(data))
    train_data = data[:n]
    val_data = data[n:]

    # 2. The model. Weights, batches and noise come from the CPU generator, so a seed gives the same
    #    numbers on every device.
    torch.manual_seed(seed)
    model = GPTLanguageModel(len(chars)).to(device)
    n_params = sum(p.numel() for p in model.parameters())
    print(f"{len(text):,} characters, {len(chars)} distinct; {n_params:,} parameters on {device}")

    # 3. Train: the loss of a random batch, its gradient, and a small step against the gradient.
    optimizer = torch.optim.AdamW(model.parameters(), lr=learning_rate)
    began = time.perf_counter()
    for step in range(args.steps):
        x, y = get_batch(train_data)
        _, loss = model(x, y)
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        optimizer.step()
        done = step + 1
        if done % eval_interval == 0 or done == args.steps:
            train_loss = estimate_loss(model, train_data)
            val_loss = estimate_loss(model, val_data)
            left = (time.perf_counter() - began) / done * (args.steps - done)
            losses = f"train loss {train_loss:.4f}, val loss {val_loss:.4f}"
            print(f"step {done}: {losses}, {left:.0f} seconds left", flush=True)

    # 4. Generate block_size characters without and with the cache, from the same noise.
    prompt = torch.zeros(1, 1, dtype=torch.long, device=device)  # the first character of `chars`
    noise = torch.empty(block_size, 1, len(chars)).exponential_().to(device)
    texts = {}
    for cached in (False, True):
        began = time.perf_counter()
        tokens = generate(model, prompt, noise, cached)[0].tolist()
        seconds = time.perf_counter() - began
        texts[cached] = "".join(chars[i] for i in tokens)
        print(f"cached={cached}: {block_size / seconds:,.0f} characters a second")

    # 5. The cache changes the speed, not the text.
    assert texts[True] == texts[False], "the cache has changed the text"
    print(f"equal texts:\n{texts[True]}")


if __name__ == "__main__":
    main()
