"""What runs on a GPU, run on a device that keeps CUDA's rules, and how often the host waits for it.

What such a device cannot show is listed in `pretend_cuda`. The tests that need a real GPU are
marked so, in tests/engines/test_cuda_graph.py.
"""

from copy import deepcopy
from dataclasses import replace
from functools import partial

import pytest
import torch
from conftest import seeded, tiny_model, tokens
from pretend_cuda import PretendCuda
from shapes import COMBINED
from training_fixtures import ctrl_c, fresh, stop_at, weights

from nanogpt import complete, generate
from nanogpt.bench import roofline, training
from nanogpt.bench.ladder import ladder, sharpened
from nanogpt.bench.training import train_interleaved
from nanogpt.cache import DynamicCache, StaticCache
from nanogpt.caches.int8 import Int8Cache
from nanogpt.caches.paged import PagedCache
from nanogpt.caches.rolling import RollingCache
from nanogpt.comparison import compare
from nanogpt.config import GPTConfig
from nanogpt.decoder.checkpoint import load_checkpoint
from nanogpt.decoder.config import DecoderConfig
from nanogpt.decoder.model import Decoder
from nanogpt.device import pick_device
from nanogpt.engines import base
from nanogpt.engines import exact as exact_module
from nanogpt.engines.compiled import Graph, GraphLoop
from nanogpt.engines.drafts import DraftModel, NGram, PromptLookup
from nanogpt.engines.eager import Batched, Flat, PerHead, Static, Uncached
from nanogpt.engines.exact import exact
from nanogpt.engines.native import Native
from nanogpt.model import GPT
from nanogpt.sampling import PLAIN, SamplingParams
from nanogpt.timing import summary
from nanogpt.training.loop import train
from nanogpt.training.recipes import MODERN, TrainConfig

N_NEW = 6
SAMPLING = [
    SamplingParams(greedy=True),
    SamplingParams(temperature=0.7, top_k=5),
    SamplingParams(top_p=0.8),
]
SIZES = {"vocab_size": 13, "block_size": 24, "n_layer": 2, "n_head": 2, "n_embd": 16}
BEYOND = {
    "the keeper's": {**MODERN, "n_kv_head": 1, "window": 6, "sinks": 2},
    "all at once": COMBINED["all at once"] | {"full_every": 2},
    "GPT-2's": COMBINED["GPT-2"],
    "grouped": {"n_head": 4, "n_kv_head": 2},
}
RECIPE = TrainConfig(steps=4, batch_size=4, eval_every=2, eval_batches=1, warmup=3)


@pytest.fixture
def gpu():
    with PretendCuda() as machine:
        yield machine
    base._built.clear()


# ------------------------------------------------------------------ the device itself


def test_what_cuda_refuses_is_refused(gpu):
    here = torch.ones(3)
    there = torch.ones(3, device="cuda")
    assert there.device == torch.device("cuda", 0)
    assert torch.equal((there * 2 + here[0]).cpu(), torch.full((3,), 3.0)), "a number may be there"
    with pytest.raises(RuntimeError, match="at least two devices"):
        there + here
    with pytest.raises(RuntimeError, match="at least two devices"):
        torch.nn.functional.linear(there, torch.ones(2, 3))
    with pytest.raises(RuntimeError, match="Expected a 'cuda' device type for generator"):
        there.normal_(generator=seeded())
    for look in (there.numpy, there.data_ptr):
        with pytest.raises(TypeError, match="use Tensor.cpu"):
            look()


# ------------------------------------------------------------------ decoding

CACHES = [None, DynamicCache, StaticCache, PagedCache, Int8Cache]
ENGINES = [Uncached, PerHead, Batched, Static, Flat, Graph, GraphLoop, Native]


def counted(gpu, steps) -> tuple[int, torch.Tensor]:
    """How often the host waits while a text is generated, and its new tokens, on the CPU."""
    gpu.waits.clear()
    text = torch.cat(list(steps()), dim=1)
    return gpu.waits.total(), text.cpu()


@pytest.mark.filterwarnings("ignore:(Native|Compiled) cannot be built")
def test_texts_are_those_of_the_cpu_and_the_host_waits_once_for_each(gpu):
    """For the check of the prompt; not once for a token, in any cache or engine."""
    model = tiny_model()
    prompt = tokens(2, 5)
    there = tiny_model().to("cuda"), prompt.to("cuda")
    ways = [{"cache": cache} for cache in CACHES] + [{"engine": engine} for engine in ENGINES]
    cases = [(way, PLAIN) for way in ways]
    cases += [(way, sampling) for way in ({}, {"engine": Graph}) for sampling in SAMPLING]
    for way, sampling in cases:
        cpu = way if way.get("cache") is Int8Cache else {"cache": None}
        expected = generate(model, prompt, N_NEW, sampling, generator=seeded(1), **cpu)
        if "engine" in way:
            way["engine"].ready(there[0], len(prompt))  # built once for many texts
        steps = partial(generate, *there, N_NEW, sampling, generator=seeded(1), **way)
        waits, text = counted(gpu, steps)
        assert torch.equal(text, torch.cat(list(expected), dim=1)), (way, sampling)
        assert waits == 1, (way, sampling, gpu.waits)


@pytest.mark.parametrize("fields", BEYOND.values(), ids=BEYOND)
@pytest.mark.parametrize("cache", [*CACHES, RollingCache])
def test_newer_architectures_too(gpu, cache, fields):
    model = sharpened(Decoder(DecoderConfig(**SIZES | fields))).eval()
    prompt = tokens(2, 5)
    expected = complete(model, prompt, 12, cache=cache, generator=seeded(1))
    there = deepcopy(model).to("cuda"), prompt.to("cuda")
    steps = partial(generate, *there, 12, cache=cache, generator=seeded(1))
    waits, text = counted(gpu, steps)
    assert torch.equal(text, expected[:, 5:])
    assert waits == 1, gpu.waits


DRAFTS = {
    "table": lambda model: NGram(tokens(200), 13, 2, 3),
    "look-up": lambda model: PromptLookup(2, 3),
    "model": lambda model: DraftModel(tiny_model(n_layer=1).to(model.lm_head.weight.device), 3),
}


@pytest.mark.parametrize("draft", DRAFTS)
@pytest.mark.parametrize(
    "how", [{}, {"cache": StaticCache}, {"cache": PagedCache}, {"engine": Flat}]
)
def test_speculation_gives_the_same_tokens_and_waits_once_a_pass(gpu, draft, how):
    model = tiny_model()
    prompt = tokens(2, 5)
    expected = complete(model, prompt, 15, cache=None, generator=seeded(1))
    model.to("cuda")
    proposes = DRAFTS[draft](model)
    if draft == "table":
        proposes.logits(prompt.to("cuda"))  # its tables are moved once
    steps = None

    def run():
        nonlocal steps
        steps = generate(model, prompt.to("cuda"), 15, draft=proposes, generator=seeded(1), **how)
        return steps

    waits, text = counted(gpu, run)
    assert torch.equal(text, expected[:, 5:])
    assert waits <= steps.stats.passes + 2, gpu.waits  # of the prompt: a copy and a check


def test_proposals_outside_the_vocabulary_are_refused_on_a_gpu_too(gpu):
    class Wrong(PromptLookup):
        def begin(self, prompt, sampling):
            return lambda text, noise: text[:, -1:] + 99

    model = tiny_model().to("cuda")
    prompt = tokens(1, 5).to("cuda")
    with pytest.raises(ValueError, match="the draft proposed tokens .* the vocabulary has 0 to 12"):
        complete(model, prompt, 9, draft=Wrong(2, 1))


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32])
def test_half_precision_exact_mode_and_the_comparison_run_there(gpu, dtype, monkeypatch):
    model = tiny_model(dtype=dtype, block_size=8, n_layer=1).to("cuda")

    def product_of_a_library(*_):
        raise AssertionError("a GPU's library picks the order of its sums by the shape")

    monkeypatch.setattr(exact_module, "multiplied", product_of_a_library)
    with exact(model):
        report = compare(model, tokens(1, 4).to("cuda"), 3, a=None, b=StaticCache)
    assert (report.equal, report.max_logit_diff) == (True, 0)


# ------------------------------------------------------------------ training


@pytest.mark.parametrize("bf16", [True, False])
@pytest.mark.parametrize(
    "change", [{}, {"muon_lr": None, "fused": True}, {"clip": 1.0, "accumulate": 2}], ids=str
)
def test_training_waits_twice_for_each_evaluation_and_never_for_a_step(corpus, bf16, change):
    """For the clock, then for the losses.

    In float16 PyTorch's scaler looks, once for each optimizer that is not fused.
    """
    with PretendCuda(bf16=bf16) as gpu:
        recipe = replace(RECIPE, **change)
        model = fresh(corpus)
        device = pick_device()
        assert device.dtype == (torch.bfloat16 if bf16 else torch.float16)
        at = []
        watch = lambda step, model: at.append(gpu.waits.copy())  # noqa: E731
        history = train(model, corpus, recipe, watch=watch)
        assert history["val"][-1] < history["val"][0]
        again = train(model, corpus, recipe)  # a model that is there already
        assert model.lm_head.weight.is_cuda
    scaler = 0 if bf16 else (2 if recipe.muon_lr else 1) - bool(recipe.fused)
    for before, after in zip(at, at[1:], strict=False):
        found = after - before
        whole = int(after is at[-1])  # the loss over all of the validation text, at the end
        assert found.total() == 2 + scaler * recipe.eval_every + whole, found
    assert again["val"][0] == pytest.approx(history["val"][-1], abs=1)


def test_a_float32_run_there_is_that_of_the_cpu(gpu, corpus):
    here = fresh(corpus, dropout=0.0)
    there = fresh(corpus, dropout=0.0)
    ours = train(here, corpus, RECIPE, device=pick_device("cpu"))
    device = replace(pick_device("cuda"), dtype=torch.float32)
    theirs = train(there, corpus, RECIPE, device=device)
    assert theirs["batch_loss"] == pytest.approx(ours["batch_loss"], abs=1e-5)


@pytest.mark.parametrize("bf16", [True, False])
def test_a_stopped_run_resumes_there_to_the_same_bits(corpus, tmp_path, monkeypatch, bf16):
    with PretendCuda(bf16=bf16):
        whole = fresh(corpus)
        other = fresh(corpus)
        expected = train(whole, corpus, RECIPE, out=tmp_path / "whole")
        stop_at(monkeypatch, 2, ctrl_c)
        with pytest.raises(KeyboardInterrupt, match="stopped after 3 steps"):
            train(fresh(corpus), corpus, RECIPE, out=tmp_path / "run")
        found = train(other, corpus, RECIPE, out=tmp_path / "run", resume=True)
        assert found == expected
        assert torch.equal(weights(other), weights(whole))
        saved = load_checkpoint(tmp_path / "run-last").model
        assert torch.equal(weights(saved), weights(whole.cpu()))


# ------------------------------------------------------------------ benchmarks


@pytest.mark.slow
def test_the_ladder_and_the_other_benchmarks_run_there(gpu, corpus, monkeypatch):
    peak = summary([1e9]) | {"how": "not measured"}  # a large product takes seconds
    monkeypatch.setattr(roofline, "peak_arithmetic", lambda **_: peak)
    model = tiny_model(block_size=16, n_layer=1).to("cuda")
    device = pick_device()
    result = ladder(model, n_new=5, repeats=1)
    assert [row["rung"] for row in result["rungs"]] == list("1234567")
    assert all(row["equal"] for row in result["rungs"])
    monkeypatch.setattr(training, "TURNS", 2)
    shape = {"block_size": 8, "n_layer": 1, "n_embd": 8, "n_head": 2}
    least = {"batch_size": 2}
    train = {**least, "steps": 1}
    entries = [training.Entry(name, name, None, shape, train) for name in ("lecture", "sprint")]
    runs = train_interleaved(entries, corpus, seed=1, device=device)
    assert [run["name"] for run in runs] == ["lecture", "sprint"]


@pytest.mark.parametrize("build", [GPT, Decoder])
def test_a_model_made_there_has_the_weights_of_the_cpu(gpu, build):
    """`with torch.device("cuda"):` is how many people make a model on a GPU."""
    config = (GPTConfig if build is GPT else DecoderConfig)(**SIZES)
    here = build(config, generator=seeded(3))
    with torch.device("cuda"):
        there = build(config, generator=seeded(3))
    assert there.lm_head.weight.is_cuda
    assert torch.equal(weights(there).cpu(), weights(here))
