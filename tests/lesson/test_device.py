"""Choosing a device and its dtype."""

import pytest
import torch

from nanogpt.device import pick_device


@pytest.fixture
def cuda(monkeypatch):
    """A pretended CUDA device: whether it is there, and multiplies bfloat16 natively."""

    def pretend(there=True, native=True):
        monkeypatch.setattr(torch.cuda, "is_available", lambda: there)
        monkeypatch.setattr(torch.cuda, "get_device_name", lambda *_: "Test GPU")
        # Without the argument a T4 answers True, since it can emulate.
        monkeypatch.setattr(
            torch.cuda,
            "is_bf16_supported",
            lambda including_emulation=True: including_emulation or native,
        )

    return pretend


@pytest.mark.parametrize(
    ("there", "native", "prefer", "text"),
    [
        (False, False, "auto", "cpu, float32: no CUDA device was found"),
        (True, True, "auto", "cuda, bfloat16: Test GPU multiplies"),
        (True, False, "auto", "cuda, float16: Test GPU has no native bfloat16"),
        (True, True, "cuda", "cuda, bfloat16: "),
        (True, True, "cpu", "cpu, float32: as requested"),
    ],
)
def test_a_device_has_a_dtype_and_a_reason(cuda, there, native, prefer, text):
    cuda(there, native)
    assert str(pick_device(prefer)).startswith(text)


def test_a_missing_or_unknown_device_is_an_error(cuda):
    cuda(there=False)
    with pytest.raises(ValueError, match="sees no CUDA device: choose cpu or auto"):
        pick_device("cuda")
    with pytest.raises(ValueError, match="device='mps' is unknown: choose auto, cpu or cuda"):
        pick_device("mps")
