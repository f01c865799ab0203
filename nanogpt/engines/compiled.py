"""The decode step with sampling as one call: compiled on a CPU (rung 6), a CUDA graph on a GPU.

On a CPU, torch.export traces the step, Inductor generates C++ for it (AOTInductor), a compiler
builds it, and the result is kept in the user's cache folder. Noise is an input, so sampling is
arithmetic like everything else. A CUDA graph is captured once and replayed.
"""

from __future__ import annotations

import inspect
import logging
import os
import shutil
import sys
import tempfile
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from unittest.mock import patch

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ..console import first_line
from ..decoder import layers, step
from ..decoder.config import DecoderConfig
from ..decoder.model import Decoder
from ..decoder.pack import flatten
from ..model import LanguageModel
from ..sampling import PLAIN, SamplingParams, sample
from . import toolchain
from .base import check_float32, require_float32_cpu
from .eager import Exclusive
from .noise import Noise
from .toolchain import CannotBuild

INLINED = 8  # constants with at most this many elements cannot be replaced after the build
OPTIONS = {
    # Inductor inlines values that are cheap to recompute. At its default threshold (30) it repeats
    # a LayerNorm for each row of the matrix after it; at 0 it stores products before summing them.
    # Both were slower here, at 0.22M parameters and at 10.8M.
    "realize_opcount_threshold": 5,
    "realize_reads_threshold": 5,
    "size_asserts": False,
    # The weights are the model's own, bound for each generation.
    "aot_inductor.package_constants_in_so": False,
    # These two halve the build time: no precompiled headers, which do not pay off for a single
    # file, and no subprocess to test each instruction set. The CPU's own list of them is enough.
    "aot_inductor.precompile_headers": False,
    "cpp.vec_isa_ok": True,
}


class Step(nn.Module):
    """One token of each text in, the next one out. Weights, keys and values are buffers.

    (B,) tokens, (1,) position, (B, V) noise -> (B,) tokens, (B, V) logits
    """

    def __init__(self, config: DecoderConfig, batch: int, capacity: int):
        super().__init__()
        self.config = config
        weights = flatten(Decoder(config).float())
        for name, tensor in constants(weights, empty_kv(config, batch, capacity)).items():
            self.register_buffer(name, tensor.clone())  # tied weights are traced separately

    def forward(self, token: Tensor, pos: Tensor, noise: Tensor) -> tuple[Tensor, Tensor]:
        c = self.config
        weights = step.from_names(self._buffers, c.n_layer)
        hidden = {window: self.hidden(pos, window) for window in step.windows(c)}

        # The shapes are fixed, so attention reads all S slots in every step and gives the slots
        # that this token does not see a weight of 0.
        def attend(i: int, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
            # 1. Write the new key and value into slot `pos`, in place: no cache grows.
            keys = self.get_buffer(f"keys_{i}")  # (B, Hkv, hs, S)
            values = self.get_buffer(f"values_{i}")  # (B, Hkv, S, hs)
            keys.index_copy_(3, pos, k[..., None])
            values.index_copy_(2, pos, v[:, :, None])
            # 2. Products and sums instead of matmuls: Inductor can fuse them with the softmax.
            q = q.unflatten(1, (c.kv_heads, c.group))  # (B, Hkv, G, hs)
            scores = (keys[:, :, None] * q[..., None]).sum(3) * c.head_size**-0.5  # (B, Hkv, G, S)
            shares: Tensor = scores.masked_fill(hidden[c.window_of(i)], float("-inf")).softmax(-1)
            return (shares[..., None] * values[:, :, None]).sum(3).flatten(1)  # (B, H hs)

        position_row = F.embedding(pos, weights.positions)  # (1, C), or (1, 2 hs) with rotations
        logits = step.step(weights, token, position_row, attend, c, linear)  # (B, V)
        # 3. Plain sampling needs no argument but the noise, so it is compiled with the step.
        return (logits.softmax(-1) / noise).argmax(-1), logits

    def hidden(self, pos: Tensor, window: int | None) -> Tensor:
        """A mask of the slots that the token at `pos` does not see.  -> (S,)"""
        slots = self.get_buffer("slots")
        unwritten = slots > pos
        if window is None:
            return unwritten
        return unwritten | (slots <= pos - window) & (slots >= self.config.sinks)


def linear(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """F.linear; for a single vector as products and sums, which Inductor can fuse."""
    if len(x) > 1:
        return F.linear(x, weight, bias)
    y = (weight * x).sum(-1)[None]
    return y if bias is None else y + bias


def constants(weights: step.Weights, kv: step.Buffers) -> dict[str, Tensor]:
    """All buffers of a Step, by name."""
    named = step.named_tensors(weights)
    for i, (keys, values) in enumerate(kv):
        named[f"keys_{i}"] = keys.mT
        named[f"values_{i}"] = values
    return named | {"slots": torch.arange(kv[0][1].shape[2])}


def empty_kv(config: DecoderConfig, batch: int, capacity: int) -> step.Buffers:
    """Zeroed keys and values of each layer, (B, Hkv, S, hs); keys are stored as (B, Hkv, hs, S)."""
    rows = (batch, config.kv_heads)
    hs = config.head_size
    kv: step.Buffers = []
    for _ in range(config.n_layer):
        keys = torch.zeros((*rows, hs, capacity), dtype=torch.float32).mT
        values = torch.zeros((*rows, capacity, hs), dtype=torch.float32)
        kv.append((keys, values))
    return kv


class Compiled(Exclusive):
    """Rung 6. The step and its sampling as one compiled call; builds once, for tens of seconds."""

    def build(self) -> None:
        require_float32_cpu(self)
        c = self.config
        # 1. Inductor compiles short constants into the code. Such a vector would keep the numbers
        #    of the model that was built first, so refuse the shapes that have one.
        sizes = [self.capacity, c.vocab_size, c.n_embd]
        if c.qk_norm and c.norm_weights:
            sizes.append(c.head_size)
        if c.ffn_bias:
            sizes.append(c.hidden)
        if c.qkv_bias:
            sizes.append(c.qkv_rows)
        if min(sizes) <= INLINED:
            raise CannotBuild(
                f"a vector of up to {INLINED} numbers is compiled in and cannot change"
            )
        # 2. Everything that the compiled code depends on names the build. The text of these three
        #    modules is part of it, so an edit of the step is compiled again.
        source = "".join(map(inspect.getsource, (sys.modules[__name__], step, layers)))
        parts = {"source": source, "threads": torch.get_num_threads(), "config": str(self.config)}
        parts |= {"batch": self.batch, "capacity": self.capacity}
        path = toolchain.kept_build("compiled", parts, ".pt2", self._compile)
        # 3. Load it, and bind it once to some weights, so that a damaged file is found now.
        self.kv = empty_kv(self.config, self.batch, self.capacity)
        try:
            # Like torch._inductor.aoti_load_package, but without importing Inductor: saves 1.5 s.
            self.package = torch._C._aoti.AOTIModelPackageLoader(str(path), "model", False, 1, -1)
            self._bind(flatten(Decoder(self.config).float()))
        except Exception as error:
            raise toolchain.cannot_load(path, error) from error

    def _compile(self, path: Path) -> None:
        module = Step(self.config, self.batch, self.capacity)
        tokens = torch.zeros(self.batch, dtype=torch.int64)
        noise = torch.ones(self.batch, self.config.vocab_size, dtype=torch.float32)
        # Inductor's own files go into a temporary folder; only the package is kept.
        with (
            torch.no_grad(),
            warnings.catch_warnings(),
            tempfile.TemporaryDirectory(prefix="nanogpt-") as folder,
            patch.dict(os.environ, TORCHINDUCTOR_CACHE_DIR=folder),
        ):
            warnings.simplefilter("ignore")  # torch's warnings about its own code
            logging.getLogger("torch.utils.cpp_extension").setLevel("ERROR")  # nvcc without a GPU
            exported = torch.export.export(module, (tokens, torch.tensor([3]), noise))
            package = torch._inductor.aoti_compile_and_package(
                exported, package_path=f"{folder}/step.pt2", inductor_configs=OPTIONS
            )
            shutil.copyfile(package, path)

    def _bind(self, weights: step.Weights) -> dict[str, Tensor]:
        """Bind the compiled step to these weights without a copy; keep the result alive."""
        tensors = constants(weights, self.kv)
        check_float32(tensor for name, tensor in tensors.items() if name != "slots")
        bound = {name: tensor.contiguous() for name, tensor in tensors.items()}
        self.package.load_constants(bound, False, True, True)  # all, checked, without a copy
        return bound

    def run(
        self, model: LanguageModel, prompt: Tensor, noise: Tensor | Noise, sampling: SamplingParams
    ) -> Iterator[Tensor]:
        # 1. The compiled step reads the model's own memory, so binding costs no copy but that of a
        #    GPT's heads into one matrix.
        weights = flatten(model)
        bound = self._bind(weights)
        # 2. Prefill. The step is compiled for one token of each text, so eager PyTorch reads all of
        #    the prompt but its last token, which the first step reads.
        with torch.inference_mode():
            for keys, values in self.kv:
                # Empty slots have weight 0, and 0 times NaN is NaN.
                keys.zero_()
                values.zero_()
            if prompt.shape[1] > 1:
                step.read(weights, self.kv, prompt[:, :-1], 0, self.config)
        # 3. Decode. Plain sampling happens inside the compiled step; any other sampling outside,
        #    from its logits, and then the noise that is passed to the step does not matter.
        plain = sampling == PLAIN
        ones = torch.ones(noise.shape[1:], dtype=torch.float32)
        # Tensors of one position each, made in advance: a step only looks the next one up.
        positions = torch.arange(self.capacity).split(1)[prompt.shape[1] - 1 :]
        token = prompt[:, -1].to(torch.int64).contiguous()
        for pos, row in zip(positions, noise, strict=False):
            inside = row.float().contiguous() if plain else ones
            token, logits = self.package.boxed_run([token, pos, inside])
            if not plain:
                token = sample(logits, row, sampling)[:, 0]
            yield token[:, None].clone()  # the caller may write into it; the next step reads ours
        del bound  # only now: the compiled step holds addresses, not references


# ------------------------------------------------------------------ CUDA graphs
# A GPU runs this model's kernels faster than Python can launch them one by one. A graph launches a
# whole step at once. Everything that changes from token to token (the token, its position, its
# noise) is advanced on the device, so nothing waits for the host.


class Graph(Exclusive):
    """Rung 6 on CUDA. One decode step with sampling, captured; Python replays it per token."""

    plain_only = True
    steps = 1  # steps captured in one graph

    def build(self) -> None:
        if self.device.type != "cuda":
            raise CannotBuild(f"a CUDA graph needs a CUDA device, not {self.device.type}")
        try:
            self._allocate()
            self.replay = self._capture(self._steps)
        except RuntimeError as error:
            raise CannotBuild(f"the step cannot be captured: {first_line(error)}") from error

    def _allocate(self) -> None:
        c = self.config
        B = self.batch
        # The last replay runs all of its steps, even if fewer tokens are wanted: it needs room.
        size = self.capacity + self.steps
        # 1. The graph's own weights, keys and values, at addresses that never change.
        weights = flatten(Decoder(c).to(device=self.device, dtype=self.dtype))
        # Copy the rotations: the table is shared, and a model with another base overwrites it.
        self.weights = weights._replace(positions=weights.positions.clone())
        self.kv = step.buffers(c, B, size, dtype=self.dtype, device=self.device)
        # 2. What goes in: all noise of a text. What comes out: all of its tokens.
        self.noise = torch.ones(size, B, c.vocab_size, device=self.device)
        self.out = self._zeros(size, B, 1)
        # 3. What a step advances on the device: the last token, its position, and how many tokens
        #    are sampled, which is the row of the noise to use next.
        self.token = self._zeros(B, 1)
        self.pos = self._zeros(1)
        self.count = self._zeros(1)
        self.slots = torch.arange(size, device=self.device)

    def _zeros(self, *shape: int) -> Tensor:
        return torch.zeros(shape, dtype=torch.int64, device=self.device)

    def _capture(self, work: Callable[[], None]) -> Callable[[], None]:
        """A function that replays `work`, captured after three warm-up runs on a side stream."""
        # 1. Warm up, as PyTorch asks: libraries allocate and choose kernels in their first calls,
        #    which a graph cannot contain. The side stream keeps these out of the capture.
        side = torch.cuda.Stream(self.device)
        side.wait_stream(torch.cuda.current_stream(self.device))
        with torch.cuda.stream(side), torch.no_grad():
            for _ in range(3):
                work()
                self.pos.zero_()
                self.count.zero_()
        torch.cuda.current_stream(self.device).wait_stream(side)
        # 2. Record: the kernels of `work` are not run but listed, with the addresses they use.
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph), torch.no_grad():
            work()
        return graph.replay

    def _steps(self) -> None:
        for _ in range(self.steps):
            # Indices on the device, not Python numbers: those would be the same in every replay.
            noise = self.noise.index_select(0, self.count)[0]  # (B, V)
            self.token.copy_(sample(self._step(), noise))
            self.out.index_copy_(0, self.count, self.token[None])
            self.pos.add_(1)
            self.count.add_(1)

    def _step(self) -> Tensor:
        """One step at self.pos: attends over all slots and masks the empty ones.  -> (B, V)"""
        c = self.config
        masks = {window: self._seen(window) for window in step.windows(c)}

        def attend(i: int, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
            keys, values = self.kv[i]  # (B, Hkv, S, hs)
            keys.index_copy_(2, self.pos, k[:, :, None])
            values.index_copy_(2, self.pos, v[:, :, None])
            rows = q.unflatten(1, (c.kv_heads, c.group))  # (B, Hkv, G, hs)
            mask = masks[c.window_of(i)]
            return F.scaled_dot_product_attention(rows, keys, values, attn_mask=mask).flatten(1)

        # The clamp is for steps past the end, whose results are ignored.
        pos = self.pos.clamp(max=c.block_size - 1)
        position_row = F.embedding(pos, self.weights.positions)  # (1, C) or (1, 2 hs)
        return step.step(self.weights, self.token[:, 0], position_row, attend, c)

    def _seen(self, window: int | None) -> Tensor:
        """A mask of the slots that the token at self.pos sees.  -> (1, 1, 1, S)"""
        seen = self.slots <= self.pos
        if window is not None:
            seen &= (self.slots > self.pos - window) | (self.slots < self.config.sinks)
        return seen[None, None, None]

    @torch.no_grad()
    def _begin(self, model: LanguageModel, prompt: Tensor, noise: Tensor | Noise) -> None:
        # 1. The graph has fixed addresses, so copy the model's current weights there.
        targets = step.named_tensors(self.weights)
        sources = step.named_tensors(flatten(model))
        torch._foreach_copy_(list(targets.values()), list(sources.values()))
        # 2. Prefill, without the last token. Empty slots have weight 0, and 0 times NaN is NaN.
        for keys, values in self.kv:
            keys.zero_()
            values.zero_()
        if prompt.shape[1] > 1:
            step.read(self.weights, self.kv, prompt[:, :-1], 0, self.config)
        # 3. The first step reads the last token of the prompt, and uses the first row of noise.
        self.token.copy_(prompt[:, -1:])
        self.pos.fill_(prompt.shape[1] - 1)
        self.count.zero_()
        self.noise[: len(noise)] = noise[:]

    def run(
        self, model: LanguageModel, prompt: Tensor, noise: Tensor | Noise, sampling: SamplingParams
    ) -> Iterator[Tensor]:
        self._begin(model, prompt, noise)
        # A replay samples `steps` tokens. It is queued, and Python waits only where it reads one.
        for i in range(len(noise)):
            if i % self.steps == 0:
                self.replay()
            yield self.out[i].clone()


class GraphLoop(Graph):
    """Rung 7 on CUDA. Sixteen steps in one graph: Python runs once for sixteen tokens."""

    fallback = Graph
    steps = 16
