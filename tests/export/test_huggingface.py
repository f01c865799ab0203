"""What transformers computes with our exports: the same probabilities, logits, texts."""

import json

import pytest
import torch
from checkpoint_fixtures import meta_of
from conftest import seeded, tiny_model, tokens
from decoding_fixtures import build

from nanogpt import GPTConfig, SamplingParams, complete, load_checkpoint, save_checkpoint
from nanogpt.export.huggingface import ExportError, fold_head_bias, form_of, write_folder
from nanogpt.files import LECTURE_FORM
from nanogpt.sampling import draw_noise

transformers = pytest.importorskip("transformers", reason="it is in requirements-test.txt")

SPRINT = {"rms_norm": True, "rope": True, "qk_norm": True, "relu2": True, "bias": False}
GROUPED = SPRINT | {"n_kv_head": 2}


def checkpoint(tmp_path, **changes):
    grouped = "n_kv_head" in changes  # which a list of Heads has not
    model = build(torch.float32, **changes) if grouped else tiny_model(dropout=0.0, **changes)
    save_checkpoint(tmp_path / "fox", model, meta_of(model, config=vars(model.config)))
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


@pytest.mark.parametrize("shape", [{}, SPRINT, GROUPED], ids=["opt", "nanochat", "groups"])
@torch.no_grad()
def test_the_probabilities_are_ours(tmp_path, shape):
    saved = checkpoint(tmp_path, **shape)
    theirs = loaded(saved, tmp_path)
    idx = tokens(3, 24)
    ours = saved.model(idx)[0]
    logits = theirs(idx).logits
    assert float((ours.softmax(-1) - logits.softmax(-1)).abs().max()) < 5e-6
    exact = saved.model.double()(idx)[0]
    double = theirs.double()(idx).logits
    # NanoChat's own code norms and rotates in float32, whatever the weights are.
    assert apart(exact, double) < (1e-4 if shape else 1e-6 * float(exact.abs().max()))


class OurNoise(transformers.LogitsProcessor):
    """log(probs / noise): its largest entry is the token that `sample` takes."""

    def __init__(self, noise, temperature, n_prompt):
        self.noise = noise
        self.temperature = temperature
        self.n_prompt = n_prompt

    def __call__(self, input_ids, scores):
        probs = (scores / self.temperature).softmax(-1)
        return probs.log() - self.noise[input_ids.shape[1] - self.n_prompt].log()


@pytest.mark.slow
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


def test_what_has_no_counterpart_is_refused_by_name():
    for changes, named in [
        ({"window": 8, "sinks": 2}, "window=8, sinks=2"),
        ({"rope": True}, "rope=True"),
        ({"rms_norm": True, "bias": False}, "rms_norm=True, bias=False"),
    ]:
        with pytest.raises(ExportError, match=named):
            form_of(GPTConfig(per_head=False, **changes))


def test_the_card_and_the_config_say_what_it_is(tmp_path, shipped):
    write_folder(shipped, tmp_path / "x")
    card = (tmp_path / "x" / "README.md").read_text(encoding="utf-8")
    assert "license: mit" in card
    assert f"{shipped.model.n_params:,} parameters" in card
    config = json.loads((tmp_path / "x" / "config.json").read_text(encoding="utf-8"))
    assert config["eos_token_id"] is config["pad_token_id"] is None
