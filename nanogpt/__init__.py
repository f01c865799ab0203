"""Karpathy's character-level GPT, with a KV cache in every head, at the same tokens.

The files are the lesson. Each stands on those above it and is read from top to bottom:

    config      shapes and recipes: plain numbers, and how they are checked
    console     progress on a terminal and in a notebook
    files       whole files or none, and their places
    device      the device, and why it was chosen
    data        corpus, characters as numbers, batches
    attention   who sees whom, and the weighted mean of values
    cache       the keys and values of a head: KVCache, DynamicCache, StaticCache, kv_cache
    model       Head, Block, GPT, and how their weights start
    convert     one form of a model as another: a list of heads, one product for all
    checkpoint  weights to files and back
    sampling    noise as data, and a token drawn from logits with it
    generation  decoders, the loop, generate and complete
    optimizers  AdamW and Muon
    trainer     one training step, and the loss over a text
    resume      the files of a run, and going on after a stop
    training    the loop that trains, evaluates and saves
    comparison  cached against uncached text: equal, and by which margin
    timing      time to first token, time per token, two ways in turns

The folders go beyond it. A folder imports files, and the folders above it in this list:

    caches      for longer texts and less memory: a ring, pages, 8 bits
    engines     faster ways to the same tokens, speculation, exact mode
    serving     many requests at once: scheduler, blocks, HTTP
    verify      the referee of any model or server, sweeps, the museum
    bench       the costs: the ladder, load, speculation, training
    export      weights as transformers and vLLM load them
    cluster     several processes: torchrun, Ray, locks
    series      runs, renders and publishes the notebooks
    cli         python -m nanogpt run | train | generate | serve | bench | export …

From a prompt to its token: generation.py (the loop), model.py and attention.py (the logits),
cache.py (keys and values), sampling.py (the draw). The names below load on first use.
"""

import importlib

__version__ = "0.2.0"

_HOME = {
    "config": ["GPTConfig", "SIZES", "TrainConfig", "RECIPES", "recipe_for"],
    "data": ["load_corpus", "CharTokenizer"],
    "cache": ["kv_cache", "DynamicCache", "StaticCache"],
    "model": ["GPT", "Head", "CausalSelfAttention"],
    "checkpoint": ["load_checkpoint", "save_checkpoint"],
    "sampling": ["SamplingParams", "draw_noise"],
    "generation": ["generate", "complete"],
    "training": ["train"],
    "comparison": ["compare"],
    "caches.rolling": ["RollingCache"],
    "caches.paged": ["PagedCache"],
    "caches.int8": ["Int8Cache"],
    "engines.exact": ["exact"],
    "engines.drafts": ["NGram", "PromptLookup", "DraftModel"],
    "engines.eager": ["Uncached", "PerHead", "Batched", "Static", "Flat"],
    "engines.compiled": ["Compiled", "Graph", "GraphLoop"],
    "engines.native": ["Native", "Native8", "Rough8"],
    "serving.batch": ["BatchEngine", "serve"],
    "serving.sequence": ["Request"],
    "verify.referee": ["referee"],
}
_MODULE = {name: module for module, names in _HOME.items() for name in names}
__all__ = sorted(_MODULE)


def __getattr__(name: str):
    if name not in _MODULE:
        raise AttributeError(f"module 'nanogpt' has no attribute {name!r}")
    value = getattr(importlib.import_module(f"nanogpt.{_MODULE[name]}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return [*globals(), *__all__]
