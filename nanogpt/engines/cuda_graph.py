"""Rungs 6 and 7 on CUDA: the decode step recorded once as a CUDA graph, and replayed.

A GPU runs this model's kernels faster than Python can launch them one by one. A graph launches
all of a step at once. What changes from token to token (the token, its position, its noise) is
advanced on the device, so nothing waits for the host.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from ..decoding.sampling import PLAIN, SamplingParams, sample
from ..model.gpt import GPT
from . import functional
from .base import Exclusive
from .eager import Flat
from .toolchain import CannotBuild, first_line


class Graph(Exclusive, Flat):
    """Rung 6 on CUDA. One decode step and its draw, recorded; Python replays it for each token."""

    fallback = Flat
    in_torch = False
    steps = 1  # recorded in one graph

    def build(self):
        if self.device.type != "cuda":
            raise CannotBuild(f"a CUDA graph needs a CUDA device, not {self.device.type}")
        try:
            self._allocate()
            self.replay = self._capture(self._steps)
        except RuntimeError as error:
            raise CannotBuild(f"the step cannot be recorded: {first_line(error)}") from error

    def _allocate(self) -> None:
        c, B, size = self.config, self.batch, self.capacity + self.steps
        kind = {"dtype": self.dtype, "device": self.device}
        self.weights = functional.flatten(GPT(c).to(**kind))
        self.kv = functional.buffers(c, B, size, **kind)
        self.noise = torch.ones(size, B, c.vocab_size, device=self.device)
        self.logits = torch.zeros(B, c.vocab_size, **kind)
        integers = {"dtype": torch.int64, "device": self.device}
        self.token = torch.zeros(B, 1, **integers)
        self.pos, self.count = torch.zeros(1, **integers), torch.zeros(1, **integers)
        self.out = torch.zeros(size, B, 1, **integers)
        self.places = torch.arange(size, device=self.device)

    def _capture(self, work):
        """A function that replays `work`, recorded after three runs on a side stream."""
        side = torch.cuda.Stream(self.device)
        side.wait_stream(torch.cuda.current_stream(self.device))
        with torch.cuda.stream(side), torch.no_grad():
            for _ in range(3):
                self.pos.zero_(), self.count.zero_()
                work()
        torch.cuda.current_stream(self.device).wait_stream(side)
        self.pos.zero_(), self.count.zero_()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph), torch.no_grad():
            work()
        return graph.replay

    def _steps(self) -> None:
        for _ in range(self.steps):
            self.logits.copy_(self._step())
            noise = self.noise.index_select(0, self.count)[0]  # (B, V)
            self.token.copy_(sample(self.logits, noise))
            self.out.index_copy_(0, self.count, self.token[None])
            self.pos.add_(1), self.count.add_(1)

    def _step(self) -> Tensor:
        """One step at self.pos: it reads all places and masks the empty ones.  -> (B, V)"""
        mask = (self.places <= self.pos)[None, None, None]  # (1, 1, 1, S)

        def attend(i: int, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
            keys, values = self.kv[i]  # (B, H, S, hs)
            keys.index_copy_(2, self.pos, k[:, :, None])
            values.index_copy_(2, self.pos, v[:, :, None])
            return F.scaled_dot_product_attention(q[:, :, None], keys, values, attn_mask=mask)

        # The clamp serves steps past the end, which nobody looks at.
        here = self.pos.clamp(max=self.config.block_size - 1)
        return functional.step_at(self.weights, self.token[:, 0], here, self.config.n_head, attend)

    @torch.no_grad()
    def _begin(self, model: GPT, prompt: Tensor, noise: Tensor) -> None:
        # The graph holds addresses, so the model's weights are copied to them, as they are now.
        mine, new = self.weights, functional.flatten(model)
        layers = zip(mine.layers, new.layers, strict=True)
        for target, source in ((mine[:-1], new[:-1]), *layers):
            torch._foreach_copy_(list(target), list(source))
        for keys, values in self.kv:
            keys.zero_(), values.zero_()
        if prompt.shape[1] > 1:
            functional.step(mine, self.kv, prompt[:, :-1], 0, self.config.n_head)
        self.token.copy_(prompt[:, -1:])
        self.pos.fill_(prompt.shape[1] - 1)
        self.count.zero_()
        self.noise[: len(noise)] = noise

    def run(self, model, prompt, noise, sampling):
        self._begin(model, prompt, noise)
        for i, row in enumerate(noise):
            if sampling != PLAIN:
                yield self._draw(row, sampling)
                continue
            if i % self.steps == 0:
                self.replay()
            yield self.out[i].clone()

    @torch.no_grad()
    def _draw(self, noise: Tensor, sampling: SamplingParams) -> Tensor:
        """One step and a draw that is not the recorded one, outside of the graph."""
        token = sample(self._step(), noise, sampling)
        self.token.copy_(token)
        self.pos.add_(1)
        return token


class GraphLoop(Graph):
    """Rung 7 on CUDA. Sixteen steps in one graph: Python is asked once for sixteen tokens."""

    fallback = Graph
    steps = 16
