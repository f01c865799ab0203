"""What transformers computes with our exports: the same probabilities, logits, texts."""

import re

import pytest
import torch
from checkpoint_fixtures import meta_of
from conftest import seeded, tiny_model, tokens
from decoding_fixtures import decoder
from safetensors.torch import load_file
from shapes import DECODERS, SMALL

from nanogpt import (
    DecoderConfig,
    SamplingParams,
    complete,
    load_checkpoint,
    load_pretrained,
    save_checkpoint,
)
from nanogpt.cli import main
from nanogpt.decoder.config import beyond_lecture
from nanogpt.files import LECTURE_FORM
from nanogpt.pretrained.families import GPT2, NANOCHAT, OPT
from nanogpt.pretrained.form import ExportError, family_for, family_form, fold_head_bias
from nanogpt.pretrained.write import write_folder
from nanogpt.sampling import draw_noise
from nanogpt.training.recipes import MODERN

transformers = pytest.importorskip("transformers", reason="it is in requirements-test.txt")

SHAPES = {  # fields of a model that an export has, beside those of tiny_model
    "opt": {},
    "opt, packed": {"per_head": False},
    "nanochat": MODERN,
    "another base": MODERN | {"rope_base": 50.0},
    "groups": MODERN | {"n_head": 4, "n_kv_head": 2},
}


def checkpoint(tmp_path, **shape):
    model = tiny_model(dropout=0.0, **shape)
    save_checkpoint(tmp_path / "fox", model, meta_of(model))
    return load_checkpoint(tmp_path / "fox")


def loaded(saved, tmp_path):
    write_folder(saved, tmp_path / "out")
    return transformers.AutoModelForCausalLM.from_pretrained(tmp_path / "out").eval()


def apart(a, b):
    """The largest difference of logits, a constant for each row aside: softmax does not see it."""
    gap = a - b
    return float((gap - gap.mean(-1, keepdim=True)).abs().max())


@pytest.fixture(scope="module")
def shipped():
    return load_checkpoint(LECTURE_FORM)


@pytest.mark.parametrize("shape", SHAPES)
@torch.no_grad()
def test_the_probabilities_are_ours(tmp_path, shape):
    saved = checkpoint(tmp_path, **SHAPES[shape])
    theirs = loaded(saved, tmp_path)
    idx = tokens(3, 24)
    ours = saved.model(idx)[0]
    logits = theirs(idx).logits
    assert float((ours.softmax(-1) - logits.softmax(-1)).abs().max()) < 5e-6
    exact = saved.model.double()(idx)[0]
    double = theirs.double()(idx).logits
    # NanoChat's own code norms and rotates in float32, whatever the weights are.
    lecture = shape.startswith("opt")
    assert apart(exact, double) < (1e-6 * float(exact.abs().max()) if lecture else 1e-4)


class OurNoise(transformers.LogitsProcessor):
    """log(probs / noise): its largest entry is the token that `sample` takes."""

    def __init__(self, noise, temperature, n_prompt):
        self.noise = noise
        self.temperature = temperature
        self.n_prompt = n_prompt

    def __call__(self, input_ids, scores):
        probs = (scores / self.temperature).softmax(-1)
        return probs.log() - self.noise[input_ids.shape[1] - self.n_prompt].log()


def test_the_shipped_model_writes_our_texts_greedy_and_sampled(tmp_path, shipped):
    theirs = loaded(shipped, tmp_path)
    tokenizer = transformers.AutoTokenizer.from_pretrained(tmp_path / "out")
    for i, prompt in enumerate(["ROMEO:\nO", "\n\nFirst", "the king's"]):
        asked = tokenizer(prompt, return_tensors="pt")
        idx = shipped.tokenizer.encode(prompt)[None]
        assert torch.equal(asked.input_ids, idx)
        ours = complete(shipped.model, idx, 60, SamplingParams(greedy=True))
        found = theirs.generate(**asked, max_new_tokens=60, do_sample=False)
        assert tokenizer.decode(found[0]) == shipped.tokenizer.decode(ours[0])
        noise = draw_noise(60, 1, 65, seeded(i))
        ours = complete(shipped.model, idx, 60, SamplingParams(temperature=0.8), noise=noise)
        processor = OurNoise(noise, 0.8, idx.shape[1])
        found = theirs.generate(
            **asked, max_new_tokens=60, do_sample=False, logits_processor=[processor]
        )
        assert tokenizer.decode(found[0]) == shipped.tokenizer.decode(ours[0])


def test_the_tokenizer_gives_the_corpus_back(tmp_path, shipped, corpus):
    write_folder(shipped, tmp_path / "x")
    tokenizer = transformers.AutoTokenizer.from_pretrained(tmp_path / "x")
    text = "".join(char for char in corpus.text[:60_000] if char in shipped.tokenizer.index)
    ids = tokenizer(text)["input_ids"]
    assert ids == shipped.tokenizer.encode(text).tolist()
    assert tokenizer.decode(ids) == text
    with pytest.raises(Exception, match="UNK"):
        tokenizer("Zürich")


def test_a_head_that_no_norm_can_carry_is_refused():
    weight = torch.randn(18, 16, generator=seeded(1))
    bias = torch.randn(18, generator=seeded(2))
    with pytest.raises(ExportError, match="17 characters at most, not 18"):
        fold_head_bias(weight, bias)
    d = fold_head_bias(weight[:17], bias[:17])
    off = weight[:17].double() @ d - bias[:17]
    assert float((off - off.mean()).abs().max()) < 1e-12


@pytest.mark.parametrize("row", DECODERS)
@torch.no_grad()
def test_every_shape_is_written_with_the_same_logits_or_refused_by_name(row):
    model = decoder(torch.float32, **SMALL | DECODERS[row])
    try:
        config, tensors = family_form(model)
    except ExportError as error:
        refused = str(error)
    else:
        refused = ""
    if refused:
        fields = beyond_lecture(model.config)
        assert all(f"{name}={value}" in refused for name, value in fields.items())
        return
    theirs = transformers.AutoModelForCausalLM.from_config(
        transformers.AutoConfig.for_model(**config)
    )
    lost, spare = theirs.load_state_dict(tensors, strict=False)
    assert not spare
    assert set(lost) <= {"lm_head.weight"}  # of a tied head
    theirs.tie_weights()
    idx = tokens(2, 12)
    assert apart(model(idx)[0], theirs.eval()(idx).logits) < 1e-3


FORMS = {
    "the lecture's": ({}, OPT),
    "the keeper's": (MODERN, NANOCHAT),
    "the keeper's with a softcap": (MODERN | {"logit_softcap": 15.0}, NANOCHAT),
    "GPT-2's": ({"activation": "gelu_tanh", "head_bias": False, "tied": True}, GPT2),
}


@pytest.mark.parametrize("form", FORMS)
def test_a_shape_has_the_family_of_its_form(form):
    fields, family = FORMS[form]
    assert family_for(DecoderConfig(**fields)) is family


@pytest.mark.parametrize("fields", [MODERN | {"window": 8, "sinks": 2}, {"n_kv_head": 2}])
def test_a_shape_without_a_family_is_refused_by_its_fields(fields):
    config = DecoderConfig(**fields)
    words = ", ".join(f"{name}={value}" for name, value in beyond_lecture(config).items())
    with pytest.raises(ExportError, match=re.escape(f"has this shape ({words})")):
        family_for(config)


def test_an_export_is_loaded_again_with_the_same_logits(tmp_path, shipped):
    write_folder(shipped, tmp_path / "out")
    model, tokenizer = load_pretrained(tmp_path / "out")
    idx = shipped.tokenizer.encode("ROMEO:")[None]
    assert torch.equal(tokenizer.encode("ROMEO:"), idx[0])
    with torch.no_grad():
        assert apart(model(idx)[0], shipped.model(idx)[0]) < 1e-4
    again = family_form(model)[1]
    written = load_file(tmp_path / "out" / "model.safetensors")
    assert again.keys() == written.keys()
    assert all(torch.equal(again[name], written[name]) for name in written)


FILES = {"README.md", "config.json", "generation_config.json", "model.safetensors"}
FILES |= {"nanogpt.json", "tokenizer.json", "tokenizer_config.json"}


def test_the_command_writes_it_and_warns_of_small_heads(tmp_path, capsys):
    model = tiny_model()
    out = tmp_path / "out"
    save_checkpoint(tmp_path / "fox", model, meta_of(model))
    assert main(["export", str(tmp_path / "fox"), "--out", str(out)]) == 0
    said = capsys.readouterr().out
    assert "OPTForCausalLM" in said
    assert "needs a head size of at least 32, and this model's is 8" in said
    assert {file.name for file in out.iterdir()} == FILES
