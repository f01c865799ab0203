"""CUDA graphs: their logic without a GPU, run instead of replayed, and themselves on a GPU."""

import pytest
import torch
from engine_fixtures import (
    BATCH,
    BLOCK,
    COMPILING,
    GRAPHS,
    SAMPLING,
    FiveSteps,
    OneStep,
    assert_same_tokens,
    change_weights,
    heard,
    prompt_of,
    seeded,
    shared_model,
    uncached,
)

from nanogpt import Flat, Graph, GraphLoop, PromptLookup
from nanogpt.engines.generation import complete, generate
from nanogpt.engines.toolchain import CannotBuild
from nanogpt.sampling import PLAIN


@pytest.mark.parametrize("kind", GRAPHS)
def test_one_graph_gives_the_uncached_tokens_with_every_sampling_up_to_the_last_place(kind):
    for per_head, batch in ((True, 1), (False, BATCH)):
        model = shared_model(per_head)
        built = kind(model.config, batch=batch)
        for sampling in (PLAIN, *SAMPLING, PLAIN):
            for T in (1, 2, 15, 16):
                assert_same_tokens(model, built, prompt_of(T, batch), BLOCK + 1 - T, sampling)


@pytest.mark.parametrize(("kind", "replays"), [(OneStep, 11), (FiveSteps, 3)])
def test_a_graph_is_replayed_only_as_often_as_it_must(kind, replays):
    model = shared_model()
    calls = []
    built = kind(model.config, batch=BATCH)
    assert_same_tokens(model, built, prompt_of(5), 1)  # one more replay, to compare the logits
    replay = built.replay
    built.replay = lambda: (calls.append(1), replay())
    assert_same_tokens(model, built, prompt_of(5), 11)
    assert len(calls) == replays


def test_a_step_that_cannot_be_recorded_is_described_in_one_line(monkeypatch):
    def fail(self):
        raise RuntimeError("CUDA error: out of memory\nand more")

    monkeypatch.setattr(Graph, "_allocate", fail)
    with pytest.raises(CannotBuild) as error:
        Graph(shared_model().config, device="cuda")
    assert str(error.value) == "the step cannot be captured: CUDA error: out of memory"


# ------------------------------------------------------------------ on a GPU

needs_cuda = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA GPU")


@pytest.mark.gpu
@needs_cuda
@pytest.mark.parametrize("kind", [Flat, Graph, GraphLoop])
def test_on_a_gpu_tokens_are_the_uncached_ones(kind):
    for per_head, batch in ((True, 1), (False, 3), (False, 1)):
        model = shared_model(per_head).cuda()
        for T in (1, 5, 16):
            for sampling in (PLAIN, *SAMPLING):
                prompt = prompt_of(T, batch).cuda()
                assert_same_tokens(model, kind, prompt, BLOCK + 1 - T, sampling)
    prompt = prompt_of(5).cuda()
    draft = PromptLookup(2, 3)
    got = complete(model, prompt, 12, engine=kind, draft=draft, generator=seeded(1))
    assert torch.equal(got, uncached(model, prompt, 12))
    before = assert_same_tokens(model, kind, prompt, 12)
    change_weights(model)
    assert not torch.equal(assert_same_tokens(model, kind, prompt, 12), before)
    prompts = [prompt_of(T).cuda() for T in (3, 7)]
    alone = [uncached(model, p, 9)[:, p.shape[1] :] for p in prompts]
    running = [generate(model, p, 9, engine=kind, generator=seeded(1)) for p in prompts]
    for expected, got in zip(alone, zip(*zip(*running, strict=True), strict=True), strict=True):
        assert torch.equal(torch.cat(got, dim=1), expected)


@pytest.mark.gpu
@needs_cuda
@pytest.mark.parametrize("kind", COMPILING)
def test_on_a_gpu_the_engines_of_the_cpu_give_way(kind, forgetful):
    model = shared_model().cuda()
    prompt = prompt_of(5).cuda()
    got, messages = heard(lambda: complete(model, prompt, 9, engine=kind, generator=seeded(1)))
    assert torch.equal(got, uncached(model, prompt, 9))
    assert "computes float32 on the CPU" in messages[0][0]
