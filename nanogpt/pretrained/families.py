"""The supported model families, one table for both directions: config fields and tensor names.

A family is one `Family` below. Reading, its rows turn a config.json and named tensors into a
`Decoder`; writing, the same rows are read from right to left. Tensor names map the modules of a
`Decoder` to those of a file; several names are stacked, in order, into one matrix.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum
from typing import Any

from ..decoder.config import Activation, Norm, Positions


class Rotation(Enum):
    """Which elements of a query or key a file's programs rotate together, and in which direction.

    A Decoder rotates elements i and i + hs / 2 of a head by +θ, as transformers' Llama does.
    """

    HALVES = "as a Decoder"
    NEIGHBOURS = "elements 2 i and 2 i + 1, as llama.cpp"
    BACKWARDS = "by -θ, as nanochat"


@dataclass(frozen=True)
class Names:
    """A file's names for the modules of a Decoder, and how it stores their matrices."""

    modules: Mapping[str, tuple[str, ...]]  # {i} is the index of a block
    prefix: str = ""  # of all names but the head's; absent if the model was saved without its head
    transposed: bool = False  # matrices of blocks are (in, out), as in GPT-2's Conv1D
    rotation: Rotation = Rotation.HALVES
    # If a file uses it, one name for the whole module.
    stacked: Mapping[str, str] = field(default_factory=dict)
    # Rows of a table before its first, which no token reads.
    unread_rows: Mapping[str, int] = field(default_factory=dict)
    ignored: tuple[str, ...] = ()  # suffixes of tensors that are not weights


@dataclass(frozen=True)
class Family:
    """One architecture: `model_type` in a config.json, `general.architecture` in GGUF."""

    model_type: str
    architecture: str  # transformers' class, `architectures` in a config.json
    fixed: dict[str, Any]  # DecoderConfig fields that all its models share
    fields: Mapping[str, tuple[str, ...]]  # config.json field: what it sets in the DecoderConfig
    defaults: dict[str, Any]  # values of fields that a config.json may omit
    names: Names
    gguf_names: Names | None = None  # None: llama.cpp does not run it
    only: dict[str, tuple[Any, ...]] = field(default_factory=dict)  # field: the supported values
    harmless: frozenset[str] = frozenset()  # fields that decoding does not read
    written: dict[str, Any] = field(default_factory=dict)  # further fields of a config.json of ours

    @property
    def rotary(self) -> bool:
        """Whether its config.json describes rotary positions."""
        return self.fixed.get("positions") is Positions.ROTARY

    @property
    def usual_activation(self) -> Activation:
        """The activation of a file that names none, as GGUF files do not."""
        for name, ours in self.fields.items():
            if "activation" in ours:
                return ACTIVATIONS[self.defaults[name]]
        usual: Activation = self.fixed["activation"]
        return usual


# ------------------------------------------------------------------ fields of config.json

ACTIVATIONS = {  # the first name of an activation is the one that we write
    "silu": Activation.SILU,
    "swish": Activation.SILU,
    "gelu": Activation.GELU,
    "gelu_new": Activation.GELU_TANH,
    "gelu_pytorch_tanh": Activation.GELU_TANH,
    "relu": Activation.RELU,
    "relu2": Activation.RELU2,
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
_SHAPE_DEFAULTS: dict[str, Any] = {
    "num_key_value_heads": None,
    "head_dim": None,
    "hidden_act": "silu",
    "rms_norm_eps": 1e-6,
    "tie_word_embeddings": False,
}
_NO_BIAS = {"proj_bias": False, "ffn_bias": False, "head_bias": False}
_MODERN: dict[str, Any] = {
    "positions": Positions.ROTARY,
    "norm": Norm.RMS,
    "gated": True,
    **_NO_BIAS,
}
# Windows are off unless use_sliding_window is true, which is refused.
_WINDOWS = frozenset(["sliding_window", "max_window_layers"])

# ------------------------------------------------------------------ names of tensors

_LLAMA_MODULES = {
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
    "blocks.{i}.ffwd.up": ("model.layers.{i}.mlp.gate_proj", "model.layers.{i}.mlp.up_proj"),
    "blocks.{i}.ffwd.down": ("model.layers.{i}.mlp.down_proj",),
    "ln_f": ("model.norm",),
    "lm_head": ("lm_head",),
}
_FREQUENCIES = (".rotary_emb.inv_freq",)  # a buffer in older files
LLAMA_NAMES = Names(_LLAMA_MODULES, prefix="model.", ignored=_FREQUENCIES)
NANOCHAT_NAMES = Names(
    {
        **_LLAMA_MODULES,
        "blocks.{i}.ffwd.up": ("model.layers.{i}.mlp.fc1",),
        "blocks.{i}.ffwd.down": ("model.layers.{i}.mlp.fc2",),
    },
    prefix="model.",
    rotation=Rotation.BACKWARDS,
)
_GPT2_MODULES = {
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
_CAUSAL_MASKS = (".attn.bias", ".attn.masked_bias")  # buffers in older files
GPT2_NAMES = Names(_GPT2_MODULES, prefix="transformer.", transposed=True, ignored=_CAUSAL_MASKS)
# Karpathy's own files: nanoGPT and build-nanogpt, and nanochat.
NANOGPT_NAMES = Names(_GPT2_MODULES, ignored=_CAUSAL_MASKS)
NANOCHAT_OWN_NAMES = Names(
    {
        **_GPT2_MODULES,
        "blocks.{i}.sa.qkv": (
            "transformer.h.{i}.attn.c_q",
            "transformer.h.{i}.attn.c_k",
            "transformer.h.{i}.attn.c_v",
        ),
    },
    rotation=Rotation.BACKWARDS,
)
OPT_NAMES = Names(
    {
        "token_embedding_table": ("model.decoder.embed_tokens",),
        "position_embedding_table": ("model.decoder.embed_positions",),
        "blocks.{i}.ln1": ("model.decoder.layers.{i}.self_attn_layer_norm",),
        "blocks.{i}.sa.qkv": (
            "model.decoder.layers.{i}.self_attn.q_proj",
            "model.decoder.layers.{i}.self_attn.k_proj",
            "model.decoder.layers.{i}.self_attn.v_proj",
        ),
        "blocks.{i}.sa.proj": ("model.decoder.layers.{i}.self_attn.out_proj",),
        "blocks.{i}.ln2": ("model.decoder.layers.{i}.final_layer_norm",),
        "blocks.{i}.ffwd.up": ("model.decoder.layers.{i}.fc1",),
        "blocks.{i}.ffwd.down": ("model.decoder.layers.{i}.fc2",),
        "ln_f": ("model.decoder.final_layer_norm",),
        "lm_head": ("lm_head",),
    },
    prefix="model.",
    unread_rows={"position_embedding_table": 2},
)

_GGUF_MODULES = {
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
_STACKED = {"blocks.{i}.sa.qkv": "blk.{i}.attn_qkv"}  # an option of llama.cpp's converter
_GGUF_NAMES = Names(_GGUF_MODULES, stacked=_STACKED, ignored=(ROPE_FREQS,))
_GGUF_LLAMA_NAMES = Names(
    _GGUF_MODULES, rotation=Rotation.NEIGHBOURS, stacked=_STACKED, ignored=(ROPE_FREQS,)
)
_GGUF_GPT2_NAMES = Names(
    {
        **_GGUF_MODULES,
        "blocks.{i}.sa.qkv": ("blk.{i}.attn_qkv",),
        "blocks.{i}.ffwd.up": ("blk.{i}.ffn_up",),
    }
)

# ------------------------------------------------------------------ the families

LLAMA = Family(
    "llama",
    "LlamaForCausalLM",
    fixed=_MODERN,
    fields={
        **_SHAPE,
        "attention_bias": ("qkv_bias", "proj_bias"),
        "mlp_bias": ("ffn_bias",),
    },
    defaults={**_SHAPE_DEFAULTS, "attention_bias": False, "mlp_bias": False},
    names=LLAMA_NAMES,
    gguf_names=_GGUF_LLAMA_NAMES,
)
QWEN2 = Family(
    "qwen2",
    "Qwen2ForCausalLM",
    fixed={**_MODERN, "qkv_bias": True},
    fields=_SHAPE,
    defaults={**_SHAPE_DEFAULTS, "num_key_value_heads": 32},
    names=LLAMA_NAMES,
    gguf_names=_GGUF_NAMES,
    harmless=_WINDOWS,
)
QWEN3 = Family(
    "qwen3",
    "Qwen3ForCausalLM",
    fixed={**_MODERN, "qk_norm": True},
    fields={**_SHAPE, "attention_bias": ("qkv_bias", "proj_bias")},
    defaults={**_SHAPE_DEFAULTS, "num_key_value_heads": 32, "head_dim": 128}
    | {"attention_bias": False},
    names=LLAMA_NAMES,
    gguf_names=_GGUF_NAMES,
    harmless=_WINDOWS,
)
# Zhang et al. 2022, arXiv 2205.01068. The lecture's model is one without biases of queries, keys
# and values. The variants that transformers also calls OPT are refused: opt-350m's norms after the
# layers and projected embeddings, Galactica's missing biases.
OPT = Family(
    "opt",
    "OPTForCausalLM",
    fixed={
        "norm": Norm.LAYER,
        "qkv_bias": True,
        "head_bias": False,
        "activation": Activation.RELU,
    },
    fields={
        "vocab_size": ("vocab_size",),
        "max_position_embeddings": ("block_size",),
        "num_hidden_layers": ("n_layer",),
        "num_attention_heads": ("n_head",),
        "hidden_size": ("n_embd",),
        "ffn_dim": ("ffn_dim",),
        "tie_word_embeddings": ("tied",),
    },
    defaults={"tie_word_embeddings": True},
    names=OPT_NAMES,
    only={
        "activation_function": ("relu",),
        "do_layer_norm_before": (True,),
        "enable_bias": (True,),
        "layer_norm_elementwise_affine": (True,),
        "_remove_final_layer_norm": (False,),
    },
    harmless=frozenset(
        # A width of embeddings other than the model's shows in the tensors.
        """
        word_embed_proj_dim dropout activation_dropout layerdrop init_std output_projection
        """.split()
    ),
    written={"dropout": 0.0},
)
GPT2 = Family(
    "gpt2",
    "GPT2LMHeadModel",
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
    gguf_names=_GGUF_GPT2_NAMES,
    # For training and for classifiers. n_special and predict_special_tokens are in gpt2-medium,
    # _num_labels and gradient_checkpointing in distilgpt2, reorder_and_upcast_attn (the dtype of
    # attention in 16 bits) in what transformers writes, all others in gpt2 itself.
    harmless=frozenset(
        """
        n_ctx resid_pdrop embd_pdrop attn_pdrop reorder_and_upcast_attn summary_type
        summary_use_proj summary_activation summary_proj_to_labels summary_first_dropout
        gradient_checkpointing n_special predict_special_tokens _num_labels
        """.split()
    ),
)
# Karpathy's nanochat as transformers has it; the recipe `sprint` and the bundled model have its
# architecture.
NANOCHAT = Family(
    "nanochat",
    "NanoChatForCausalLM",
    fixed={
        "positions": Positions.ROTARY,
        "norm": Norm.RMS,
        "norm_weights": False,
        "embed_norm": True,
        "qk_norm": True,
        **_NO_BIAS,
    },
    fields={**_SHAPE, "final_logit_softcapping": ("logit_softcap",)},
    defaults={**_SHAPE_DEFAULTS, "hidden_act": "relu2", "final_logit_softcapping": 15.0},
    names=NANOCHAT_NAMES,
    only={"attention_bias": (False,)},
)
# The first that fits a shape is the one written: of OPT and GPT-2 with ReLU it is OPT.
FAMILIES = {family.model_type: family for family in (LLAMA, QWEN2, QWEN3, OPT, GPT2, NANOCHAT)}


def embedding_names() -> list[str]:
    """The names of the embedding's tensor in files, with and without their usual prefix.

    The longest come first: one may end in another.
    """
    table = "token_embedding_table"
    names = [family.names for family in FAMILIES.values()]
    whole = [(one.modules[table][0], one.prefix) for one in names]
    found = {table, *(name for name, _ in whole)}
    found |= {name.removeprefix(prefix) for name, prefix in whole}
    return sorted((f"{name}.weight" for name in found), key=len, reverse=True)
