"""transformers models as the referee sees them, and how small ones are built."""

from __future__ import annotations

import copy
import inspect
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from ..console import first_line
from ..replica import replica
from .foreign import cache_is_unsupported
from .subjects import NotOffered, Pieces, Session, Subject, copied, through
from .texts import high_water

_LARGEST = 100_000_000  # most parameters of a small model
TWO_WAYS = ("cpmant",)  # kinds that attend to the whole prompt in both directions
CACHE_ARGUMENTS = ("past_key_values", "cache")  # the argument before transformers 5.24, and since
STATES = ("falcon_mamba", "mamba", "mamba2", "xlstm")  # their cache is a state, without keys
GROWING = "its cache"  # the names of caches
ALLOCATED = "static cache"


_State = dict[str, Any]  # what to pass back with the next tokens, by argument name


class NotBuilt(ValueError):
    """transformers has no such architecture, or cannot build a small one."""


class HuggingFace(Subject):
    """A causal language model of transformers, with its own cache and, if supported, a static one.

    The static cache is allocated once, and reset() between requests.
    """

    plainly = ""  # code that rebuilds `model` with transformers alone

    def __init__(self, model: Any):
        replica(getattr(model, "_orig_mod", model))  # ValueError if copies would share its forward
        config = model.config.get_text_config()
        self.config = config
        self.model = model.eval()
        self.name = type(model).__name__
        self.vocab_size = config.vocab_size
        self._static: dict[tuple[int, int], Any] = {}
        limits = ("max_position_embeddings", "n_positions", "max_seq_len", "n_ctx")
        windows = ("sliding_window", "attention_window_size", "window_size")
        self.longest = _first_integer(config, limits)
        self.window = _first_integer(config, windows)
        if (self.longest or 0) < 1:
            self.longest = None
        pads = (getattr(config, "pad_token_id", None), *_tokens_of_images(model.config))
        self.specials = tuple(i for i in (0, 1, 2) if i not in pads)
        # By its signature, what torch.compile returns accepts any argument.
        self.takes = inspect.signature(getattr(model, "_orig_mod", model).forward).parameters
        self.argument = next((name for name in CACHE_ARGUMENTS if name in self.takes), "")
        caches = [self.argument] if self.argument else ["cache", "past_key_values"]
        self.fields = [*caches, "cache_params", "state"]
        self.rewinds = bool(self.argument) and config.model_type not in STATES
        self.caches = (GROWING, ALLOCATED) if self.rewinds else (GROWING,)

    @property
    def bidirectional(self) -> bool:
        """Whether the model attends to later tokens by design, as an encoder does."""
        if self.config.model_type in TWO_WAYS:
            return True
        flags = (getattr(self.config, name, True) for name in ("is_decoder", "causal"))
        return False in flags or getattr(self.config, "attn_type", "") == "bi"

    @torch.no_grad()
    def plain(self, ids: Tensor) -> Tensor:
        logits: Tensor = self.model(ids.to(self.model.device), use_cache=False).logits
        return logits

    @torch.no_grad()
    def cached(self, pieces: Pieces, cache: str | None = None) -> Tensor:
        state: _State = {}
        taken_back = any(isinstance(piece, int) for piece in pieces)
        if taken_back and getattr(self.model, "_is_stateful", False):
            raise NotOffered("transformers cannot rewind a stateful model")
        if cache == ALLOCATED:
            rows = len(next(piece for piece in pieces if isinstance(piece, Tensor)))
            state = {self.argument: self._allocated(rows, high_water(pieces), anew=taken_back)}
        elif taken_back:
            from transformers import DynamicCache as Growing

            state = {self.argument: Growing(config=self.model.config)}

        cropped = False

        def read(ids: Tensor) -> Tensor:
            nonlocal cropped
            cropped = False
            empty = taken_back and not getattr(state[self.argument], "read", False)
            out = self._read(state, ids)
            if empty:
                _record(state[self.argument])
            return out

        def rewind(n: int) -> None:
            nonlocal cropped
            (held,) = state.values()
            layers = getattr(held, "layers", ())
            if cropped and any(getattr(layer, "record_past", False) for layer in layers):
                raise NotOffered("a crop keeps only what it must: read before the next crop")
            cropped = True
            try:
                held.crop(-n)
            except (NotImplementedError, ValueError, AttributeError, RuntimeError) as error:
                raise NotOffered(f"its cache refuses to crop: {error}") from None

        return through(read, rewind, pieces)

    def _read(self, state: _State, ids: Tensor, **more: Tensor) -> Tensor:
        """Logits of the next tokens. `state` gets what to pass back with the tokens after them."""
        try:
            out = self.model(ids, use_cache=True, **more, **state)
        except (ValueError, NotImplementedError, AttributeError, TypeError) as error:
            if cache_is_unsupported(error):
                raise NotOffered(f"it refuses this cache: {first_line(error)}") from None
            raise
        for key in self.fields:
            if getattr(out, key, None) is not None:
                state[key] = out[key]
                logits: Tensor = out.logits
                return logits
        raise NotOffered(f"{self.name} returns no cache")

    def _allocated(self, batch: int, needed: int, anew: bool) -> Any:
        """A static cache with room for this many tokens, and at most twice as many.

        `anew` allocates a new one, because a reset does not end the recording of drafts.
        """
        from transformers import StaticCache as Allocated

        sizes = [n for rows, n in self._static if rows == batch and needed <= n <= 2 * needed]
        key = (batch, min(sizes, default=needed))
        held = None if anew else self._static.get(key)
        if held is None:
            try:
                held = Allocated(config=self.model.config, max_cache_len=key[1])
            except Exception as error:
                raise NotOffered(f"no static cache: {error}") from None
        if not anew:
            self._static[key] = held
        held.reset()
        return held

    @torch.no_grad()
    def placed(self, ids: Tensor, pos: Tensor) -> Tensor:
        if "position_ids" not in self.takes:
            raise NotOffered("it takes no position_ids")
        device = self.model.device
        places = pos.to(device)[None].expand(len(ids), -1)
        logits: Tensor = self.model(ids.to(device), position_ids=places, use_cache=False).logits
        return logits

    def session(self, cache: str | None = None, rows: int = 1) -> Session:
        if cache == ALLOCATED:
            raise NotOffered("a static cache serves one text after the other")
        return HuggingFaceSession(self)

    @torch.no_grad()
    def padded(self, ids: Tensor, mask: Tensor, lengths: list[int] | None) -> Tensor:
        if "attention_mask" not in self.takes:
            raise NotOffered("it takes no attention_mask, so padding would be read as text")
        if lengths and not self.rewinds:
            raise NotOffered("its state accepts no mask for earlier tokens")
        pos = (mask.cumsum(1) - 1).clamp(min=0)
        state: _State = {}
        logits = []
        end = 0
        for piece in ids.split(lengths or ids.shape[1], 1):
            start = end
            end = end + piece.shape[1]
            more = {"attention_mask": mask[:, :end], "position_ids": pos[:, start:end]}
            more = {name: x for name, x in more.items() if name in self.takes}
            if lengths:
                logits.append(self._read(state, piece, **more))
            else:
                logits.append(self.model(piece, use_cache=False, **more).logits)
        return torch.cat(logits, 1)

    def to(self, dtype: torch.dtype) -> HuggingFace:
        other = HuggingFace(copied(self.model, dtype))
        other.builds = self.builds
        other.plainly = self.plainly
        return other


def _first_integer(config: object, names: tuple[str, ...]) -> int | None:
    """The value of the first of these attributes that is an integer."""
    for name in names:
        value = getattr(config, name, None)
        if isinstance(value, int):
            return value
    return None


class HuggingFaceSession(Session):
    """The cache of one batch, independent of other sessions."""

    def __init__(self, subject: HuggingFace, state: _State | None = None):
        self.subject = subject
        self.state: _State = state or {}

    @torch.no_grad()
    def read(self, ids: Tensor) -> Tensor:
        return self.subject._read(self.state, ids)

    def reorder(self, rows: list[int]) -> None:
        self._held("reorder_cache").reorder_cache(torch.tensor(rows))

    def keep(self, rows: list[int]) -> None:
        self._held("batch_select_indices").batch_select_indices(torch.tensor(rows))

    def fork(self) -> Session:
        return HuggingFaceSession(self.subject, copy.deepcopy(self.state))

    def _held(self, method: str) -> Any:
        """The cache, if it has this method. Raises NotOffered."""
        (held,) = self.state.values()
        if not hasattr(held, method):
            raise NotOffered(f"its cache has no {method}")
        return held


def _record(cache: Any) -> None:
    """Make a cache keep what drafts push out, as generation does after the prompt."""
    if not getattr(cache, "is_croppable", True):
        raise NotOffered("its cache says that it is not croppable")
    cache.read = True
    if hasattr(cache, "activate_past_recording"):
        cache.activate_past_recording()


def _tokens_of_images(config: object) -> list[int]:
    """Ids that stand for something other than text."""
    names = [name for name in vars(config) if name.endswith(("_token_id", "_token_index"))]
    return [getattr(config, n) for n in names if n[:3] not in ("bos", "eos", "sep", "cls")]


# ------------------------------------------------------------------ small models

_SMALL: dict[str, Any] = {
    "vocab_size": 97,
    "hidden_size": 32,
    "intermediate_size": 48,
    "head_dim": 8,
    "num_hidden_layers": 4,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 512,
    "n_positions": 512,
    "sliding_window": 12,
    "n_embd": 32,
    "n_layer": 4,
    "n_head": 4,
    "d_model": 32,
    "n_heads": 4,
    "n_layers": 4,
    "ffn_dim": 48,
    "word_embed_proj_dim": 32,
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "hidden_dropout": 0.0,
    "attention_dropout": 0.0,
    # Encoder-decoder models name the decoder's layers separately.
    "decoder_layers": 4,
    "decoder_attention_heads": 4,
    "decoder_ffn_dim": 48,
    "encoder_layers": 4,
    "encoder_attention_heads": 4,
    "encoder_ffn_dim": 48,
    "is_decoder": True,
    "add_cross_attention": False,
    # A few experts, two of them per token.
    "num_experts": 4,
    "num_local_experts": 4,
    "n_routed_experts": 4,
    "num_experts_per_tok": 2,
    "moe_intermediate_size": 16,
    "shared_expert_intermediate_size": 16,
    "n_shared_experts": 1,
    "n_group": 1,
    "topk_group": 1,
    "first_k_dense_replace": 1,
    "moe_num_experts": 4,
    "moe_k": 2,
    "moe_topk": 2,
    "num_experts_per_token": 2,
    "expert_ffn_hidden_size": 16,
    # Latent attention has its own head sizes.
    "kv_lora_rank": 16,
    "q_lora_rank": 16,
    "qk_nope_head_dim": 8,
    "qk_rope_head_dim": 8,
    "v_head_dim": 8,
    "rotary_dim": 4,
    "index_n_heads": 2,
    "index_head_dim": 16,
    # Hybrids: an attention layer among four, and linear ones.
    "attn_layer_period": 2,
    "attn_layer_offset": 1,
    "expert_layer_period": 2,
    "expert_layer_offset": 1,
    "layer_group_size": 2,
    "full_attention_interval": 2,
    "linear_num_key_heads": 2,
    "linear_num_value_heads": 4,
    "linear_key_head_dim": 8,
    "linear_value_head_dim": 8,
    "mamba_n_heads": 8,
    "mamba_d_head": 8,
    "mamba_d_state": 8,
    "mamba_num_heads": 8,
    "mamba_head_dim": 8,
    "ssm_state_size": 8,
    "mamba_n_groups": 1,
    "n_groups": 1,
    "chunk_size": 16,
    "attention_chunk_size": 16,
    "hidden_size_per_layer_input": 8,
    "vocab_size_per_layer_input": 97,
    "d_ff": 48,
    "lru_width": 32,
    "attention_window_size": 12,
    "n_inner": 48,
    "embedding_size": 32,
    "hybrid_override_pattern": "M*-M",
    "word_embedding_dimension": 32,
    "d_kv": 8,
    "num_codebooks": 1,
    "attn_layer_indices": [1, 3],
    "attn_layer_idx": [1, 3],
    "num_kv_shared_layers": 1,
    "attention_types": [[["global", "local"], 2]],
    "d_head": 8,
    "num_encoder_layers": 4,
    "num_decoder_layers": 4,
    "num_encoder_attention_heads": 4,
    "num_decoder_attention_heads": 4,
    "window_size": 12,
    "default_language": "en_XX",
    "indexer_n_heads": 2,
    "indexer_kv_heads": 1,
    "indexer_head_dim": 16,
    "hc_lowrank": 8,
    "ple_embed_dim": 32,
    "ngram_vocab_size_base": 97,
    "router_hidden_size": 16,
    "attention_head_dim": 16,
    "mamba_headdim": 8,
    "n_mamba_heads": 8,
    "n_input_layers": 1,
    "n_output_layers": 1,
    "n_recurrent_layers": 2,
}
HYBRID = {"lfm2_moe": ("conv", "full_attention")}  # layer types of kinds that name none
LINEAR = ("linear_attention", "full_attention")  # those of all others that name none
OWN: dict[str, dict[str, Any]] = {  # sizes for individual kinds
    "lfm2": {"layer_types": ["conv", "full_attention"] * 2},  # its default has no convolution
    # Its cache rounds q, k and v up to a multiple of 64, its layers do not. Wide, so shallow.
    "xlstm": {"hidden_size": 128, "num_hidden_layers": 2, "num_heads": 2},
}
LAYERS = ("layer_types", "layers_block_type", "mlp_layer_types")
# With any of these, head_dim is not set.
_HEADS = ("kv_lora_rank", "rotary_dim", "qk_nope_head_dim")


def small(kind: str, seed: int = 0) -> HuggingFace:
    """Build a small model of a transformers architecture, for example small("llama").

    Weights are normal(0, 0.3): the default ones are so small that a wrong mask hardly shows.
    Raises NotBuilt if transformers does not know the name, or cannot build a small model of it.
    """
    from transformers import AutoConfig

    failed = _failing_as(NotBuilt, f"builds no small {kind!r}")
    with failed, torch.random.fork_rng(devices=[]):
        known = AutoConfig.for_model(kind)
        first: Exception | None = None
        for left_out in TRIED:
            torch.manual_seed(seed)
            try:
                model = _built(kind, _sizes(known, left_out))
                model(torch.tensor([[3, 4, 5]]), use_cache=False)
                subject = HuggingFace(model)
                lines = "from nanogpt.verify.huggingface import small"
                subject.builds = f"{lines}\n\nMODEL = small({kind!r}, {seed})"
                subject.plainly = _lines(known, _sizes(known, left_out), seed)
                return subject
            except Exception as failure:  # of any type: it depends on the model
                first = first or failure
        assert first is not None
        raise first


# Sizes to leave out if a model cannot be built with them, from few to many.
TRIED: tuple[tuple[str, ...], ...] = (
    (),
    LAYERS,
    ("head_dim", "num_key_value_heads"),
    ("head_dim", *LAYERS),
    ("n_groups", "d_kv", "num_codebooks", "chunk_size", "lru_width", "q_lora_rank"),
    ("hybrid_override_pattern", "attn_layer_indices", "attn_layer_idx", "v_head_dim"),
)


def _sizes(known: Any, left_out: tuple[str, ...]) -> dict[str, Any]:
    """The sizes of a small model, limited to the options that this configuration has."""
    config = known.get_text_config()
    usual = config.to_dict()
    names = {*usual, *(x for x, y in config.attribute_map.items() if y in usual and x in _SMALL)}
    sizes = {x: n for x, n in _SMALL.items() if x in names and x not in left_out}
    for one, other in config.attribute_map.items():  # two names for the same option
        if one in sizes and other in sizes:
            sizes.pop(one)
    if any(usual.get(name) for name in _HEADS):
        sizes.pop("head_dim", None)
    if usual.get("kv_lora_rank"):  # it has as many key heads as heads
        sizes["num_key_value_heads"] = _SMALL["num_attention_heads"]
    if usual.get("q_lora_rank", 1) is None:
        sizes.pop("q_lora_rank", None)
    if "mamba_headdim" in usual:  # its attention reads two states, concatenated
        sizes["attention_hidden_size"] = 2 * _SMALL["hidden_size"]
    if "state_size" in usual and "num_heads" in usual:  # heads of a state, of twice the width
        sizes["num_heads"] = 2 * _SMALL["hidden_size"] // _SMALL["head_dim"]
    for name in LAYERS:
        if name in usual and name not in left_out:
            kinds = list(dict.fromkeys(usual[name] or HYBRID.get(known.model_type, LINEAR)))
            if name == "layer_types" and "mlp" in kinds:  # written beside each layer: half of one
                kinds.remove("mlp")
            kinds = list(LINEAR) if kinds == ["linear_attention"] else kinds
            sizes[name] = (kinds * 4)[: max(4, len(kinds))]
            sizes["num_hidden_layers"] = max(4, len(kinds), sizes.get("num_hidden_layers", 4))
    for name in LAYERS:
        if name in sizes:
            sizes[name] = (sizes[name] * 4)[: sizes["num_hidden_layers"]]
    return sizes | OWN.get(known.model_type, {})


def _options(config: Any, sizes: dict[str, Any]) -> dict[str, Any]:
    """The sizes; for a model with a separate text part, under the name of that part."""
    if config.get_text_config() is config:
        return sizes
    name = next(x for x in vars(config) if getattr(config, x) is config.get_text_config())
    return {name: sizes}


def _lines(config: Any, sizes: dict[str, Any], seed: int) -> str:
    """Python code that builds the same small model with transformers alone."""
    experts = any("expert" in name for name in sizes)
    eager = ', experts_implementation="eager"' if experts else ""
    return (
        f"config = AutoConfig.for_model({config.model_type!r}, **{_options(config, sizes)})\n"
        f"torch.manual_seed({seed})\n"
        f"model = AutoModelForCausalLM.from_config(config{eager})\n"
        f"for p in model.parameters():\n"
        f"    if p.ndim > 1:\n"
        f"        torch.nn.init.normal_(p, std=0.3)\n"
    )


def _built(kind: str, sizes: dict[str, Any]) -> nn.Module:
    """Build a model with these sizes and with weights that show a mistake. May raise anything."""
    from transformers import AutoConfig, AutoModelForCausalLM

    config = AutoConfig.for_model(kind, **_options(AutoConfig.for_model(kind), sizes))
    with torch.device("meta"):
        shape = AutoModelForCausalLM.from_config(config)
    n = sum(p.numel() for p in shape.parameters())
    if n > _LARGEST:
        raise ValueError(f"its smallest has {n:,} parameters; at most {_LARGEST:,} are built")
    options = {"experts_implementation": "eager"}  # the other implementations have no float64
    try:
        model = AutoModelForCausalLM.from_config(config, **options)
    except (TypeError, ValueError):
        model = AutoModelForCausalLM.from_config(config)
    for p in (p for p in model.parameters() if p.ndim > 1):
        nn.init.normal_(p, std=0.3)
    built: nn.Module = model.eval()
    return built


def from_folder(path: str | Path, trust: bool = False) -> HuggingFace:
    """Load the causal language model in a folder written by transformers. Raises ValueError.

    `trust` runs code from the folder.
    """
    from transformers import AutoModelForCausalLM

    options = {"local_files_only": True, "trust_remote_code": trust}
    with _failing_as(ValueError, f"loads no model from {path}"):
        subject = HuggingFace(AutoModelForCausalLM.from_pretrained(path, **options))
        lines = "from nanogpt.verify.huggingface import from_folder"
        subject.builds = f"{lines}\n\nMODEL = from_folder({str(path)!r}, trust={trust})"
        trusted = ", trust_remote_code=True" if trust else ""
        subject.plainly = f"model = AutoModelForCausalLM.from_pretrained({str(path)!r}{trusted})\n"
        return subject


@contextmanager
def _failing_as(kind: type[ValueError], cannot: str) -> Iterator[None]:
    """Silence transformers' log in a with-block, and re-raise any error as this type."""
    from transformers import logging

    logging.set_verbosity_error()
    try:
        yield
    except Exception as error:  # of any type: it depends on the model
        raise kind(f"transformers {cannot}: {first_line(error)}") from None
