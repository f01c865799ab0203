"""Windows and rotations against numbers that a reader can check by hand.

That a decoder computes them, and its norms, is test_step.py.
"""

import math

import pytest
import torch
from conftest import seeded

from nanogpt.decoder.config import DecoderConfig, RopeScaling
from nanogpt.decoder.layers import rotate, rotation_speeds, visible

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


# ------------------------------------------------------------------ rotary positions


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


def test_far_positions_lose_no_digits():
    config = DecoderConfig(n_embd=8, n_head=1, positions="rotary")
    x = torch.randn(5, 8, generator=seeded(0))
    pos = torch.arange(5) + 10_000_000
    exact = rotate(x.double(), pos, config)
    torch.testing.assert_close(rotate(x, pos, config).double(), exact, rtol=0, atol=1e-6)
