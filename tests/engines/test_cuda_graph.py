"""CUDA graphs: their logic without a GPU, run instead of replayed.

Themselves, on a GPU: tests/test_real_cuda.py.
"""

import pytest
from engine_fixtures import (
    BATCH,
    BLOCK,
    GRAPHS,
    SAMPLING,
    FiveSteps,
    OneStep,
    assert_same_tokens,
    prompt_of,
    shared_model,
)

from nanogpt import Graph
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
