"""The supported model families, as data: config fields and tensor names.

A family is one `Family` below. Each field of a config.json is in one of its tables; any other field
is refused by name. Tensor names map the modules of a `Decoder` to those of the file; several names
are stacked, in order, into one matrix.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from ..decoder.config import Activation, DecoderConfig, Norm, Positions


@dataclass(frozen=True)
class Names:
    """A file's names for the modules of a Decoder, and how it stores their matrices."""

    modules: Mapping[str, tuple[str, ...]]  # {i} is the index of a block
    prefix: str = ""  # of all names but the head's; absent if the model was saved without its head
    transposed: bool = False  # matrices of linear layers are (in, out), as in GPT-2's Conv1D
    permuted: bool = False  # rows of queries and keys are in llama.cpp's order
    stacked: Mapping[str, str] = field(
        default_factory=dict
    )  # if used, one name for the whole module
    ignored: tuple[str, ...] = ()  # suffixes of tensors that are not weights


@dataclass(frozen=True)
class Family:
    """One architecture: `model_type` in a config.json, `general.architecture` in GGUF."""

    model_type: str
    fixed: dict[str, Any]  # DecoderConfig fields that all its models share
    fields: Mapping[str, tuple[str, ...]]  # config.json field: what it sets in the DecoderConfig
    defaults: dict[str, Any]  # values of fields that a config.json may omit
    names: Names
    gguf_names: Names
    only: dict[str, tuple[Any, ...]] = field(default_factory=dict)  # field: the supported values
    harmless: frozenset[str] = frozenset()  # fields that decoding does not read


# ------------------------------------------------------------------ fields of config.json

ACTIVATIONS = {
    "silu": Activation.SILU,
    "swish": Activation.SILU,
    "gelu": Activation.GELU,
    "gelu_new": Activation.GELU_TANH,
    "gelu_pytorch_tanh": Activation.GELU_TANH,
    "relu": Activation.RELU,
    "relu2": Activation.RELU2,
}

# For every family: fields about training, files, classification or transformers' return values.
HARMLESS = frozenset(
    """
    _name_or_path architectures model_type transformers_version torch_dtype dtype use_cache
    initializer_range attention_dropout bos_token_id eos_token_id pad_token_id unk_token_id
    sep_token_id decoder_start_token_id id2label label2id problem_type task_specific_params
    finetuning_task return_dict output_attentions output_hidden_states chunk_size_feed_forward
    prefix tokenizer_class torchscript use_bfloat16 tf_legacy_loss is_decoder pretraining_tp
    _attn_implementation_autoset is_llama_config transformers.js_config
    max_length min_length do_sample early_stopping num_beams num_beam_groups diversity_penalty
    temperature top_k top_p typical_p repetition_penalty length_penalty no_repeat_ngram_size
    encoder_no_repeat_ngram_size bad_words_ids num_return_sequences output_scores
    return_dict_in_generate forced_bos_token_id forced_eos_token_id remove_invalid_values
    exponential_decay_length_penalty suppress_tokens begin_suppress_tokens
    """.split()
)
# For every family: fields that change the arithmetic, and the values for which they do not.
ONLY: dict[str, tuple[Any, ...]] = {
    "is_encoder_decoder": (False,),
    "tie_encoder_decoder": (False,),
    "add_cross_attention": (False,),
    "cross_attention_hidden_size": (None,),
    "pruned_heads": ({}, None),
    "quantization_config": (None,),
    "rope_interleaved": (False,),
    "partial_rotary_factor": (1.0, None),
    "use_sliding_window": (False,),
    "use_mrope": (False,),
}
_SHAPE = {
    "vocab_size": ("vocab_size",),
    "max_position_embeddings": ("block_size",),
    "num_hidden_layers": ("n_layer",),
    "num_attention_heads": ("n_head",),
    "num_key_value_heads": ("n_kv_head",),
    "hidden_size": ("n_embd",),
    "head_dim": ("head_dim",),
    "intermediate_size": ("ffn_dim",),
    "hidden_act": ("activation",),
    "rms_norm_eps": ("norm_eps",),
    "tie_word_embeddings": ("tied",),
}
# None stands for DecoderConfig's default.
SHAPE_DEFAULTS: dict[str, Any] = {
    "num_key_value_heads": None,
    "head_dim": None,
    "hidden_act": "silu",
    "rms_norm_eps": 1e-6,
    "tie_word_embeddings": False,
}
_MODERN: dict[str, Any] = {
    "positions": Positions.ROTARY,
    "norm": Norm.RMS,
    "gated": True,
    "proj_bias": False,
    "ffn_bias": False,
    "head_bias": False,
}
# Windows are off unless use_sliding_window is true, which ONLY refuses.
WINDOWS = frozenset(["sliding_window", "max_window_layers"])

# ------------------------------------------------------------------ names of tensors

LLAMA_NAMES = Names(
    {
        "token_embedding_table": ("model.embed_tokens",),
        "blocks.{i}.ln1": ("model.layers.{i}.input_layernorm",),
        "blocks.{i}.sa.qkv": (
            "model.layers.{i}.self_attn.q_proj",
            "model.layers.{i}.self_attn.k_proj",
            "model.layers.{i}.self_attn.v_proj",
        ),
        "blocks.{i}.sa.query_norm": ("model.layers.{i}.self_attn.q_norm",),
        "blocks.{i}.sa.key_norm": ("model.layers.{i}.self_attn.k_norm",),
        "blocks.{i}.sa.proj": ("model.layers.{i}.self_attn.o_proj",),
        "blocks.{i}.ln2": ("model.layers.{i}.post_attention_layernorm",),
        "blocks.{i}.ffwd.up": (
            "model.layers.{i}.mlp.gate_proj",
            "model.layers.{i}.mlp.up_proj",
        ),
        "blocks.{i}.ffwd.down": ("model.layers.{i}.mlp.down_proj",),
        "ln_f": ("model.norm",),
        "lm_head": ("lm_head",),
    },
    prefix="model.",
    ignored=(".rotary_emb.inv_freq",),
)
GPT2_MODULES = {
    "token_embedding_table": ("transformer.wte",),
    "position_embedding_table": ("transformer.wpe",),
    "blocks.{i}.ln1": ("transformer.h.{i}.ln_1",),
    "blocks.{i}.sa.qkv": ("transformer.h.{i}.attn.c_attn",),
    "blocks.{i}.sa.proj": ("transformer.h.{i}.attn.c_proj",),
    "blocks.{i}.ln2": ("transformer.h.{i}.ln_2",),
    "blocks.{i}.ffwd.up": ("transformer.h.{i}.mlp.c_fc",),
    "blocks.{i}.ffwd.down": ("transformer.h.{i}.mlp.c_proj",),
    "ln_f": ("transformer.ln_f",),
    "lm_head": ("lm_head",),
}
CAUSAL_MASKS = (".attn.bias", ".attn.masked_bias")  # buffers in older files
GPT2_NAMES = Names(GPT2_MODULES, prefix="transformer.", transposed=True, ignored=CAUSAL_MASKS)
NANOGPT_NAMES = Names(GPT2_MODULES, ignored=CAUSAL_MASKS)

GGUF_MODULES = {
    "token_embedding_table": ("token_embd",),
    "position_embedding_table": ("position_embd",),
    "blocks.{i}.ln1": ("blk.{i}.attn_norm",),
    "blocks.{i}.sa.qkv": ("blk.{i}.attn_q", "blk.{i}.attn_k", "blk.{i}.attn_v"),
    "blocks.{i}.sa.query_norm": ("blk.{i}.attn_q_norm",),
    "blocks.{i}.sa.key_norm": ("blk.{i}.attn_k_norm",),
    "blocks.{i}.sa.proj": ("blk.{i}.attn_output",),
    "blocks.{i}.ln2": ("blk.{i}.ffn_norm",),
    "blocks.{i}.ffwd.up": ("blk.{i}.ffn_gate", "blk.{i}.ffn_up"),
    "blocks.{i}.ffwd.down": ("blk.{i}.ffn_down",),
    "ln_f": ("output_norm",),
    "lm_head": ("output",),
}
ROPE_FREQS = "rope_freqs.weight"  # divisors of the rotation frequencies
STACKED = {"blocks.{i}.sa.qkv": "blk.{i}.attn_qkv"}  # an option of llama.cpp's converter
GGUF_NAMES = Names(GGUF_MODULES, stacked=STACKED, ignored=(ROPE_FREQS,))
GGUF_LLAMA_NAMES = Names(GGUF_MODULES, permuted=True, stacked=STACKED, ignored=(ROPE_FREQS,))
GGUF_GPT2_NAMES = Names(
    {
        **GGUF_MODULES,
        "blocks.{i}.sa.qkv": ("blk.{i}.attn_qkv",),
        "blocks.{i}.ffwd.up": ("blk.{i}.ffn_up",),
    }
)

# ------------------------------------------------------------------ the families

LLAMA = Family(
    "llama",
    fixed=_MODERN,
    fields={
        **_SHAPE,
        "attention_bias": ("qkv_bias", "proj_bias"),
        "mlp_bias": ("ffn_bias",),
    },
    defaults={**SHAPE_DEFAULTS, "attention_bias": False, "mlp_bias": False},
    names=LLAMA_NAMES,
    gguf_names=GGUF_LLAMA_NAMES,
)
QWEN2 = Family(
    "qwen2",
    fixed={**_MODERN, "qkv_bias": True},
    fields=_SHAPE,
    defaults={**SHAPE_DEFAULTS, "num_key_value_heads": 32},
    names=LLAMA_NAMES,
    gguf_names=GGUF_NAMES,
    harmless=WINDOWS,
)
QWEN3 = Family(
    "qwen3",
    fixed={**_MODERN, "qk_norm": True},
    fields={**_SHAPE, "attention_bias": ("qkv_bias", "proj_bias")},
    defaults={**SHAPE_DEFAULTS, "num_key_value_heads": 32, "head_dim": 128}
    | {"attention_bias": False},
    names=LLAMA_NAMES,
    gguf_names=GGUF_NAMES,
    harmless=WINDOWS,
)
GPT2 = Family(
    "gpt2",
    fixed={"norm": Norm.LAYER, "qkv_bias": True, "head_bias": False},
    fields={
        "vocab_size": ("vocab_size",),
        "n_positions": ("block_size",),
        "n_layer": ("n_layer",),
        "n_head": ("n_head",),
        "n_embd": ("n_embd",),
        "n_inner": ("ffn_dim",),
        "activation_function": ("activation",),
        "layer_norm_epsilon": ("norm_eps",),
        "tie_word_embeddings": ("tied",),
    },
    defaults={"n_inner": None, "activation_function": "gelu_new", "layer_norm_epsilon": 1e-5}
    | {"tie_word_embeddings": True},
    names=GPT2_NAMES,
    gguf_names=GGUF_GPT2_NAMES,
    only={"scale_attn_weights": (True,), "scale_attn_by_inverse_layer_idx": (False,)},
    harmless=frozenset(
        """
        n_ctx resid_pdrop embd_pdrop attn_pdrop reorder_and_upcast_attn summary_type
        summary_use_proj summary_activation summary_proj_to_labels summary_first_dropout
        gradient_checkpointing n_special predict_special_tokens _num_labels
        """.split()
    ),
)
FAMILIES = {family.model_type: family for family in (LLAMA, QWEN2, QWEN3, GPT2)}

# ------------------------------------------------------------------ metadata of GGUF

# Keys follow the name of the architecture and a dot.
GGUF_FIELDS = {
    "context_length": "block_size",
    "block_count": "n_layer",
    "embedding_length": "n_embd",
    "feed_forward_length": "ffn_dim",
    "attention.head_count": "n_head",
    "attention.head_count_kv": "n_kv_head",
    "attention.key_length": "head_dim",
    "attention.layer_norm_rms_epsilon": "norm_eps",
    "attention.layer_norm_epsilon": "norm_eps",
    "rope.freq_base": "rope_base",
}
GGUF_NEEDED = ("context_length", "block_count", "embedding_length", "attention.head_count")
GGUF_ONLY: dict[str, tuple[Any, ...]] = {
    "attention.causal": (True,),
    "attention.sliding_window": (0,),
    "expert_count": (0,),
    "expert_used_count": (0,),
    "pooling_type": (0,),
    "rope.scaling.type": ("none",),
    "tensor_data_layout": ("Meta AI original pth",),
}
# Tensors that show whether there are biases.
GGUF_BIASES = {
    "qkv_bias": ("blk.0.attn_q.bias", "blk.0.attn_qkv.bias"),
    "proj_bias": ("blk.0.attn_output.bias",),
    "ffn_bias": ("blk.0.ffn_up.bias",),
}
GGUF_HEAD_SIZES = ("rope.dimension_count", "attention.value_length")  # must be the head size
GGUF_HARMLESS = frozenset(["vocab_size"])  # known from the embedding's rows


# ------------------------------------------------------------------ the tensors of a Decoder


class Part(NamedTuple):
    """One parameter of a Decoder, and the shapes stacked in it."""

    module: str  # its key in `Names.modules`
    layer: int  # the index of its block; 0 outside the blocks
    kind: str  # "weight" or "bias"
    shapes: tuple[tuple[int, ...], ...]
    matrix: bool = False  # of a linear layer

    @property
    def path(self) -> str:
        """Its name in the model's state_dict."""
        return f"{self.module.format(i=self.layer)}.{self.kind}"


def layout(c: DecoderConfig) -> Iterator[Part]:
    """Every parameter of a Decoder with this config; a tied head shares the embedding's."""
    C = c.n_embd
    gates = (c.hidden,) if c.gated else ()
    heads = (c.n_head * c.head_size, c.kv_heads * c.head_size, c.kv_heads * c.head_size)
    yield Part("token_embedding_table", 0, "weight", ((c.vocab_size, C),))
    if not c.rotary:
        yield Part("position_embedding_table", 0, "weight", ((c.block_size, C),))
    if c.embed_norm:
        yield from _norm("embed_norm", 0, C, c)
    for i in range(c.n_layer):
        yield from _linear("blocks.{i}.sa.qkv", i, heads, C, c.qkv_bias)
        if c.qk_norm and c.norm_weights:
            for name in ("query_norm", "key_norm"):
                yield Part(f"blocks.{{i}}.sa.{name}", i, "weight", ((c.head_size,),))
        yield from _linear("blocks.{i}.sa.proj", i, (C,), heads[0], c.proj_bias)
        yield from _linear("blocks.{i}.ffwd.up", i, (*gates, c.hidden), C, c.ffn_bias)
        yield from _linear("blocks.{i}.ffwd.down", i, (C,), c.hidden, c.ffn_bias)
        yield from _norm("blocks.{i}.ln1", i, C, c)
        yield from _norm("blocks.{i}.ln2", i, C, c)
    yield from _norm("ln_f", 0, C, c)
    if not c.tied:
        yield Part("lm_head", 0, "weight", ((c.vocab_size, C),))
    if c.head_bias:
        yield Part("lm_head", 0, "bias", ((c.vocab_size,),))


def _linear(module: str, i: int, rows: tuple[int, ...], cols: int, bias: bool) -> Iterator[Part]:
    yield Part(module, i, "weight", tuple((n, cols) for n in rows), matrix=True)
    if bias:
        yield Part(module, i, "bias", tuple((n,) for n in rows))


def _norm(module: str, i: int, n: int, c: DecoderConfig) -> Iterator[Part]:
    if c.norm_weights:
        yield Part(module, i, "weight", ((n,),))
        if c.norm is Norm.LAYER and c.norm_bias:
            yield Part(module, i, "bias", ((n,),))
