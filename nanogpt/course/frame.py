# ruff: noqa: F401, F403, F405, I001, SIM118 (this line is not in the lesson)
"""A GPT that learns Shakespeare, then writes some: python lesson.py

Each part below a line `# %% NAME` is yours: its check in a notebook accepted it.
Everything you have not written yet is imported, and so is the model around your heads.
You may edit anything here.
Yours so far: nothing.
"""

import json
import os
import sys
from pathlib import Path

import torch
import torch.nn as nn
import torch.nn.functional as F
from safetensors.torch import safe_open, save_file
from torch import Tensor

sys.path.append(
    str(Path(__file__).resolve().parent.parent.parent)
)  # so that the imports below work
from nanogpt import GPT, GPTConfig, kv_cache  # the model around your heads, and its caches
from nanogpt.course.solutions import *  # whatever you have not written yet


# %% What you add below this line stays


# %% The rest of the program, which uses your parts
SHAPE = ("vocab_size", "block_size", "n_layer", "n_head", "n_embd", "dropout")


def train(text, path, steps=1500, batch=16):
    """Train a model on this text and save its weights to `path`."""
    chars = "".join(sorted(set(text)))
    shape = {"vocab_size": len(chars), "block_size": 128, "n_layer": 4, "n_head": 4, "n_embd": 64}
    shape["dropout"] = 0.0
    model = GPT(GPTConfig(**shape), head=Head)
    index = {char: i for i, char in enumerate(chars)}
    data = torch.tensor([index[char] for char in text])
    optimizer = torch.optim.AdamW(model.parameters(), lr=2e-3)
    for step in range(steps):
        at = torch.randint(len(data) - 129, (batch, 1)) + torch.arange(129)
        loss = one_step(model, optimizer, data[at[:, :-1]], data[at[:, 1:]])
        if step % 100 == 0:
            print(f"step {step:4d} of {steps}: the loss of this batch is {loss:.2f}", flush=True)
    about = {"config": shape, "vocabulary": chars}
    save_file(model.state_dict(), path, {"nanogpt": json.dumps(about)})


def load(path):
    """Load the model saved by notebook 01 or by `train`, and its characters."""
    with safe_open(path, "pt") as file:
        about = json.loads(file.metadata()["nanogpt"])
        shape = {name: about["config"][name] for name in SHAPE if name in about["config"]}
        model = GPT(GPTConfig(**shape), head=Head).eval()
        model.load_state_dict({name: file.get_tensor(name) for name in file.keys()}, strict=False)
    return model, about["vocabulary"]


def main():
    path = Path(__file__).with_name("model.safetensors")
    torch.manual_seed(1337)
    if not path.exists():
        places = [*sys.argv[1:], os.environ.get("NANOGPT_DATA", "data/input.txt")]
        train(Path(places[0]).read_text(encoding="utf-8"), path)
    model, chars = load(path)
    c = model.config
    n = model.config.block_size
    noise = torch.empty(n, 1, len(chars)).exponential_() ** 0.8  # temperature 0.8
    texts = {KVCache: "", StaticKVCache: ""}
    for cache in texts:
        for token in generate_with_cache(model, torch.zeros(1, 1).long(), noise, cache):
            texts[cache] += chars[token]
            print(chars[token] if cache is KVCache else "", end="", flush=True)
    same = texts[KVCache] == texts[StaticKVCache]
    print(f"\n\nThe other cache writes {'the same text' if same else 'ANOTHER TEXT'}.")
    matrices = [p for p in [*model.blocks.parameters(), model.lm_head.weight] if p.ndim == 2]
    weights = sum(matrix.numel() for matrix in matrices)
    cost = [multiplications(n, weights, c.n_layer, c.n_embd, cached) for cached in (False, True)]
    print(f"The last step: {cost[0]:,} multiplications without a cache, {cost[1]:,} with it,")
    print(f"and {step_bytes(weights, c.n_layer, c.n_head, c.head_size, n):,} bytes to read.")


if __name__ == "__main__":
    main()
