"""Choosing a device, and measuring the available memory."""

from dataclasses import dataclass

import torch

from .config import ParameterError


@dataclass(frozen=True)
class Device:
    """A device, the dtype of matrix multiplications in training, and why they were chosen."""

    device: torch.device
    dtype: torch.dtype
    reason: str

    def __str__(self) -> str:
        return f"{self.device.type}, {str(self.dtype).removeprefix('torch.')}: {self.reason}"


def pick_device(prefer: str = "auto") -> Device:
    """CUDA if available, else the CPU. Raises ValueError for a missing or unknown device."""
    if prefer not in ("auto", "cpu", "cuda"):
        raise ParameterError(f"device={prefer!r} is unknown: choose auto, cpu or cuda", "device")
    if prefer == "cuda" and not torch.cuda.is_available():
        raise ParameterError(
            "device='cuda', but this torch sees no CUDA device: choose cpu or auto", "device"
        )
    if prefer == "cpu" or not torch.cuda.is_available():
        reason = "as requested" if prefer == "cpu" else "no CUDA device was found"
        reason = f"{reason}; float32 is a CPU's fast type"
        return Device(torch.device("cpu"), torch.float32, reason)
    name = torch.cuda.get_device_name()
    # Without this argument a T4 returns True, and then emulates bfloat16, slowly.
    if torch.cuda.is_bf16_supported(including_emulation=False):
        return Device(torch.device("cuda"), torch.bfloat16, f"{name} multiplies bfloat16 natively")
    reason = f"{name} has no native bfloat16; gradients are scaled so that float16 can hold them"
    return Device(torch.device("cuda"), torch.float16, reason)


def synchronize(device: torch.device) -> None:
    """Wait until the device has finished its work; a no-op on a CPU."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def forked_random_state(device: Device):
    """A with-block that restores the global random state, including that of this process's GPU."""
    gpu = device.device.type == "cuda"
    return torch.random.fork_rng(devices=[device.device] if gpu else None)
