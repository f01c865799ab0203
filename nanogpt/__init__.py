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

import ast
import importlib
import pkgutil
from typing import TYPE_CHECKING

__version__ = "0.2.0"

# The public names, in the order above. At run time each is imported on first use.
# isort: off
if TYPE_CHECKING:
    from .config import GPTConfig as GPTConfig, SIZES as SIZES
    from .data import load_corpus as load_corpus, CharTokenizer as CharTokenizer
    from .cache import (
        kv_cache as kv_cache,
        DynamicCache as DynamicCache,
        StaticCache as StaticCache,
    )
    from .model import GPT as GPT, Head as Head
    from .sampling import SamplingParams as SamplingParams, draw_noise as draw_noise
    from .fitting import fit as fit
    from .comparison import compare as compare
    from .decoder.config import DecoderConfig as DecoderConfig
    from .decoder.model import Decoder as Decoder, CausalSelfAttention as CausalSelfAttention
    from .decoder.pack import pack_heads as pack_heads, unpack_heads as unpack_heads
    from .decoder.checkpoint import (
        load_checkpoint as load_checkpoint,
        save_checkpoint as save_checkpoint,
    )
    from .pretrained.load import load_pretrained as load_pretrained
    from .pretrained.padding import without_spare_tokens as without_spare_tokens
    from .training.recipes import (
        TrainConfig as TrainConfig,
        RECIPES as RECIPES,
        recipe_for as recipe_for,
    )
    from .training.loop import train as train
    from .caches.rolling import RollingCache as RollingCache
    from .caches.paged import PagedCache as PagedCache
    from .caches.int8 import Int8Cache as Int8Cache
    from .engines.generation import generate as generate, complete as complete
    from .engines.exact import exact as exact
    from .engines.drafts import (
        NGram as NGram,
        PromptLookup as PromptLookup,
        DraftModel as DraftModel,
    )
    from .engines.eager import (
        Uncached as Uncached,
        PerHead as PerHead,
        Batched as Batched,
        Flat as Flat,
    )
    from .engines.compiled import Compiled as Compiled, Graph as Graph, GraphLoop as GraphLoop
    from .engines.native import Native as Native, Native8 as Native8
    from .serving.batch import BatchEngine as BatchEngine, serve as serve
    from .serving.sequence import Request as Request
    from .verify.referee import referee as referee
# isort: on


def _homes() -> dict[str, str]:
    """The module of each public name, read from the imports above.

    Importing all of it would take seconds, and editors and type checkers complete only names that
    are imported in plain sight. So the imports stand there, and are read as text, which takes two
    milliseconds.
    """
    text = pkgutil.get_data(__name__, "__init__.py")
    assert text is not None, "nanogpt reads its public names from its own source, which is missing"
    block = next(node for node in ast.parse(text).body if isinstance(node, ast.If))
    found: dict[str, str] = {}
    for line in block.body:
        assert isinstance(line, ast.ImportFrom)
        found |= {alias.name: str(line.module) for alias in line.names}
    return found


_MODULE = _homes()
__all__ = sorted(_MODULE)

if not TYPE_CHECKING:  # A type checker that saw it would take any name for a public one.

    def __getattr__(name: str):
        if name not in _MODULE:
            raise AttributeError(f"module 'nanogpt' has no attribute {name!r}")
        value = getattr(importlib.import_module(f"nanogpt.{_MODULE[name]}"), name)
        globals()[name] = value
        return value


def __dir__() -> list[str]:
    return [*globals(), *__all__]
