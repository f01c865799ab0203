"""The device that tensors live on, and why it was chosen."""

from dataclasses import dataclass

import torch


@dataclass(frozen=True)
class Device:
    """Where tensors live, the dtype that training multiplies in, and why."""

    device: torch.device
    dtype: torch.dtype
    reason: str

    def __str__(self) -> str:
        return f"{self.device.type}, {str(self.dtype).removeprefix('torch.')}: {self.reason}"


def pick_device(prefer: str = "auto") -> Device:
    """CUDA where there is any, else the CPU. Raises ValueError for a device that is missing."""
    if prefer not in ("auto", "cpu", "cuda"):
        raise ValueError(f"device={prefer!r} is unknown: choose auto, cpu or cuda")
    if prefer == "cuda" and not torch.cuda.is_available():
        raise ValueError("device='cuda', but this torch sees no CUDA device: choose cpu or auto")
    if prefer == "cpu" or not torch.cuda.is_available():
        reason = "as asked" if prefer == "cpu" else "no CUDA device was found"
        reason = f"{reason}; float32 is a CPU's fast type"
        return Device(torch.device("cpu"), torch.float32, reason)
    name = torch.cuda.get_device_name()
    # Without the argument a T4 answers True, and then emulates bfloat16, slowly.
    if torch.cuda.is_bf16_supported(including_emulation=False):
        return Device(torch.device("cuda"), torch.bfloat16, f"{name} multiplies bfloat16 natively")
    reason = f"{name} has no native bfloat16; gradients are scaled so that float16 can hold them"
    return Device(torch.device("cuda"), torch.float16, reason)


def synchronize(device: torch.device) -> None:
    """Wait until the device has finished its work; a CPU always has."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def forked_random_state(device: Device):
    """A with-block that leaves the global random state as it was, on this process's own GPU too."""
    gpu = device.device.type == "cuda"
    return torch.random.fork_rng(devices=[device.device] if gpu else None)
