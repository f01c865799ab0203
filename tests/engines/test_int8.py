"""8-bit weights: how they are rounded, and that Native8 is the model with its matrices rounded."""

import hypothesis.strategies as st
import pytest
import torch
from engine_fixtures import change_weights, close_noise, prompt_of, seeded, shared_model, uncached
from hypothesis import given

from nanogpt import Decoder, Native8
from nanogpt.engines import native
from nanogpt.engines.generation import complete
from nanogpt.engines.native import quantize
from nanogpt.engines.toolchain import CannotBuild

SMALL = {"n_embd": 64, "n_head": 4, "vocab_size": 65, "block_size": 40}


def reference(weight):
    """The same rounding in PyTorch: half to even, and each row's largest number becomes 127."""
    top = weight.abs().amax(1, keepdim=True)
    # 127 / top would round twice.
    inverse = torch.where(top > 0, torch.full_like(top, 127.0) / top, 0.0)
    return (weight * inverse).round().to(torch.int8), (top / 127)[:, 0]


@pytest.fixture(params=[pytest.param("native", marks=pytest.mark.slow), "torch"])
def quantizers(request, monkeypatch):
    """quantize by native code, and by PyTorch where nothing can be compiled."""

    def nothing():
        raise CannotBuild("no compiler")

    if request.param == "torch":
        monkeypatch.setattr(native, "helpers_library", nothing)
    return request.param


def test_codes_and_scales_are_the_reference(quantizers):
    @given(
        n=st.integers(1, 9),
        k=st.integers(1, 70),
        seed=st.integers(0, 10**6),
        scale=st.sampled_from([1e-20, 1e-3, 1.0, 1e6, 1e20]),
    )
    def check(n, k, seed, scale):
        weight = scale * torch.randn(n, k, generator=seeded(seed))
        codes, scales = quantize(weight)
        assert (codes.dtype, scales.dtype) == (torch.int8, torch.float32)
        expected, steps = reference(weight)
        assert torch.equal(codes, expected)
        assert torch.equal(scales, steps)
        assert (codes.abs().amax(1) == 127).all()
        error = (weight - codes * scales[:, None]).abs().amax(1)
        assert (error <= scales * 0.5001).all()

    check()


def test_halves_go_to_even_a_row_of_zeros_stays_one_and_memory_has_any_order(quantizers):
    rows = [[127, 0.5, 1.5, 2.5, -0.5, -1.5, -2.5], [0.0] * 7, [-127, 126.5, 125.5, 1, 2, 3, 4]]
    codes, scales = quantize(torch.tensor(rows).T.contiguous().T)
    assert codes.tolist() == [[127, 0, 2, 2, 0, -2, -2], [0] * 7, [-127, 126, 126, 1, 2, 3, 4]]
    assert scales.tolist() == [1.0, 0.0, 1.0]


@pytest.mark.parametrize("kind", [{"dtype": torch.float64}, {"device": "meta"}], ids=str)
def test_weights_that_native_code_would_misread_are_refused(kind):
    with pytest.raises(ValueError, match="plain float32|on meta"):
        quantize(torch.zeros(3, 4, **kind))


@pytest.mark.parametrize("number", [torch.nan, torch.inf, -torch.inf])
def test_a_number_that_no_code_stands_for_is_refused(quantizers, number):
    with pytest.raises(ValueError, match="NaN or infinite"):
        quantize(torch.tensor([[1.0, number]]))


def round_here(model):
    """The model with its matrices through the reference and back."""
    matrices = [m for m in model.blocks.modules() if isinstance(m, torch.nn.Linear)]
    packed = isinstance(model, Decoder)
    assert len(matrices) == 2 * (3 + (1 if packed else 12))
    with torch.no_grad():
        for linear in (model.lm_head, *matrices):
            codes, scales = reference(linear.weight)
            linear.weight.copy_(codes * scales[:, None])
    return model


@pytest.mark.parametrize("per_head", [True, False])
def test_rounded_is_the_model_with_its_matrices_rounded(per_head, monkeypatch):
    model = shared_model(per_head)
    expected = round_here(shared_model(per_head)).state_dict()
    before = {key: value.clone() for key, value in model.state_dict().items()}
    monkeypatch.setattr(native, "quantize", reference)
    got = native.rounded(model).state_dict()
    assert all(torch.equal(got[key], value) for key, value in expected.items())
    assert all(torch.equal(value, before[key]) for key, value in model.state_dict().items())


@pytest.mark.slow
@pytest.mark.parametrize("per_head", [True, False])
def test_native8_is_the_model_with_its_matrices_rounded(per_head):
    model = shared_model(per_head, **SMALL)
    rounded = round_here(shared_model(per_head, **SMALL))
    moved = []
    built = Native8(model.config, batch=3)
    for T in (1, 18, 33):
        prompt = prompt_of(T, vocab=65)
        got = complete(model, prompt, 41 - T, engine=built, generator=seeded(1))
        assert torch.equal(got, uncached(rounded, prompt, 41 - T))
        moved.append(not torch.equal(got, uncached(model, prompt, 41 - T)))
    assert any(moved), "rounding moves no token here, so this test shows nothing"
    prompt = prompt_of(17, vocab=65)
    text = prompt_of(20, seed=4, vocab=65)
    noise = close_noise(rounded, prompt, text, margin=1e-2)  # activations have 16 bits
    assert torch.equal(complete(model, prompt, 20, engine=built, noise=noise)[:, 17:], text)
    change_weights(model)
    got = complete(model, prompt_of(5, vocab=65), 20, engine=built, generator=seeded(1))
    assert torch.equal(got, uncached(round_here(model), prompt_of(5, vocab=65), 20))
    model.blocks[1].ffwd.double()
    with pytest.raises(ValueError, match="plain float32|of torch.float64"):
        complete(model, prompt, 20, engine=built)
