"""Karpathy's character-level GPT, with a KV cache in every head, at the same tokens.

Its rooms, from the ground up. A room imports only from the rooms above it in this list:

    config      shapes, recipes, profiles: plain numbers
    system      device, files, console
    cache       key/value caches, one class a file
    data        corpus, tokenizer, batches
    model       attention, GPT, checkpoints, exact mode
    decoding    sampling, decoders, generation, speculation
    engines     faster ways to the same tokens
    training    the loop, evaluation, optimizers, resuming
    serving     many requests at once: scheduler, blocks, one step
    verify      are cached tokens uncached tokens?
    benchmarks  timing, roofline, races
    notebook    what cells import: a run, tables, plots
    publishing  what runs and renders notebooks
    export      weights as transformers and vLLM load them
    server      the batch engine behind HTTP
    cli         python -m nanogpt run | train | generate | serve | bench | export …

To follow a token: decoding/generate.py and decoder.py (the loop), model/gpt.py and attention.py
(the logits), cache/base.py and dynamic.py (keys and values), decoding/sampling.py (the draw). In
native code: engines/base.py, native.py, native.cpp. The names below load on first use.
"""

import importlib

__version__ = "0.2.0"

_HOME = {
    "config.shapes": ["GPTConfig", "SIZES"],
    "config.training": ["TrainConfig", "RECIPES", "recipe_for"],
    "cache.attach": ["kv_cache"],
    "cache.dynamic": ["DynamicCache"],
    "cache.static": ["StaticCache"],
    "cache.rolling": ["RollingCache"],
    "cache.paged": ["PagedCache"],
    "cache.int8": ["Int8Cache"],
    "data.corpus": ["load_corpus"],
    "data.tokenizer": ["CharTokenizer"],
    "model.gpt": ["GPT", "Head", "CausalSelfAttention"],
    "model.checkpoint": ["load_checkpoint", "save_checkpoint"],
    "model.exact": ["exact"],
    "decoding.sampling": ["SamplingParams", "draw_noise"],
    "decoding.generate": ["generate", "complete"],
    "decoding.drafts": ["NGram", "PromptLookup", "DraftModel"],
    "engines.eager": ["Uncached", "PerHead", "Batched", "Static", "Flat"],
    "engines.compiled": ["Compiled", "Graph", "GraphLoop"],
    "engines.native": ["Native", "Native8", "Rough8"],
    "serving.batch": ["BatchEngine", "serve"],
    "serving.request": ["Request"],
    "training.loop": ["train"],
    "verify.compare": ["compare"],
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
