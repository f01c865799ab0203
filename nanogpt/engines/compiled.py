"""The decode step with its sampling as one compiled call: alone on a CPU, in a CUDA graph on a GPU.

torch.compile turns `next_token` into a few fused loops, in C++ for a CPU and in Triton for a GPU.
Noise is an input, so sampling is arithmetic like everything else. A CUDA graph records the step
once and replays it.
"""

from __future__ import annotations

import logging
import warnings
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from ..console import first_line
from ..decoder import step
from ..decoder.config import DecoderConfig
from ..decoder.model import Decoder
from ..decoder.pack import flatten
from ..generation import UncachedReader
from ..model import LanguageModel
from ..sampling import PLAIN, SamplingParams, sample
from . import toolchain
from .base import check_float32, require_float32_cpu, warn_caller
from .eager import Exclusive
from .noise import Noise
from .shape import Shape
from .toolchain import CannotBuild

MOST_STEPS = 16  # in one CUDA graph
PROOF = 64  # most tokens of the text that compares a graph with the model

# (weights, keys and values, tokens (B,), position (1,), noise (B, V)) -> tokens (B,), logits (B, V)
NextToken = Callable[[step.Weights, step.Buffers, Tensor, Tensor, Tensor], tuple[Tensor, Tensor]]

OPTIONS: dict[str, str | int | bool | Callable[..., Any]] = {
    # Inductor inlines values that are cheap to recompute. At its default threshold (30) it repeats
    # a LayerNorm for each row of the matrix after it; at 0 it stores products before summing them.
    # Both were slower here, at 0.22M parameters and at 10.8M.
    "realize_opcount_threshold": 5,
    "realize_reads_threshold": 5,
    # An engine has one shape, which is checked before a generation, so nothing is left to check in
    # a step. Without these checks a step of 0.37M parameters takes four fifths of the time.
    "size_asserts": False,
    "guard_filter_fn": lambda guards: [False] * len(guards),
    # No subprocess to test each instruction set: the CPU's own list of them is enough.
    "cpp.vec_isa_ok": True,
}


def next_token(
    w: step.Weights,
    kv: step.Buffers,
    token: Tensor,
    pos: Tensor,
    noise: Tensor,
    c: DecoderConfig,
    fused: bool = True,
) -> tuple[Tensor, Tensor]:
    """Read one token of each text, at position `pos` of all of them, and sample the next.

    (B,) tokens, (1,) position, (B, V) noise -> (B,) tokens, (B, V) logits. `fused` selects the form
    of the products: for a compiler, or for kernels that are called one by one.
    """
    # The shapes are fixed, so attention reads all S slots in every step and gives the slots that
    # this token does not see a weight of 0.
    slots = torch.arange(kv[0][0].shape[2], device=token.device)
    seen = {window: seen_slots(slots, pos, window, c.sinks) for window in step.windows(c)}

    def attend(i: int, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        # 1. Write the new key and value into slot `pos`, in place: no cache grows.
        keys, values = kv[i]  # (B, Hkv, S, hs)
        keys.index_copy_(2, pos, k[:, :, None])
        values.index_copy_(2, pos, v[:, :, None])
        q = q.unflatten(1, (c.kv_heads, c.group))  # (B, Hkv, G, hs)
        mask = seen[c.window_of(i)]  # (1, 1, 1, S)
        if not fused:
            return F.scaled_dot_product_attention(q, keys, values, attn_mask=mask).flatten(1)
        # 2. Products and sums instead of matmuls: Inductor can fuse them with the softmax.
        scores = (keys[:, :, None] * q[..., None, :]).sum(-1) * c.head_size**-0.5  # (B, Hkv, G, S)
        shares: Tensor = scores.masked_fill(~mask, float("-inf")).softmax(-1)
        return (shares[..., None] * values[:, :, None]).sum(3).flatten(1)  # (B, H hs)

    # The clamp is for the last replay of a graph: its steps past the end are not used.
    row = F.embedding(pos.clamp(max=len(w.positions) - 1), w.positions)  # (1, C), or (1, 2 hs)
    logits = step.step(w, token, row, attend, c, fused_linear if fused else F.linear)  # (B, V)
    return sample(logits, noise)[:, 0], logits


def fused_linear(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """F.linear; for a single vector as products and sums, which Inductor can fuse."""
    if len(x) > 1:
        return F.linear(x, weight, bias)
    y = (weight * x).sum(-1)[None]
    return y if bias is None else y + bias


def seen_slots(slots: Tensor, pos: Tensor, window: int | None, sinks: int) -> Tensor:
    """A mask of the slots that the token at `pos` sees.  (S,), (1,) -> (1, 1, 1, S)"""
    seen = slots <= pos
    if window is not None:
        seen = seen & ((slots > pos - window) | (slots < sinks))
    return seen[None, None, None]


def compiled(c: DecoderConfig) -> NextToken:
    """`next_token` for models of this config, to be compiled in its first call."""

    def one_step(
        w: step.Weights, kv: step.Buffers, token: Tensor, pos: Tensor, noise: Tensor
    ) -> tuple[Tensor, Tensor]:
        return next_token(w, kv, token, pos, noise, c)

    # torch.compile keeps its results beside the code of a function, and without guards any of them
    # would serve every shape. So each engine has a copy of the code.
    one_step.__code__ = one_step.__code__.replace()
    # A copy of the options: torch.compile takes out those that it uses itself.
    return torch.compile(one_step, fullgraph=True, dynamic=False, options=dict(OPTIONS))


def empty_kv(shape: Shape) -> step.Buffers:
    """Zeroed keys and values of each layer, (B, Hkv, S, hs); keys lie in memory as (B, Hkv, hs, S).

    So the inner loop of a CPU, over the slots, reads neighbouring numbers.
    """
    c = shape.config
    rows = (shape.batch, c.kv_heads)
    kv: step.Buffers = []
    for _ in range(c.n_layer):
        keys = torch.zeros((*rows, c.head_size, shape.capacity), dtype=torch.float32).mT
        values = torch.zeros((*rows, shape.capacity, c.head_size), dtype=torch.float32)
        kv.append((keys, values))
    return kv


def prefill(w: step.Weights, kv: step.Buffers, prompt: Tensor, c: DecoderConfig) -> None:
    """Read all of a prompt but its last token, which the first step reads."""
    for keys, values in kv:
        # Empty slots have weight 0, and 0 times NaN is NaN.
        keys.zero_()
        values.zero_()
    if prompt.shape[1] > 1:
        step.read(w, kv, prompt[:, :-1], 0, c)


class Compiled(Exclusive):
    """Rung 5. The step and its sampling as one compiled call; builds once, for ten seconds."""

    def build(self) -> None:
        super().build()
        require_float32_cpu(self.shape)
        toolchain.machine()  # asks the compiler before Inductor does: this error says what to set
        self.kv = empty_kv(self.shape)
        self.step = compiled(self.config)
        # Compile it now, on weights that are then forgotten.
        token = torch.zeros(self.shape.batch, dtype=torch.int64)
        noise = torch.ones(self.shape.batch, self.config.vocab_size)
        weights = self._weights(Decoder(self.config).float())
        try:
            with torch.no_grad(), warnings.catch_warnings():
                warnings.simplefilter("ignore")  # torch's warnings about its own code
                logging.getLogger("torch.utils.cpp_extension").setLevel("ERROR")  # nvcc, no GPU
                self.step(weights, self.kv, token, torch.tensor([0]), noise)
        except Exception as error:  # a compiler fails in many ways
            cause = f"{type(error).__name__}: {first_line(error)}"
            raise CannotBuild(f"the step cannot be compiled: {cause}") from error

    def _weights(self, model: LanguageModel) -> step.Weights:
        """The model's weights in the form that was compiled: the same memory where it has that."""
        named = step.named_tensors(flatten(model))
        check_float32(named.values())
        plain = {name: tensor.detach().contiguous() for name, tensor in named.items()}
        return step.from_names(plain, self.config.n_layer)

    def run(
        self, model: LanguageModel, prompt: Tensor, noise: Tensor | Noise, sampling: SamplingParams
    ) -> Iterator[Tensor]:
        # 1. Eager PyTorch reads the prompt: the compiled step reads one token of each text.
        weights = self._weights(model)
        with torch.inference_mode():
            prefill(weights, self.kv, prompt, self.config)
        # 2. Decode. Plain sampling happens inside the compiled step; any other sampling outside,
        #    from its logits, and then the noise that is passed to the step does not matter.
        plain = sampling == PLAIN
        ones = torch.ones(noise.shape[1:], dtype=torch.float32)
        # Tensors of one position each, made in advance: a step only looks the next one up.
        positions = torch.arange(self.shape.capacity).split(1)[prompt.shape[1] - 1 :]
        token = prompt[:, -1].to(torch.int64).contiguous()
        for pos, row in zip(positions, noise, strict=False):
            inside = row.float().contiguous() if plain else ones
            with torch.no_grad():
                token, logits = self.step(weights, self.kv, token, pos, inside)
            if not plain:
                token = sample(logits, row, sampling)[:, 0]
            yield token[:, None].clone()  # the caller may write into it; the next step reads ours


# ------------------------------------------------------------------ CUDA graphs
# A GPU runs this model's kernels faster than Python can launch them one by one. A graph launches a
# whole step at once. Everything that changes from token to token (the token, its position, its
# noise) is advanced on the device, so nothing waits for the host.


class Graph(Exclusive):
    """Rung 5 on CUDA. The compiled step, captured in a graph; Python replays it per token."""

    plain_only = True
    steps = 1  # steps captured in one graph
    proven = False  # whether its logits have been compared with those of a model
    is_compiled = True

    def build(self) -> None:
        super().build()
        kind = self.shape.device.type
        if kind != "cuda":
            raise CannotBuild(f"a CUDA graph needs a CUDA device, not {kind}")
        try:
            self._allocate()
            try:
                self._capture(compiled(self.config))
            except Exception as error:  # no Triton, or a compiler that fails
                self._capture_uncompiled(f"torch.compile fails here ({first_line(error)})")
        except RuntimeError as error:
            raise CannotBuild(f"the step cannot be captured: {first_line(error)}") from error

    def _allocate(self) -> None:
        c = self.config
        B = self.shape.batch
        dtype = self.shape.dtype
        device = self.shape.device
        # The last replay runs all of its steps, even if fewer tokens are wanted: it needs room. The
        # same room in both graphs, so that torch finds the other one's kernels in its cache.
        size = self.shape.capacity + MOST_STEPS
        # 1. The graph's own weights, keys and values, at addresses that never change. A copy of
        #    each: tied weights are compiled separately, and the table of rotations is shared.
        weights = step.named_tensors(flatten(Decoder(c).to(device, dtype)))
        own = {name: tensor.detach().clone() for name, tensor in weights.items()}
        self.weights = step.from_names(own, c.n_layer)
        self.kv = step.buffers(c, B, size, dtype=dtype, device=device)
        # 2. What goes in: all noise of a text. What comes out: all of its tokens.
        self.noise = torch.ones(size, B, c.vocab_size, device=device)
        self.out = self._zeros(size, B)
        # 3. What a step advances on the device: the last token, its position, and how many tokens
        #    are sampled, which is the row of the noise to use next.
        self.token = self._zeros(B)
        self.pos = self._zeros(1)
        self.count = self._zeros(1)

    def _zeros(self, *shape: int) -> Tensor:
        return torch.zeros(shape, dtype=torch.int64, device=self.shape.device)

    def _capture(self, one_step: NextToken) -> None:
        """Record the steps of a replay, after three warm-up runs on a side stream."""
        # 1. Warm up, as PyTorch asks: compilers compile, and libraries allocate and choose kernels,
        #    in their first calls, which a graph cannot contain. The side stream keeps these out of
        #    the capture.
        side = torch.cuda.Stream(self.shape.device)
        side.wait_stream(torch.cuda.current_stream(self.shape.device))
        with torch.cuda.stream(side), torch.no_grad():
            for _ in range(3):
                self._to_the_beginning()
                self._steps(one_step)
            self._to_the_beginning()  # of buffers that may have room for one replay alone
        torch.cuda.current_stream(self.shape.device).wait_stream(side)
        # 2. Record: the kernels are not run but listed, with the addresses they use.
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph), torch.no_grad():
            self._steps(one_step)
        self.replay = graph.replay

    def _capture_uncompiled(self, reason: str) -> None:
        """Record the same step as PyTorch's own kernels, one by one, and say why."""
        warn_caller(f"{type(self).__name__} runs the step uncompiled: {reason}")
        self.is_compiled = False
        self._capture(partial(next_token, c=self.config, fused=False))

    def _to_the_beginning(self) -> None:
        self.pos.zero_()
        self.count.zero_()

    def _steps(self, one_step: NextToken) -> None:
        for i in range(self.steps):
            # Indices on the device, not Python numbers: those would be the same in every replay.
            noise = self.noise.index_select(0, self.count)[0]  # (B, V)
            token, logits = one_step(self.weights, self.kv, self.token, self.pos, noise)
            if i == 0:
                self.logits = logits  # held, so no other tensor of the graph takes its memory
            self.token.copy_(token)
            self.out.index_copy_(0, self.count, token[None])
            self.pos.add_(1)
            self.count.add_(1)

    @torch.no_grad()
    def _begin(self, model: LanguageModel, prompt: Tensor) -> None:
        # 1. The graph has fixed addresses, so copy the model's current weights there.
        targets = step.named_tensors(self.weights)
        sources = step.named_tensors(flatten(model))
        torch._foreach_copy_(list(targets.values()), list(sources.values()))
        # 2. Prefill. The first step reads the last token of the prompt.
        prefill(self.weights, self.kv, prompt, self.config)
        self.token.copy_(prompt[:, -1])
        self.pos.fill_(prompt.shape[1] - 1)
        self.count.zero_()

    def _prove(self, model: LanguageModel) -> None:
        """Compare the graph's logits after a text with the model's own, once for an engine.

        A compiler may be wrong on a device that nobody tried. Then the step runs uncompiled; if
        that is wrong too, raises ValueError.
        """
        # 1. A text of its own, as a prompt may be a single token, which attends to nothing else.
        places = torch.arange(min(self.shape.capacity, PROOF), device=self.shape.device)
        rows = torch.arange(self.shape.batch, device=self.shape.device)
        text = (7 * places + 3 * rows[:, None]) % self.config.vocab_size  # (B, T)
        with torch.no_grad():
            own = UncachedReader(model).read(text)[:, -1]
        if not own.isfinite().all():  # nothing to compare with: wait for another model
            return
        # 2. Rounding leaves more than half of the digits, an error fewer. But sharp attention
        #    amplifies rounding, in bfloat16 to 29 %. So ask how far Flat is from the model.
        flat = self.reader(model).read(text)[:, -1]
        allowed = max(self._eps() ** 0.5, 4 * _difference(flat, own))
        # 3. The graph reads the last token, after a prefill of the others.
        while not self.proven:
            self._begin(model, text)
            self.replay()
            found = _difference(self.logits, own)
            self.proven = found <= allowed
            wrong = f"its logits differ from the model's by {found:.1e} of their size, "
            wrong += f"and rounding in {self.shape.dtype} allows {allowed:.1e}"
            if not self.proven and not self.is_compiled:
                raise ValueError(f"{type(self).__name__}: {wrong}: use Flat, or leave engine out")
            if not self.proven:
                self._capture_uncompiled(wrong)

    def _eps(self) -> float:
        """The rounding of one product, relative to it."""
        if self.shape.dtype == torch.float32 and torch.get_float32_matmul_precision() != "highest":
            return 2**-10  # TF32
        return torch.finfo(self.shape.dtype).eps

    def run(
        self, model: LanguageModel, prompt: Tensor, noise: Tensor | Noise, sampling: SamplingParams
    ) -> Iterator[Tensor]:
        if not self.proven:
            self._prove(model)
        self._begin(model, prompt)
        self.noise[: len(noise)] = noise[:]
        # A replay samples `steps` tokens. It is queued, and Python waits only where it reads one.
        for i in range(len(noise)):
            if i % self.steps == 0:
                self.replay()
            yield self.out[i, :, None].clone()


def _difference(a: Tensor, b: Tensor) -> float:
    """The distance of two tensors, relative to the size of the second."""
    return float((a.float() - b.float()).norm() / b.float().norm())


class GraphLoop(Graph):
    """Rung 6 on CUDA. Sixteen steps in one graph: Python runs once for sixteen tokens."""

    steps = MOST_STEPS
