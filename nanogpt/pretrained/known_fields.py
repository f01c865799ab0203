"""Fields of a config.json beyond a family's own: harmless ones, and ones that change arithmetic.

A field in neither table is ignored with a warning. Each row says where it has been met: the
architectures are transformers' model types, whose configs have the field.
"""

from __future__ import annotations

from typing import Any

# What transformers 4 or 5 gives every config: fields about training, files and return values.
HARMLESS: frozenset[str] = frozenset(
    """
    _name_or_path architectures model_type transformers_version torch_dtype dtype use_cache
    initializer_range attention_dropout bos_token_id eos_token_id pad_token_id unk_token_id
    sep_token_id decoder_start_token_id id2label label2id problem_type task_specific_params
    finetuning_task return_dict output_attentions output_hidden_states chunk_size_feed_forward
    prefix tokenizer_class torchscript use_bfloat16 tf_legacy_loss is_decoder pretraining_tp
    max_length min_length do_sample early_stopping num_beams num_beam_groups diversity_penalty
    temperature top_k top_p typical_p repetition_penalty length_penalty no_repeat_ngram_size
    encoder_no_repeat_ngram_size bad_words_ids num_return_sequences output_scores
    return_dict_in_generate forced_bos_token_id forced_eos_token_id remove_invalid_values
    exponential_decay_length_penalty suppress_tokens begin_suppress_tokens
    """.split()
)
# Marks that tools leave in the config.json of a model that they have saved.
HARMLESS |= {
    "unsloth_fixed",  # Unsloth
    "unsloth_version",
    "_attn_implementation",  # transformers' choice of a kernel
    "attn_implementation",  # the same, as an argument
    "_attn_implementation_autoset",  # transformers 4.46
    "_attn_implementation_internal",  # transformers 4.50
    "_flash_attn_2_enabled",  # transformers 4.36
    "use_flash_attn",  # training scripts with FlashAttention
    "model_max_length",  # a tokenizer's field, TinyLlama's fine-tunes
    "max_sequence_length",  # conversions of Llama 1
    "tokenizer_model_max_length",  # LLaVA's training script
    "tokenizer_padding_side",
    "is_llama_config",  # SmolLM
    "transformers.js_config",  # models for transformers.js
    "max_window_layers",  # Qwen 2 saved as a Llama
}

# Each with an architecture that has the field, and the values for which it does not change the
# arithmetic. Most of these architectures are refused by their model_type already; in a file that
# calls itself a Llama, such a field is what a conversion has left of the other arithmetic.
_Neutral = tuple[str, tuple[Any, ...]]
_NONE = (None,)
_NO = (None, False)
_NO_NUMBER = (None, 0)
ARITHMETIC: dict[str, _Neutral] = {
    # Other kinds of models.
    "is_encoder_decoder": ("t5", _NO),
    "tie_encoder_decoder": ("encoder-decoder, in files of transformers 4", _NO),
    "add_cross_attention": ("gpt2", _NO),
    "vision_config": ("llama4", _NONE),
    "is_causal": ("embedding models made of Llama and Qwen 2", (None, True)),
    "use_bidirectional_attention": ("gemma", _NO),
    "pruned_heads": ("gpt2, in files of transformers 4", ({}, None)),
    # The arithmetic is in a Python file of the repository.
    "auto_map": ("any repository with code", ({}, None)),
    # Weights that are not plain numbers.
    "quantization_config": ("GPTQ, AWQ, bitsandbytes, FP8", _NONE),
    "compression_config": ("compressed-tensors", _NONE),
    "quantization": ("mlx-lm", _NONE),
    # Rotary positions.
    "rope_interleaved": ("SmolLM", _NO),
    "partial_rotary_factor": ("phi", (None, 1.0)),
    "original_max_position_embeddings": ("phi3", _NONE),
    "no_rope_layers": ("smollm3", _NONE),
    "no_rope_layer_interval": ("smollm3", _NONE),
    "use_mrope": ("Qwen 2.5", _NO),
    # Which positions a query sees.
    "sliding_window": ("mistral", _NONE),
    "use_sliding_window": ("qwen2", _NO),
    # Factors.
    "attention_multiplier": ("granite", _NONE),  # 1.0 replaces 1 / sqrt(hs)
    "embedding_multiplier": ("granite", (None, 1.0)),
    "residual_multiplier": ("granite", (None, 1.0)),
    "logits_scaling": ("granite", (None, 1.0)),
    "logit_scale": ("cohere", (None, 1.0)),
    "lm_head_multiplier": ("falcon_h1", (None, 1.0)),
    "scale_emb": ("minicpm3", (None, 1)),
    "scale_depth": ("minicpm3", _NONE),
    "dim_model_base": ("minicpm3", _NONE),
    "query_pre_attn_scalar": ("gemma2", _NONE),
    "attn_temperature_tuning": ("llama4_text", _NO),
    "scale_attn_weights": ("gpt2", (None, True)),
    "scale_attn_by_inverse_layer_idx": ("gpt2", _NO),
    # Bounds.
    "final_logit_softcapping": ("gemma2", _NONE),
    "attn_logit_softcapping": ("gemma2", _NONE),
    "clip_qkv": ("olmo", _NONE),
    # Norms.
    "use_qk_norm": ("cohere", _NO),
    "qk_layernorm": ("phi", _NO),
    "use_post_norm": ("hyperclovax", _NO),
    "hidden_activation": ("gemma2", _NONE),
    # Experts.
    "num_local_experts": ("mixtral", _NO_NUMBER),
    "num_experts": ("jamba", _NO_NUMBER),
    "num_experts_per_tok": ("mixtral", _NO_NUMBER),
    "n_routed_experts": ("deepseek_v3", _NO_NUMBER),
}

# ------------------------------------------------------------------ metadata of GGUF

# Keys follow the name of the architecture and a dot. A key that the gguf package names and that is
# in none of these tables changes the arithmetic.
GGUF_FIELDS = {
    "context_length": "block_size",
    "block_count": "n_layer",
    "embedding_length": "n_embd",
    "feed_forward_length": "ffn_dim",
    "attention.head_count": "n_head",
    "attention.head_count_kv": "n_kv_head",
    "attention.key_length": "head_dim",
    "rope.freq_base": "rope_base",
}
RMS_EPS = "attention.layer_norm_rms_epsilon"
LAYER_EPS = "attention.layer_norm_epsilon"
GGUF_NEEDED = ("context_length", "block_count", "embedding_length", "attention.head_count")
GGUF_ONLY: dict[str, tuple[Any, ...]] = {
    "attention.causal": (True,),
    "attention.sliding_window": (0,),
    "expert_count": (0,),
    "expert_used_count": (0,),
    "leading_dense_block_count": (0,),
    "pooling_type": (0,),
    "residual_scale": (1.0,),
    "rope.scaling.factor": (1.0,),
    "rope.scaling.finetuned": (False,),
    "rope.scaling.type": ("none",),
    "rope.scale_linear": (0.0, 1.0),  # a factor in files of 2023, which llama.cpp still reads
    "tensor_data_layout": ("Meta AI original pth",),
}
# Tensors that show whether there are biases.
GGUF_BIASES = {
    "qkv_bias": ("blk.0.attn_q.bias", "blk.0.attn_qkv.bias"),
    "proj_bias": ("blk.0.attn_output.bias",),
    "ffn_bias": ("blk.0.ffn_up.bias",),
}
GGUF_HEAD_SIZES = ("rope.dimension_count", "attention.value_length")  # must be the head size
GGUF_HARMLESS: frozenset[str] = frozenset(["vocab_size"])  # known from the embedding's rows
