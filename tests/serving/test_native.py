"""Steps in native code: the tokens of `generate`, and the same bits of logits in any batch."""

import pytest
import torch
from decoding_fixtures import build, text
from serving_fixtures import Watched, alone, request, run
from shapes import COMBINED

from nanogpt.engines.decoder_library import decoder_library
from nanogpt.engines.exact import exact
from nanogpt.engines.native import Native
from nanogpt.engines.toolchain import CannotBuild
from nanogpt.sampling import SamplingParams
from nanogpt.serving import native_steps
from nanogpt.serving.batch import BatchEngine
from nanogpt.serving.native_steps import NativeBackend, choose_backend
from nanogpt.serving.sequence import Request


@pytest.fixture(scope="module", autouse=True)
def built():
    try:
        decoder_library()
    except CannotBuild as error:
        pytest.skip(str(error))


def served(model, requests, **settings):
    """The logits behind every token of these requests, served together."""
    engine = Watched(model, backend=NativeBackend, **settings)
    run(engine, {0: requests}, {})
    return {name: torch.stack(rows) for name, rows in engine.logits.items()}


SHAPES = {  # heads narrower than a register, and as wide; every form
    "narrow heads": {},
    "wide heads": {"n_head": 2},
    "the keeper, wider": COMBINED["the keeper"] | {"n_embd": 40},
    "sinks": {"window": 5, "sinks": 2, "full_every": 2},
    **COMBINED,
}


@pytest.mark.parametrize("shape", SHAPES)
@torch.no_grad()
def test_logits_are_the_same_bits_in_any_batch_and_any_chunks_and_near_the_models(shape):
    model = build(torch.float32, **SHAPES[shape])
    sampling = SamplingParams(greedy=True)
    requests = [
        Request(text(n, seed=n)[0], min(9, 33 - n), sampling, id=n) for n in (32, 1, 16, 17, 5, 30)
    ]
    alone = {}
    for one in requests:
        alone |= served(model, [one], block_len=5)
        new = alone[one.id].argmax(-1)[:-1]
        want = model(torch.cat([one.prompt, new])[None])[0][0, len(one.prompt) - 1 :]
        torch.testing.assert_close(alone[one.id], want, rtol=1e-4, atol=1e-4)
    for settings in ({}, {"budget": 1}, {"budget": 7, "n_blocks": 15}, {"budget": 19}):
        together = served(model, requests, block_len=5, **settings)
        assert all(torch.equal(alone[name], together[name]) for name in alone), settings


def test_a_model_that_native_code_cannot_read_is_refused_in_a_line():
    with pytest.raises(ValueError, match="float32 on the CPU"):
        BatchEngine(build(torch.float64), backend=NativeBackend)
    model = build(torch.float32)
    with exact(model), pytest.raises(ValueError, match="exact"):
        BatchEngine(model, backend=NativeBackend)


@pytest.mark.parametrize("row", ["the keeper", "Gemma 2"])
@torch.no_grad()
def test_rotary_positions_have_no_end_here_either(row):
    """As far as the blocks reach, which is past block_size."""
    model = build(torch.float32, **COMBINED[row])
    sampling = SamplingParams(greedy=True)
    request = Request(text(20)[0], 40, sampling, id=0)
    assert len(request.prompt) + request.max_new_tokens > model.config.block_size
    logits = served(model, [request], block_len=5, n_blocks=12)[0]
    whole = torch.cat([request.prompt, logits.argmax(-1)[:-1]])
    want = model(whole[None])[0][0, len(request.prompt) - 1 :]
    torch.testing.assert_close(logits, want, rtol=1e-4, atol=1e-4)


def test_a_failed_call_of_several_steps_can_be_tried_again(monkeypatch):
    engine = Watched(build(torch.float32), backend=NativeBackend, block_len=4)
    engine.add(request(14))
    tokens = [output.token for output in engine.step()]
    with monkeypatch.context() as patch:
        patch.setattr(engine.backend, "_grow", lambda *_: 1 / 0)
        with pytest.raises(ZeroDivisionError):
            engine.step()
    engine.audit()
    while engine.busy:
        tokens += [output.token for output in engine.step()]
    assert tokens == alone("batched", 14, torch.float32, Native)
    assert engine.events["several"], "each call took one step"


def test_without_a_compiler_the_modules_serve(monkeypatch):
    def cannot(*arguments):
        raise CannotBuild("no compiler")

    assert choose_backend(build(torch.float32)) == ("native", "")
    monkeypatch.setattr(native_steps, "decoder_library", cannot)
    assert choose_backend(build(torch.float32)) == ("modules", "no compiler")
