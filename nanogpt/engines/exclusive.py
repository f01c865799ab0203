"""Engines whose buffers serve one generation at a time."""

from __future__ import annotations

import threading
from abc import abstractmethod
from collections.abc import Iterator

from torch import Tensor

from ..decoding.sampling import SamplingParams
from ..model.gpt import GPT
from .base import Engine, building


class Exclusive(Engine):
    """An engine whose buffers serve one generation at a time; a second one gets a sibling."""

    def __init__(self, *args, **kwargs):
        self.in_use, self.sibling = threading.Lock(), None
        super().__init__(*args, **kwargs)

    def tokens(self, model, prompt, noise, sampling):
        if not self.in_use.acquire(blocking=False):
            yield from self._sibling().tokens(model, prompt, noise, sampling)
            return
        try:
            yield from self.run(model, prompt, noise, sampling)
        finally:
            self.release()
            self.in_use.release()

    def _sibling(self) -> Exclusive:
        with building:
            if self.sibling is None:
                shape = {"batch": self.batch, "capacity": self.capacity}
                self.sibling = type(self)(
                    self.config, **shape, dtype=self.dtype, device=self.device
                )
            return self.sibling

    @abstractmethod
    def run(
        self, model: GPT, prompt: Tensor, noise: Tensor, sampling: SamplingParams
    ) -> Iterator[Tensor]:
        """What `tokens` does, with the buffers to itself."""

    def release(self) -> None:
        """Let go of the weights that a generation used."""
