"""Small models of the architectures of transformers, and models from its folders."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from torch import nn

from ..console import first_line
from ..kv_referee.huggingface import HuggingFace

_LARGEST = 100_000_000  # most parameters of a small model


class NotBuilt(ValueError):
    """transformers has no such architecture, or cannot build a small one."""


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
