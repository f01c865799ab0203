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
    replica     a copy of a model's modules, with its own caches and eval mode
    sampling    noise as data, and sampling a token from logits with it
    generation  readers, the decoding loop, generate and complete
    fitting     the lecture's training loop: batches, AdamW, train and validation loss
    comparison  cached against uncached decoding: same tokens? by what margin?
    timing      time to first token, time per token, two systems interleaved
    minimal     all of it in one file that imports only torch: model, cache, training, sampling

The folders go beyond the lesson. A folder imports the files and the folders above it in this list:

    kv_referee  does a KV cache change the output? For models of any library: it installs alone
    decoder     the general model and its checkpoints: rotary positions, grouped keys, gates
    pretrained  other people's models, in and out: Hugging Face, GGUF, Karpathy's checkpoints
    training    the fast trainer: recipes, Muon, resuming, multi-process training
    caches      for longer texts and less memory: a ring buffer, pages, 8 bits
    engines     faster decoding with identical output, speculation, exact mode
    serving     many requests at once: scheduler, blocks, HTTP; jobs of many texts
    verify      the referee on these models and on servers, sweeps, the museum
    bench       benchmarks: the ladder, load, speculation, training
    course      what a learner writes: blanks, check, hint, the lesson, grading, the certificate
    site        pages of executed notebooks, figures, moving figures, a live model
    series      runs the notebooks and publishes them; what their cells import
    cli         python -m nanogpt run | train | generate | serve | bench | export …

From a prompt to its next token: generation.py (the loop), model.py and attention.py (the logits),
cache.py (keys and values), sampling.py (the sample). `nanogpt.generate` and `nanogpt.complete` come
from engines/generation.py: without an engine or a draft they run the lesson's loop. The names
below are imported on first use.
"""

import importlib
from typing import TYPE_CHECKING

__version__ = "0.2.0"

# Where each public name is defined. Importing all of it would take seconds, so a name is imported
# on first use, below.
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
    "engines.eager": ["Uncached", "PerHead", "Batched", "Flat"],
    "engines.compiled": ["Compiled", "Graph", "GraphLoop"],
    "engines.native": ["Native", "Native8"],
    "serving.batch": ["BatchEngine", "serve"],
    "serving.sequence": ["Request"],
    "verify.referee": ["referee"],
}
_MODULE = {name: module for module, names in _HOME.items() for name in names}
__all__ = sorted(_MODULE)

if TYPE_CHECKING:  # The same names, for editors and type checkers: a test compares the two lists.
    from .cache import DynamicCache as DynamicCache
    from .cache import StaticCache as StaticCache
    from .cache import kv_cache as kv_cache
    from .caches.int8 import Int8Cache as Int8Cache
    from .caches.paged import PagedCache as PagedCache
    from .caches.rolling import RollingCache as RollingCache
    from .comparison import compare as compare
    from .config import SIZES as SIZES
    from .config import GPTConfig as GPTConfig
    from .data import CharTokenizer as CharTokenizer
    from .data import load_corpus as load_corpus
    from .decoder.checkpoint import load_checkpoint as load_checkpoint
    from .decoder.checkpoint import save_checkpoint as save_checkpoint
    from .decoder.config import DecoderConfig as DecoderConfig
    from .decoder.model import CausalSelfAttention as CausalSelfAttention
    from .decoder.model import Decoder as Decoder
    from .decoder.pack import pack_heads as pack_heads
    from .decoder.pack import unpack_heads as unpack_heads
    from .engines.compiled import Compiled as Compiled
    from .engines.compiled import Graph as Graph
    from .engines.compiled import GraphLoop as GraphLoop
    from .engines.drafts import DraftModel as DraftModel
    from .engines.drafts import NGram as NGram
    from .engines.drafts import PromptLookup as PromptLookup
    from .engines.eager import Batched as Batched
    from .engines.eager import Flat as Flat
    from .engines.eager import PerHead as PerHead
    from .engines.eager import Uncached as Uncached
    from .engines.exact import exact as exact
    from .engines.generation import complete as complete
    from .engines.generation import generate as generate
    from .engines.native import Native as Native
    from .engines.native import Native8 as Native8
    from .fitting import fit as fit
    from .model import GPT as GPT
    from .model import Head as Head
    from .pretrained.load import load_pretrained as load_pretrained
    from .pretrained.padding import without_spare_tokens as without_spare_tokens
    from .sampling import SamplingParams as SamplingParams
    from .sampling import draw_noise as draw_noise
    from .serving.batch import BatchEngine as BatchEngine
    from .serving.batch import serve as serve
    from .serving.sequence import Request as Request
    from .training.loop import train as train
    from .training.recipes import RECIPES as RECIPES
    from .training.recipes import TrainConfig as TrainConfig
    from .training.recipes import recipe_for as recipe_for
    from .verify.referee import referee as referee
else:

    def __getattr__(name: str):
        if name not in _MODULE:
            raise AttributeError(f"module 'nanogpt' has no attribute {name!r}")
        value = getattr(importlib.import_module(f"nanogpt.{_MODULE[name]}"), name)
        globals()[name] = value
        return value


def __dir__() -> list[str]:
    return [*globals(), *__all__]
