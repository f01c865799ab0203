"""The noise of a long text, drawn in blocks as needed: the same numbers as `draw_noise`."""

from __future__ import annotations

from collections.abc import Iterator
from math import prod

import torch
from torch import Tensor

from ..data import send
from ..sampling import draw_noise

DRAWN = 2**16  # numbers drawn at a time: half a millisecond
# The most numbers drawn before the first token: 15 milliseconds. A text of 100 tokens over a
# vocabulary of 49,152 has 5 million, which took 80 to 100 milliseconds.
DRAWN_AT_ONCE = 2**20


class Noise:
    """The noise of a generation, (n_new, B, V), of which only the next tokens' rows are in memory.

    Drawing row after row gives the same numbers as drawing the whole tensor. For 8,000 tokens over
    a vocabulary of 49,152 the whole tensor would take 1.6 GB, and as much again while it is drawn.
    Slices such as noise[3:7] are tensors. A slice may not begin before an earlier slice, because
    used rows are dropped.
    """

    def __init__(
        self,
        generator: torch.Generator,
        shape: tuple[int, int, int],
        device: torch.device | None = None,
    ):
        self.generator = generator
        self.shape = shape
        self.device = device or torch.device("cpu")
        self.first = 0  # the number of the first of `rows`
        self.rows = torch.empty(0, *shape[1:], dtype=torch.float32, device=self.device)

    def __len__(self) -> int:
        return self.shape[0]

    def draw(self, first: int, n: int) -> None:
        """Make `rows` hold the rows first … first + n - 1, dropping earlier ones."""
        drawn = self.first + len(self.rows)
        assert self.first <= first, f"row {first}: rows before {self.first} were dropped"
        if first + n <= drawn:
            return
        most = max(first + n - drawn, DRAWN // prod(self.shape[1:]))
        new = draw_noise(min(most, len(self) - drawn), *self.shape[1:], self.generator)
        rows = torch.cat([self.rows, send(new, self.device)])
        self.rows = rows[first - self.first :]  # `first` may be past all rows drawn so far
        self.first = first

    def row(self, number: int) -> Tensor:
        """(B, V)"""
        self.draw(number, 1)
        return self.rows[number - self.first]

    def __getitem__(self, rows: slice) -> Tensor:
        start, stop, _ = rows.indices(len(self))
        self.draw(start, stop - start)
        return self.rows[start - self.first : stop - self.first]

    def __iter__(self) -> Iterator[Tensor]:
        for number in range(len(self)):
            yield self.row(number)


def noise_in_blocks(
    generator: torch.Generator | None, shape: tuple[int, int, int], device: torch.device
) -> Noise:
    """The noise that `generator` would draw now; advances the generator past it.

    So the caller cannot tell that the noise is drawn later.
    """
    if generator is None:
        return Noise(torch.Generator().manual_seed(1337), shape, device)
    own = torch.Generator()
    own.set_state(generator.get_state())
    # The numbers themselves are skipped, which takes a third of the time of drawing noise.
    left = prod(shape)
    block = torch.empty(min(left, DRAWN), dtype=torch.float64, device="cpu")
    while left:
        skipped = block[: min(left, len(block))]
        torch.rand(skipped.shape, dtype=torch.float64, generator=generator, out=skipped)
        left -= len(skipped)
    return Noise(own, shape, device)
