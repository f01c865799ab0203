"""Small random models of other people's families, as transformers and gguf write them."""

from __future__ import annotations

import functools
import json
import shutil
from pathlib import Path

import gguf
import numpy as np
import pytest
import tokenizers
import torch
import transformers
from conftest import seeded

# Older versions read some folders and chats in another way: Llama 3's under the name of Llama 2's
# class, fields of messages that are null.
as_5_24 = pytest.mark.skipif(
    tuple(map(int, transformers.__version__.split(".")[:2])) < (5, 24),
    reason="the rules are those of transformers 5.24",
)
V = 320
V_TOKENIZER = 304  # tokens; the last rows of the embedding are spare, as in Qwen 2
LLAMA3 = {"rope_type": "llama3", "factor": 32.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0}
LLAMA3 |= {"original_max_position_embeddings": 8192, "rope_theta": 5e5}
SHAPE = {"vocab_size": V, "hidden_size": 32, "intermediate_size": 96, "num_hidden_layers": 2}
SHAPE |= {"num_attention_heads": 4, "num_key_value_heads": 2, "max_position_embeddings": 64}
SHAPE |= {"bos_token_id": 0, "eos_token_id": 1, "pad_token_id": None}
GPT2 = {"vocab_size": V, "n_embd": 32, "n_layer": 2, "n_head": 4, "n_positions": 64}
GPT2 |= {"bos_token_id": 0, "eos_token_id": 1}
OPT = {"vocab_size": V, "hidden_size": 32, "ffn_dim": 128, "num_hidden_layers": 2}
OPT |= {"num_attention_heads": 4, "max_position_embeddings": 64, "word_embed_proj_dim": 32}
OPT |= {"bos_token_id": 0, "eos_token_id": 1, "pad_token_id": 1}
# The name of a case: its config's class and fields.
MODELS = {
    "llama": ("LlamaConfig", {**SHAPE, "rms_norm_eps": 1e-5}),
    "llama, tied, biases, wide heads": (
        "LlamaConfig",
        SHAPE
        | {"tie_word_embeddings": True, "attention_bias": True, "mlp_bias": True, "head_dim": 16},
    ),
    "llama, scaled early": (
        "LlamaConfig",
        SHAPE | {"rope_parameters": LLAMA3 | {"original_max_position_embeddings": 32}},
    ),
    "llama 3.2": ("LlamaConfig", SHAPE | {"rope_parameters": LLAMA3, "tie_word_embeddings": True}),
    "llama, all heads, gelu": (
        "LlamaConfig",
        SHAPE | {"num_key_value_heads": 4, "hidden_act": "gelu_pytorch_tanh"},
    ),
    "gpt2": ("GPT2Config", GPT2),
    "gpt2, relu, narrow, untied": (
        "GPT2Config",
        GPT2 | {"activation_function": "relu", "n_inner": 64, "tie_word_embeddings": False},
    ),
    "qwen2": ("Qwen2Config", SHAPE | {"rope_parameters": {"rope_theta": 1e6}}),
    "qwen3": ("Qwen3Config", SHAPE | {"head_dim": 16, "tie_word_embeddings": True}),
    "qwen3, biases": ("Qwen3Config", SHAPE | {"head_dim": 8, "attention_bias": True}),
    "opt": ("OPTConfig", OPT),
    "opt, untied": ("OPTConfig", OPT | {"tie_word_embeddings": False, "ffn_dim": 64}),
    "nanochat": ("NanoChatConfig", SHAPE | {"rope_parameters": {"rope_theta": 1e4}}),
    "nanochat, no softcap": (
        "NanoChatConfig",
        SHAPE | {"num_key_value_heads": 4, "final_logit_softcapping": None, "rms_norm_eps": 1e-5},
    ),
}
OLD_LLAMA3 = {"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0}
OLD_LLAMA3 |= {"high_freq_factor": 4.0, "original_max_position_embeddings": 8192}
# A model whose rows are long enough for every quantization of GGUF.
WIDE = "llama, wide"
WIDE_SHAPE = SHAPE | {"hidden_size": 256, "intermediate_size": 256, "num_hidden_layers": 1}
# What the config.json of a model on the hub says, and the number of its parameters.
COMMON = {"hidden_act": "silu", "rms_norm_eps": 1e-5, "use_cache": True, "torch_dtype": "bfloat16"}
COMMON |= {"attention_dropout": 0.0, "initializer_range": 0.02, "transformers_version": "4.45.0"}
QWEN = {
    **COMMON,
    "rms_norm_eps": 1e-6,
    "vocab_size": 151936,
    "tie_word_embeddings": True,
    "rope_theta": 1e6,
}
QWEN |= {"use_sliding_window": False}
ON_THE_HUB = {
    "SmolLM2-135M": (
        {"model_type": "llama", "vocab_size": 49152, "hidden_size": 576, "intermediate_size": 1536}
        | {"num_hidden_layers": 30, "num_attention_heads": 9, "num_key_value_heads": 3}
        | {"max_position_embeddings": 8192, "tie_word_embeddings": True, "rope_theta": 100000}
        | {"is_llama_config": True, "rope_interleaved": False, "rope_scaling": None, **COMMON},
        134_515_008,
    ),
    "TinyLlama-1.1B": (
        {"model_type": "llama", "vocab_size": 32000, "hidden_size": 2048, **COMMON}
        | {"intermediate_size": 5632, "num_hidden_layers": 22, "num_attention_heads": 32}
        | {"num_key_value_heads": 4, "max_position_embeddings": 2048, "pretraining_tp": 1}
        | {"rope_scaling": None, "tie_word_embeddings": False},
        1_100_048_384,
    ),
    "Llama-3.2-1B": (
        {"model_type": "llama", "vocab_size": 128256, "hidden_size": 2048, **COMMON}
        | {"intermediate_size": 8192, "num_hidden_layers": 16, "num_attention_heads": 32}
        | {"num_key_value_heads": 8, "head_dim": 64, "max_position_embeddings": 131072}
        | {"rope_theta": 500000.0, "rope_scaling": OLD_LLAMA3 | {"factor": 32.0}}
        | {"tie_word_embeddings": True, "attention_bias": False, "mlp_bias": False}
        | {"eos_token_id": [128001, 128008, 128009]},
        1_235_814_400,
    ),
    "Qwen2.5-0.5B": (
        {"model_type": "qwen2", "hidden_size": 896, "intermediate_size": 4864, **QWEN}
        | {"num_hidden_layers": 24, "num_attention_heads": 14, "num_key_value_heads": 2}
        | {"max_position_embeddings": 32768, "sliding_window": 32768, "max_window_layers": 24}
        | {"use_mrope": False},
        494_032_768,
    ),
    "Qwen3-0.6B": (
        {"model_type": "qwen3", "hidden_size": 1024, "intermediate_size": 3072, **QWEN}
        | {"num_hidden_layers": 28, "num_attention_heads": 16, "num_key_value_heads": 8}
        | {"head_dim": 128, "max_position_embeddings": 40960, "sliding_window": None}
        | {"max_window_layers": 28, "rope_scaling": None, "attention_bias": False},
        596_049_920,
    ),
    "GPT-2": (
        {"model_type": "gpt2", "vocab_size": 50257, "n_positions": 1024, "n_ctx": 1024}
        | {"n_embd": 768, "n_layer": 12, "n_head": 12, "activation_function": "gelu_new"}
        | {"layer_norm_epsilon": 1e-5, "resid_pdrop": 0.1, "summary_type": "cls_index"}
        | {"attn_pdrop": 0.1, "embd_pdrop": 0.1, "summary_activation": None}
        | {"summary_first_dropout": 0.1, "summary_proj_to_labels": True, "summary_use_proj": True}
        | {"task_specific_params": {"text-generation": {"do_sample": True, "max_length": 50}}},
        124_439_808,
    ),
    "OPT-125M": (
        {"model_type": "opt", "vocab_size": 50272, "hidden_size": 768, "word_embed_proj_dim": 768}
        | {"ffn_dim": 3072, "num_hidden_layers": 12, "num_attention_heads": 12}
        | {"max_position_embeddings": 2048, "activation_function": "relu", "init_std": 0.02}
        | {"do_layer_norm_before": True, "_remove_final_layer_norm": False, "layerdrop": 0.0}
        | {"dropout": 0.1, "attention_dropout": 0.0, "activation_dropout": 0.0, "use_cache": True}
        | {"bos_token_id": 2, "eos_token_id": 2, "pad_token_id": 1, "prefix": "</s>"}
        | {"torch_dtype": "float16", "transformers_version": "4.21.0.dev0"},
        125_237_760,  # and two rows of positions that no token reads
    ),
    "nanochat-d32": (
        {"model_type": "nanochat", "vocab_size": 65536, "hidden_size": 2048, "hidden_act": "relu2"}
        | {"intermediate_size": 8192, "num_hidden_layers": 32, "num_attention_heads": 16}
        | {"num_key_value_heads": 16, "max_position_embeddings": 2048, "rms_norm_eps": 1e-6}
        | {"final_logit_softcapping": 15.0, "attention_bias": False, "tie_word_embeddings": False}
        | {"rope_parameters": {"rope_theta": 10000.0, "rope_type": "default"}, "dtype": "bfloat16"}
        | {"attention_dropout": 0.0, "initializer_range": 0.02, "use_cache": True},
        1_879_048_192,
    ),
}
TEXT = "the quick brown fox jumps over the lazy dog, and it's 1234 o'clock\n" * 3
SPECIALS = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]
CHAT = (
    "{% for message in messages %}{{ '<|im_start|>' + message['role'] + '\\n' + "
    "message['content'] | trim + '<|im_end|>' + '\\n' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}"
)

# Texts that tokenizers must cut alike.
TEXTS = {
    "words": "The quick brown fox, isn't it? It'S 'Ll THEY'RE",
    "emoji": "🙂 👩🏽‍🚀👨‍👩‍👧 🇫🇷 ❤️",
    "code": "def f(x):\n    return {'a': [x**2 for _ in range(10)]}\n\n\t# done\r\n",
    "Chinese": "我喜欢机器学习。東京は大きい。한국어",
    "whitespace": " \n\n\n  a   b\t\tc \r\n \u00a0\u3000x   ",
    "digits": "3.14159 1234567 ½ ² ٣٤٥ 1a2b",
    "accents": "e\u0301 \u00e9 naïve Å \u212b ﬁ",
    "right to left": "שלום עולם مرحبا",
    "control tokens": "<|im_start|>user\nhi<|im_end|>\n<|im_end",
    "odd": "\x00\x01\u200b\ufeff\U0010ffff",
}


@functools.cache
def their_model(name: str):
    """A model of transformers whose tokens depend on every one of its weights."""
    kind, fields = ("LlamaConfig", WIDE_SHAPE) if name == WIDE else MODELS[name]
    config = getattr(transformers, kind)(**fields)
    model = transformers.AutoModelForCausalLM.from_config(config).float().eval()
    draw_weights(model, 0.3)
    return model


@torch.no_grad()
def draw_weights(model, std: float) -> None:
    """Random weights, large enough that every one of them decides on tokens."""
    generator = seeded(7)
    for parameter in model.parameters():
        noise = torch.randn(parameter.shape, generator=generator)
        if parameter.ndim > 1:
            parameter.copy_(noise * std)
        else:  # a bias, or the weight of a norm
            parameter.add_(noise * 0.2)


@functools.cache
def their_tokenizer_json(digits: bool = False) -> str:
    """A byte-level tokenizer of V_TOKENIZER tokens, as JSON."""
    made = tokenizers.Tokenizer(tokenizers.models.BPE())
    bytes_ = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False)
    steps = [tokenizers.pre_tokenizers.Digits(individual_digits=True)] if digits else []
    made.pre_tokenizer = tokenizers.pre_tokenizers.Sequence([*steps, bytes_])
    made.decoder = tokenizers.decoders.ByteLevel()
    alphabet = tokenizers.pre_tokenizers.ByteLevel.alphabet()
    trainer = tokenizers.trainers.BpeTrainer(
        vocab_size=V_TOKENIZER,
        special_tokens=SPECIALS,
        initial_alphabet=alphabet,
        show_progress=False,
    )
    made.train_from_iterator([TEXT], trainer)
    return made.to_str()


def write_tokenizer(folder: Path) -> None:
    (folder / "tokenizer.json").write_text(their_tokenizer_json(), encoding="utf-8")
    about = {"bos_token": SPECIALS[0], "eos_token": {"content": SPECIALS[2]}, "chat_template": CHAT}
    (folder / "tokenizer_config.json").write_text(json.dumps(about), encoding="utf-8")


def write_folder(folder: Path, name: str, **options) -> Path:
    """The model as save_pretrained writes it, with a tokenizer."""
    their_model(name).save_pretrained(folder, **options)
    write_tokenizer(folder)
    return folder


@pytest.fixture(scope="session")
def kept_folders(tmp_path_factory):
    """The folder of a model, written once; nobody writes into it."""

    @functools.cache
    def folder(name: str) -> Path:
        return write_folder(tmp_path_factory.mktemp("model"), name)

    return folder


@pytest.fixture
def own_folder(kept_folders, tmp_path):
    """A copy of a model's folder, for a test that damages it."""

    def folder(name: str = "llama") -> Path:
        return Path(shutil.copytree(kept_folders(name), tmp_path / "model"))

    return folder


def change_json(path: Path, **changes) -> None:
    """Change fields of a JSON file; ... removes one."""
    data = json.loads(path.read_text(encoding="utf-8")) | changes
    kept = {key: value for key, value in data.items() if value is not ...}
    path.write_text(json.dumps(kept), encoding="utf-8")


# ------------------------------------------------------------------ GGUF

GGUF_NAMES = {  # of transformers' names, in the order in which they are replaced
    "model.embed_tokens.": "token_embd.",
    "model.norm.": "output_norm.",
    "lm_head.": "output.",
    "model.layers.": "blk.",
    "input_layernorm": "attn_norm",
    "post_attention_layernorm": "ffn_norm",
    "self_attn.q_norm": "attn_q_norm",
    "self_attn.k_norm": "attn_k_norm",
    "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output",
    "mlp.gate_proj": "ffn_gate",
    "mlp.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down",
    "transformer.wte.": "token_embd.",
    "transformer.wpe.": "position_embd.",
    "transformer.ln_f.": "output_norm.",
    "transformer.h.": "blk.",
    "attn.c_attn": "attn_qkv",
    "attn.c_proj": "attn_output",
    "mlp.c_fc": "ffn_up",
    "mlp.c_proj": "ffn_down",
    "ln_1": "attn_norm",
    "ln_2": "ffn_norm",
}


def permuted(rows: np.ndarray, n_head: int) -> np.ndarray:
    """Rows of queries or keys in the order in which llama.cpp's converter writes them."""
    halves = rows.reshape(n_head, 2, rows.shape[0] // n_head // 2, *rows.shape[1:])
    return halves.swapaxes(1, 2).reshape(rows.shape)


def gguf_tensors(name: str) -> dict[str, np.ndarray]:
    """The tensors of a model under llama.cpp's names and in its order."""
    model = their_model(name)
    config = model.config
    found = {}
    for key, tensor in model.state_dict().items():
        if key == "lm_head.weight" and config.tie_word_embeddings:
            continue
        array = tensor.numpy()
        if config.model_type == "gpt2" and ".c_" in key and key.endswith("weight"):
            array = np.ascontiguousarray(array.T)
        if config.model_type == "llama" and ".q_proj" in key:
            array = permuted(array, config.num_attention_heads)
        if config.model_type == "llama" and ".k_proj" in key:
            array = permuted(array, config.num_key_value_heads)
        for theirs, short in GGUF_NAMES.items():
            key = key.replace(theirs, short)
        found[key] = array
    if config.model_type != "gpt2" and config.rope_parameters["rope_type"] == "llama3":
        found["rope_freqs.weight"] = llama3_divisors(config)
    return found


def llama3_divisors(config) -> np.ndarray:
    """What llama.cpp divides the speeds by: wavelengths against the original context."""
    rope = config.rope_parameters
    half = np.arange(0, config.head_dim, 2) / config.head_dim
    waves = 2 * np.pi * rope["rope_theta"] ** half
    turns = rope["original_max_position_embeddings"] / waves
    low, high = rope["low_freq_factor"], rope["high_freq_factor"]
    share = np.clip((turns - low) / (high - low), 0, 1)
    return (1 / ((1 - share) / rope["factor"] + share)).astype(np.float32)


def write_gguf(
    path: Path,
    name: str,
    kind: str = "F32",
    pre: str = "gpt-2",
    metadata: dict | None = None,
    tensors: dict[str, np.ndarray] | None = None,
) -> Path:
    """A model as llama.cpp's converter writes it, its matrices in that type."""
    config = their_model(name).config
    arch = config.model_type
    writer = gguf.GGUFWriter(path, arch)
    writer.add_type("model")
    writer.add_context_length(config.max_position_embeddings)
    writer.add_block_count(config.num_hidden_layers)
    writer.add_embedding_length(config.hidden_size)
    writer.add_head_count(config.num_attention_heads)
    if arch == "gpt2":
        writer.add_feed_forward_length(config.n_inner or 4 * config.n_embd)
        writer.add_layer_norm_eps(config.layer_norm_epsilon)
    else:
        writer.add_feed_forward_length(config.intermediate_size)
        writer.add_layer_norm_rms_eps(config.rms_norm_eps)
        writer.add_head_count_kv(config.num_key_value_heads)
        writer.add_rope_freq_base(config.rope_parameters["rope_theta"])
        head_size = getattr(config, "head_dim", None) or config.hidden_size // 4
        writer.add_key_length(head_size)
        writer.add_value_length(head_size)
        writer.add_rope_dimension_count(head_size)
    write_gguf_tokenizer(writer, pre)
    for key, value in (metadata or {}).items():
        add_value(writer, key, value)
    quantized = gguf.GGMLQuantizationType[kind]
    for key, array in (gguf_tensors(name) if tensors is None else tensors).items():
        if array.ndim == 1 or kind == "F32":
            writer.add_tensor(key, array)
        else:
            writer.add_tensor(key, quantized_rows(array, quantized), raw_dtype=quantized)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


# Where the scales of a block are, in bytes: floats of 16 bits. All else of a block may be any bits.
# The gguf package expands these kinds and does not make them.
SCALES = {"Q2_K": (80, 82), "Q3_K": (108,), "Q4_K": (0, 2), "Q5_K": (0, 2), "Q6_K": (208,)}
SCALES |= {"IQ4_NL": (0,), "IQ4_XS": (0,), "IQ2_XXS": (0,), "IQ3_S": (0,)}


def quantized_rows(array: np.ndarray, kind: gguf.GGMLQuantizationType) -> np.ndarray:
    """The rows in that type; blocks of random bits where the gguf package cannot quantize."""
    if kind.name not in SCALES:
        return gguf.quantize(array, kind)
    per_block, n_bytes = gguf.GGML_QUANT_SIZES[kind]
    dice = np.random.default_rng(array.size)
    blocks = dice.integers(0, 256, (len(array), array.shape[1] // per_block, n_bytes), np.uint8)
    size = 1.0
    for _ in range(2):  # once to see how large the numbers are, once to make them small
        for place in SCALES[kind.name]:
            blocks[..., place : place + 2] = np.array([size], "<f2").view(np.uint8)
        rows = blocks.reshape(len(array), -1)
        size = 0.1 / gguf.dequantize(rows, kind).std()
    return rows


def add_value(writer, key: str, value) -> None:
    """Add a value to the metadata, or replace it; ... removes it."""
    for part in writer.kv_data:
        part.pop(key, None)
    if value is ...:
        return
    kinds = {bool: writer.add_bool, int: writer.add_uint32, float: writer.add_float32}
    kinds |= {str: writer.add_string, list: writer.add_array}
    kinds[type(value)](key, value)


def write_gguf_tokenizer(writer, pre: str) -> None:
    """The vocabulary and merges of `their_tokenizer_json`."""
    model = json.loads(their_tokenizer_json())["model"]
    tokens = sorted(model["vocab"], key=model["vocab"].get)
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre(pre)
    writer.add_token_list(tokens)
    writer.add_token_types([3 if token in SPECIALS else 1 for token in tokens])
    writer.add_token_merges([" ".join(pair) for pair in model["merges"]])
    writer.add_bos_token_id(0)
    writer.add_eos_token_id(2)
    writer.add_add_bos_token(False)
    writer.add_chat_template(CHAT)


# ------------------------------------------------------------------ SentencePiece

N_BYTES = 256


@functools.cache
def their_pieces() -> tuple[tuple[str, float, int], ...]:
    """A vocabulary as Llama 2 has it: text, score and kind of V tokens.

    The first are <unk>, <s> and </s>, then one for each byte, the merged pieces and the letters.
    """
    made = tokenizers.Tokenizer(tokenizers.models.BPE())
    trainer = tokenizers.trainers.BpeTrainer(vocab_size=V - 3 - N_BYTES, show_progress=False)
    made.train_from_iterator([f" {TEXT}".replace(" ", "▁").replace("\n", "")], trainer)
    vocabulary = sorted(made.get_vocab(), key=made.get_vocab().get)
    merged = [text for text in vocabulary if len(text) > 1]
    letters = [text for text in vocabulary if len(text) == 1]
    rows = [("<unk>", 0.0, 2), ("<s>", 0.0, 3), ("</s>", 0.0, 3)]
    rows += [(f"<0x{i:02X}>", 0.0, 6) for i in range(N_BYTES)]
    rows += [(text, float(-i), 1) for i, text in enumerate(merged + letters)]
    return tuple(rows)


def spm_metadata(rows=None, **changes) -> dict:
    """The metadata of a GGUF file with these tokens; a change to ... removes a field."""
    texts, scores, kinds = (list(column) for column in zip(*(rows or their_pieces()), strict=True))
    fields = {"model": "llama", "pre": "default", "tokens": texts, "scores": scores}
    fields |= {"token_type": kinds, "bos_token_id": 1, "eos_token_id": 2, "unknown_token_id": 0}
    fields |= {"merges": ..., "add_bos_token": ..., **changes}
    return {f"tokenizer.ggml.{name}": value for name, value in fields.items()}
