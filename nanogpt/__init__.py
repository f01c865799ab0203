"""Karpathy's character-level GPT with a KV cache in every head: identical output, faster.

The files are the lesson. Each builds on the files above it and reads from top to bottom:

    config      model hyperparameters as plain numbers, and argument checks
    console     progress bars in a terminal and in a notebook, errors in one line
    files       atomic writes, and where files are kept
    device      which device is used, and why
    data        corpus, character tokenizer, batches
    attention   the causal mask and scaled dot-product attention
    cache       the keys and values of a head: KVCache, DynamicCache, StaticCache, kv_cache
    model       Head, Block, GPT
    sampling    noise as data, and sampling a token from logits with it
    generation  readers, the decoding loop, generate and complete
    fitting     the lecture's training loop: batches, AdamW, train and validation loss
    comparison  cached against uncached decoding: same tokens? by what margin?
    timing      time to first token, time per token, two systems interleaved
    minimal     all of it in one file that imports only torch: model, cache, training, sampling

The folders go beyond the lesson. A folder imports the files and the folders above it in this list:

    decoder     the general model and its checkpoints: rotary positions, grouped keys, gates
    pretrained  Hugging Face, GGUF and nanoGPT checkpoints loaded as Decoders
    training    the fast trainer: recipes, Muon, resuming, multi-process training
    caches      for longer texts and less memory: a ring buffer, pages, 8 bits
    engines     faster decoding with identical output, speculation, exact mode
    serving     many requests at once: scheduler, blocks, HTTP
    verify      the referee for any model or server, sweeps, the museum
    bench       benchmarks: the ladder, load, speculation, training
    export      weights in the format that transformers and vLLM load
    cluster     jobs of many texts: Ray, locks
    series      runs, renders and publishes the notebooks
    cli         python -m nanogpt run | train | generate | serve | bench | export …

From a prompt to its next token: generation.py (the loop), model.py and attention.py (the logits),
cache.py (keys and values), sampling.py (the sample). `nanogpt.generate` and `nanogpt.complete` come
from engines/generation.py: without an engine or a draft they run the lesson's loop. The names
below are imported on first use.
"""

import importlib

__version__ = "0.2.0"

_HOME = {
    "config": ["GPTConfig", "SIZES"],
    "data": ["load_corpus", "CharTokenizer"],
    "cache": ["kv_cache", "DynamicCache", "StaticCache"],
    "model": ["GPT", "Head"],
    "sampling": ["SamplingParams", "draw_noise"],
    "fitting": ["fit"],
    "comparison": ["compare"],
    "decoder.config": ["DecoderConfig"],
    "decoder.model": ["Decoder", "CausalSelfAttention"],
    "decoder.pack": ["pack_heads", "unpack_heads"],
    "decoder.checkpoint": ["load_checkpoint", "save_checkpoint"],
    "pretrained.load": ["load_pretrained"],
    "pretrained.padding": ["without_spare_tokens"],
    "training.recipes": ["TrainConfig", "RECIPES", "recipe_for"],
    "training.loop": ["train"],
    "caches.rolling": ["RollingCache"],
    "caches.paged": ["PagedCache"],
    "caches.int8": ["Int8Cache"],
    "engines.generation": ["generate", "complete"],
    "engines.exact": ["exact"],
    "engines.drafts": ["NGram", "PromptLookup", "DraftModel"],
    "engines.eager": ["Uncached", "PerHead", "Batched", "Static", "Flat"],
    "engines.compiled": ["Compiled", "Graph", "GraphLoop"],
    "engines.native": ["Native", "Native8"],
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
