"""Choosing a device, waiting for it, and keeping its random state."""

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
    # 1. Is it one that this package knows, and that is there? A request is never replaced silently.
    if prefer not in ("auto", "cpu", "cuda"):
        raise ParameterError(f"device={prefer!r} is unknown: choose auto, cpu or cuda", "device")
    if prefer == "cuda" and not torch.cuda.is_available():
        raise ParameterError(
            "device='cuda', but this torch sees no CUDA device: choose cpu or auto", "device"
        )
    # 2. A CPU computes in float32: most have no fast 16-bit multiplication.
    if prefer == "cpu" or not torch.cuda.is_available():
        reason = "as requested" if prefer == "cpu" else "no CUDA device was found"
        reason = f"{reason}; float32 is a CPU's fast type"
        return Device(torch.device("cpu"), torch.float32, reason)
    # 3. A GPU multiplies faster in 16 bits. bfloat16 has float32's range, so nothing overflows;
    #    older GPUs have only float16. Without this argument a T4 returns True, and then emulates
    #    bfloat16, slowly.
    name = torch.cuda.get_device_name()
    if torch.cuda.is_bf16_supported(including_emulation=False):
        return Device(torch.device("cuda"), torch.bfloat16, f"{name} multiplies bfloat16 natively")
    reason = f"{name} has no native bfloat16; gradients are scaled so that float16 can hold them"
    return Device(torch.device("cuda"), torch.float16, reason)


def synchronize(device: torch.device) -> None:
    """Wait until the device has finished its work; a no-op on a CPU."""
    # A GPU runs kernels asynchronously: a call returns before its result is there.
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def forked_random_state(device: Device):
    """A with-block that restores the global random state, including that of this process's GPU."""
    # By default torch would fork the state of every GPU of the machine, and warn.
    gpu = device.device.type == "cuda"
    return torch.random.fork_rng(devices=[device.device] if gpu else None)
