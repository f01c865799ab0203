"""What an engine is made for: one architecture, batch size, capacity, dtype and device."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from ..config import GPTConfig, check_int, check_type
from ..decoder.config import DecoderConfig, beyond_lecture, decoder_config
from ..decoder.standard import inference_config
from ..model import LanguageModel


@dataclass(frozen=True)
class Shape:
    """`batch` texts of up to `capacity` tokens, decoded by a model of this config.

    It is made once, by `of` or `of_model`, which check what they are given, and is handed on.
    """

    config: DecoderConfig  # without the fields that do not affect inference
    batch: int
    capacity: int
    dtype: torch.dtype
    device: torch.device

    @classmethod
    def of(
        cls,
        config: GPTConfig | DecoderConfig,
        batch: int,
        capacity: int | None,
        dtype: torch.dtype,
        device: str | torch.device,
    ) -> Shape:
        """The shape of these arguments of an engine. Raises ValueError or TypeError."""
        check_type("config", config, (GPTConfig, DecoderConfig))
        check_type("dtype", dtype, torch.dtype)
        check_type("device", device, (str, torch.device))
        capacity = config.block_size if capacity is None else capacity
        check_int("batch", batch, 1)
        check_int("capacity", capacity, 1, config.block_size)
        try:
            device = torch.device(device)
        except RuntimeError:
            raise ValueError(f'device={device!r}: pass a torch device such as "cpu"') from None
        return cls(decoder_config(inference_config(config)), batch, capacity, dtype, device)

    @classmethod
    def of_model(cls, model: LanguageModel, batch: int) -> Shape:
        """The shape of `batch` texts of this model, up to its block_size."""
        return cls.of(model.config, batch, None, model.dtype, model.device)

    def decodes(self, other: Shape) -> bool:
        """Whether an engine of this shape decodes texts of the other, if they are short enough.

        `cuda` without a number is whichever GPU is current, so it is taken for any.
        """
        mine = (self.config, self.batch, self.dtype, self.device.type)
        theirs = (other.config, other.batch, other.dtype, other.device.type)
        numbers = (self.device.index, other.device.index)
        return mine == theirs and (None in numbers or numbers[0] == numbers[1])

    def __str__(self) -> str:
        """For an error: all but the capacity, with the fields beyond the lecture's."""
        c = self.config
        other = "".join(f", {name}={value}" for name, value in beyond_lecture(c).items())
        sizes = f"{c.n_layer} layers, {c.n_head} heads, width {c.n_embd}, block {c.block_size}"
        texts = f"a batch of {self.batch}; {self.dtype} on {self.device}"
        return f"{sizes}, {c.vocab_size} tokens{other}; {texts}"
