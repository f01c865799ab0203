"""What runs on a GPU, run on a device that keeps CUDA's rules, and how often the host waits for it.

What such a device cannot show is listed in `pretend_cuda`. The tests that need a real GPU are
marked so, in tests/engines/test_cuda_graph.py.
"""

from copy import deepcopy
from functools import partial

import pytest
import torch
from conftest import seeded, tiny_model, tokens
from pretend_cuda import PretendCuda
from training_fixtures import fresh, weights

from nanogpt import complete, generate
from nanogpt.bench.ladder import sharpened
from nanogpt.cache import DynamicCache, StaticCache
from nanogpt.caches.paged import PagedCache
from nanogpt.comparison import compare
from nanogpt.config import GPTConfig
from nanogpt.decoder.config import DecoderConfig
from nanogpt.decoder.model import Decoder
from nanogpt.engines import base, compiled
from nanogpt.engines.compiled import Graph, GraphLoop
from nanogpt.engines.drafts import PromptLookup
from nanogpt.engines.eager import Flat, PerHead
from nanogpt.engines.exact import exact, sums
from nanogpt.model import GPT
from nanogpt.sampling import PLAIN, SamplingParams
from nanogpt.training.loop import train
from nanogpt.training.recipes import MODERN, TrainConfig

N_NEW = 6
SIZES = {"vocab_size": 13, "block_size": 24, "n_layer": 2, "n_head": 2, "n_embd": 16}
# Both failed in the first run on a real GPU, whose attention returns another memory layout.
GROUPED = {
    "grouped": {"n_head": 4, "n_kv_head": 2},
    "the keeper's": {**MODERN, "n_kv_head": 1, "window": 6, "sinks": 2},
}
RECIPE = TrainConfig(steps=4, batch_size=4, eval_every=2, eval_batches=1, warmup=3)


@pytest.fixture
def gpu():
    with PretendCuda() as machine:
        yield machine
    base._built.clear()


# ------------------------------------------------------------------ the device itself


def test_the_pretended_device_refuses_what_cuda_refuses(gpu):
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

# How to decode. Each once waited for the device at every token, or was refused by it.
WAYS = [
    *({"cache": cache} for cache in (None, DynamicCache, StaticCache, PagedCache)),
    *({"engine": engine} for engine in (PerHead, Flat, Graph, GraphLoop)),
    {"sampling": SamplingParams(temperature=0.7, top_k=5)},
    {"sampling": SamplingParams(top_p=0.8)},
]


def counted(gpu, steps) -> tuple[int, torch.Tensor]:
    """How often the host waits while a text is generated, and its new tokens, on the CPU."""
    gpu.waits.clear()
    text = torch.cat(list(steps()), dim=1)
    return gpu.waits.total(), text.cpu()


@pytest.mark.parametrize("way", WAYS, ids=lambda way: str(*way.values()))
def test_texts_are_those_of_the_cpu_and_the_host_waits_once(gpu, way):
    """For the check of the prompt, and not once more for each token."""
    model = tiny_model()
    prompt = tokens(2, 5)
    there = tiny_model().to("cuda"), prompt.to("cuda")
    sampling = way.get("sampling", PLAIN)
    expected = generate(model, prompt, N_NEW, sampling, generator=seeded(1), cache=None)

    def steps():
        return generate(*there, N_NEW, generator=seeded(1), **way)

    if "engine" in way:
        list(steps())  # built, and compared with the model, once for many texts
    waits, text = counted(gpu, steps)
    assert torch.equal(text, torch.cat(list(expected), dim=1))
    assert waits == 1, gpu.waits


def compiled_to(logits_of):
    """What stands in for torch.compile: its function gives these logits in place of its own."""

    def compile(function, **_):
        def changed(*inputs):
            token, logits = function(*inputs)
            return token, logits_of(logits)

        return changed

    return compile


def no_compiler(logits):
    raise RuntimeError("Cannot find a working triton installation\nand more")


@pytest.mark.parametrize(
    ("logits_of", "reason"),
    [
        (no_compiler, r"torch.compile fails here \(Cannot find a working triton installation\)"),
        (lambda logits: logits.roll(1, -1), "its logits differ from the model's by .* of their "),
        (lambda logits: logits * 1.001, "its .* 1.0e-03 of .* in torch.float32 allows 3.5e-04"),
    ],
    ids=["fails", "wrong", "inexact"],
)
@pytest.mark.parametrize("kind", [Graph, GraphLoop])
def test_a_step_that_is_compiled_wrong_runs_uncompiled(gpu, kind, logits_of, reason, monkeypatch):
    monkeypatch.setattr(torch, "compile", compiled_to(logits_of))
    model = tiny_model()
    expected = complete(model, tokens(2, 5), N_NEW, generator=seeded(1), cache=None)
    there = model.to("cuda"), tokens(2, 5).to("cuda")
    with pytest.warns(match=f"^{kind.__name__} runs the step uncompiled: {reason}") as warned:
        text = complete(*there, N_NEW, engine=kind, generator=seeded(1))
    assert [warning.filename for warning in warned] == [__file__]
    assert torch.equal(text.cpu(), expected)
    assert torch.equal(complete(*there, N_NEW, engine=kind, generator=seeded(1)).cpu(), expected)


def test_a_graph_whose_logits_are_not_the_models_refuses_in_one_line(gpu, monkeypatch):
    monkeypatch.setattr(compiled, "seen_slots", lambda slots, *_: (slots == 0)[None, None, None])
    model = tiny_model().to("cuda")
    steps = generate(model, tokens(2, 5).to("cuda"), N_NEW, engine=Graph, generator=seeded(1))
    words = "^Graph: its logits differ from the model's by .*: use Flat, or leave engine out$"
    with pytest.warns(match="uncompiled"), pytest.raises(ValueError, match=words) as error:
        next(steps)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_rounding_passes_for_rounding(gpu, dtype):
    model = sharpened(tiny_model(dtype=dtype, n_layer=6)).to("cuda")
    graph = GraphLoop(model.config, batch=2, dtype=dtype, device="cuda")
    complete(model, tokens(2, 5).to("cuda"), N_NEW, engine=graph, generator=seeded(1))
    assert graph.proven
    assert graph.is_compiled


def test_a_graph_of_little_room_is_captured(gpu):
    """Witness: the command `generate` builds one for its text, shorter than two replays."""
    model = tiny_model().to("cuda")
    graph = GraphLoop(model.config, capacity=7, device="cuda")
    text = complete(model, tokens(1, 4).to("cuda"), 4, engine=graph, generator=seeded(1))
    assert graph.is_compiled
    expected = complete(tiny_model(), tokens(1, 4), 4, cache=None, generator=seeded(1))
    assert torch.equal(text.cpu(), expected)


def test_tf32_may_round_more(gpu, monkeypatch):
    monkeypatch.setattr(torch, "compile", compiled_to(lambda logits: logits * 1.001))
    monkeypatch.setattr(torch, "get_float32_matmul_precision", lambda: "high")
    model = tiny_model().to("cuda")
    graph = Graph(model.config, batch=2, device="cuda")
    complete(model, tokens(2, 5).to("cuda"), N_NEW, engine=graph, generator=seeded(1))
    assert graph.is_compiled


@pytest.mark.parametrize("fields", GROUPED.values(), ids=GROUPED)
@pytest.mark.parametrize("cache", [None, DynamicCache, PagedCache])
def test_grouped_attention_gives_the_texts_of_the_cpu(gpu, cache, fields):
    model = sharpened(Decoder(DecoderConfig(**SIZES | fields))).eval()
    prompt = tokens(2, 5)
    expected = complete(model, prompt, 12, cache=cache, generator=seeded(1))
    there = deepcopy(model).to("cuda"), prompt.to("cuda")
    steps = partial(generate, *there, 12, cache=cache, generator=seeded(1))
    waits, text = counted(gpu, steps)
    assert torch.equal(text, expected[:, 5:])
    assert waits == 1, gpu.waits


def test_speculation_gives_the_same_tokens_and_waits_once_a_pass(gpu):
    model = tiny_model()
    prompt = tokens(2, 5)
    expected = complete(model, prompt, 15, cache=None, generator=seeded(1))
    model.to("cuda")
    steps = None

    def run():
        nonlocal steps
        draft = PromptLookup(2, 3)
        steps = generate(model, prompt.to("cuda"), 15, draft=draft, generator=seeded(1))
        return steps

    waits, text = counted(gpu, run)
    assert torch.equal(text, expected[:, 5:])
    assert waits <= steps.stats.passes + 2, gpu.waits  # of the prompt: a copy and a check


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
def test_exact_mode_and_the_comparison_run_there(gpu, dtype, monkeypatch):
    model = tiny_model(dtype=dtype, block_size=8, n_layer=1).to("cuda")

    def product_of_a_library(*_):
        raise AssertionError("a GPU's library picks the order of its sums by the shape")

    monkeypatch.setattr(sums, "multiplied", product_of_a_library)
    with exact(model):
        report = compare(model, tokens(1, 4).to("cuda"), 3, a=None, b=StaticCache)
    assert (report.equal, report.max_logit_diff) == (True, 0)


# ------------------------------------------------------------------ training


def test_training_waits_for_its_evaluations_and_never_for_a_step(gpu, corpus):
    """For the clock, then for the losses; at the end also for the loss over the whole text."""
    at = []
    watch = lambda step, model: at.append(gpu.waits.copy())  # noqa: E731
    history = train(fresh(corpus), corpus, RECIPE, watch=watch)
    assert history["val"][-1] < history["val"][0]
    for before, after in zip(at, at[1:], strict=False):
        found = after - before
        assert found.total() == 2 + (after is at[-1]), found


@pytest.mark.parametrize("build", [GPT, Decoder])
def test_a_model_made_there_has_the_weights_of_the_cpu(gpu, build):
    """`with torch.device("cuda"):` is how many people make a model on a GPU."""
    config = (GPTConfig if build is GPT else DecoderConfig)(**SIZES)
    here = build(config, generator=seeded(3))
    with torch.device("cuda"):
        there = build(config, generator=seeded(3))
    assert there.lm_head.weight.is_cuda
    assert torch.equal(weights(there).cpu(), weights(here))
