"""Norms, rotations and windows against formulas that a reader can check by hand."""

import math

import hypothesis.strategies as st
import pytest
import torch
from conftest import seeded
from hypothesis import given

from nanogpt import attention
from nanogpt.decoder.config import DecoderConfig, RopeScaling
from nanogpt.decoder.layers import RMSNorm, build_norm, norm, rotate, rotation_speeds, visible

# ------------------------------------------------------------------ who sees whom


@pytest.mark.parametrize("window", [None, 1, 2, 3, 10, 11])
@pytest.mark.parametrize("sinks", [0, 1, 3])
def test_visible_is_the_rule_for_every_pair_of_positions(window, sinks):
    """A window is wrong, where it is wrong, by one: at the key that is just out of it."""
    positions = torch.arange(-1, 10)
    rows = []
    for q in positions.tolist():
        near = math.inf if window is None else window
        rows.append([0 <= k <= q and (q - k < near or k < sinks) for k in positions.tolist()])
    assert visible(positions, positions, window, sinks).tolist() == rows


@given(q=st.lists(st.integers(-1, 12), min_size=1), k=st.lists(st.integers(-1, 12), min_size=1))
def test_without_a_window_it_is_the_rule_of_the_lecture(q, k):
    q, k = torch.tensor(q), torch.tensor(k)
    assert torch.equal(visible(q, k), attention.visible(q, k))


# ------------------------------------------------------------------ rotary positions


def turn_of(length: int) -> float:
    """Radians a position, at which a whole turn takes so many positions."""
    return 2 * math.pi / length


def test_the_first_pair_turns_by_one_radian_and_each_next_one_more_slowly():
    speeds = rotation_speeds(8, 10_000.0, None)
    assert speeds.dtype == torch.float64
    assert speeds.tolist() == pytest.approx([1.0, 0.1, 0.01, 0.001], rel=1e-15)
    assert rotation_speeds(6, 8.0, None).tolist() == pytest.approx([1.0, 0.5, 0.25], rel=1e-15)


@pytest.mark.parametrize(
    ("scaling", "factors"),
    [
        # Pairs turn 1304, 130.4, 13.04 and 1.304 times in 8192 positions: the last lies a tenth of
        # the way from 1 to 4.
        (RopeScaling(8.0, 1.0, 4.0, 8192), [1, 1, 1, (1.3038 - 1) / 3]),
        # 15.9, 1.59, 0.159 and 0.0159 times: the last two are slow.
        (RopeScaling(8.0, 1.0, 4.0, 100), [1, (1.59155 - 1) / 3, 0, 0]),
        # All are fast, or all slow.
        (RopeScaling(8.0, 1.0, 4.0, 2**20), [1, 1, 1, 1]),
        (RopeScaling(8.0, 1.0, 4.0, 6), [0, 0, 0, 0]),
        (RopeScaling(2.0, 0.5, 1.0, 100), [1, 1, 0, 0]),
    ],
    ids=str,
)
def test_llama_3_slows_the_slow_pairs_down(scaling, factors):
    """`factors`: 1 for a pair that keeps its speed, 0 for one that is divided by the factor."""
    speeds = [1.0, 0.1, 0.01, 0.001]
    slow = [speed / scaling.factor for speed in speeds]
    expected = [a * f + b * (1 - f) for a, b, f in zip(speeds, slow, factors, strict=True)]
    found = rotation_speeds(8, 10_000.0, scaling)
    assert found.tolist() == pytest.approx(expected, rel=1e-5)


@pytest.mark.parametrize(("turns", "keeps"), [(4, 1), (4.5, 1), (2.5, 0.5), (1, 0), (0.5, 0)])
def test_between_few_turns_and_many_a_speed_is_interpolated(turns, keeps):
    base = (1000 / (2 * math.pi * turns)) ** 2  # the second of two pairs turns so often in 1000
    scaling = RopeScaling(10.0, 1.0, 4.0, 1000)
    _, speed = rotation_speeds(4, base, None).tolist()
    _, found = rotation_speeds(4, base, scaling).tolist()
    assert speed == pytest.approx(turns * turn_of(1000), rel=1e-12)
    assert found == pytest.approx(speed * keeps + speed / 10 * (1 - keeps), rel=1e-9)


def test_rotating_is_multiplying_by_a_complex_number():
    config = DecoderConfig(n_embd=6, n_head=1, positions="rotary", rope_base=100.0)
    x = torch.randn(2, 7, 6, dtype=torch.float64, generator=seeded(0))
    pos = torch.arange(7) * 5
    turned = torch.complex(x[..., :3], x[..., 3:])
    for i in range(3):
        angle = pos.double() * 100.0 ** (-i / 3)
        turned[..., i] *= torch.polar(torch.ones(7, dtype=torch.float64), angle)
    expected = torch.cat([turned.real, turned.imag], dim=-1)
    torch.testing.assert_close(rotate(x, pos, config), expected, rtol=0, atol=1e-12)


def test_far_positions_lose_no_digits():
    config = DecoderConfig(n_embd=8, n_head=1, positions="rotary")
    x = torch.randn(5, 8, generator=seeded(0))
    pos = torch.arange(5) + 10_000_000
    exact = rotate(x.double(), pos, config)
    torch.testing.assert_close(rotate(x, pos, config).double(), exact, rtol=0, atol=1e-6)


# ------------------------------------------------------------------ norms


@pytest.mark.parametrize("eps", [None, 0.0, 1e-5, 0.5])
@pytest.mark.parametrize("weights", [True, False])
def test_rms_norm_divides_by_the_root_of_the_mean_square(eps, weights):
    x = torch.randn(3, 5, 8, dtype=torch.float64, generator=seeded(1))
    layer = RMSNorm(8, eps, weights).double()
    assert [name for name, _ in layer.named_parameters()] == ["weight"] * weights
    scale = 1.0
    if weights:
        assert torch.equal(layer.weight, torch.ones(8))
        scale = torch.randn(8, dtype=torch.float64, generator=seeded(2))
        layer.weight.data = scale
    added = torch.finfo(torch.float64).eps if eps is None else eps
    expected = x / (x.square().mean(-1, keepdim=True) + added).sqrt() * scale
    torch.testing.assert_close(layer(x), expected, rtol=0, atol=1e-12)


@pytest.mark.parametrize("kind", ["layer", "rms"])
@pytest.mark.parametrize("weights", [True, False])
@pytest.mark.parametrize("bias", [True, False])
def test_a_new_norm_has_the_tensors_of_its_config_and_the_function_is_the_module(
    kind, weights, bias
):
    config = DecoderConfig(norm=kind, norm_weights=weights, norm_bias=bias, norm_eps=0.1)
    layer = build_norm(config, 8)
    names = ["weight"] * weights + ["bias"] * (weights and bias and kind == "layer")
    assert [name for name, _ in layer.named_parameters()] == names
    for parameter in layer.parameters():
        parameter.data.normal_(generator=seeded(3))
    x = torch.randn(3, 8, generator=seeded(1))
    tensors = [getattr(layer, name, None) for name in ("weight", "bias")]
    assert torch.equal(norm(x, *tensors, config), layer(x))
    assert torch.equal(norm(x[0], *tensors, config), layer(x[0]))
