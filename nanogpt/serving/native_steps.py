"""Steps computed in native code (decoder.cpp); each row is bit-identical in any batch."""

from __future__ import annotations

import ctypes
from array import array

import torch

from ..decoder.config import decoder_config
from ..decoder.pack import flatten
from ..decoder.step import rotations
from ..engines.base import check_float32
from ..engines.decoder_library import (
    CCache,
    CSequence,
    CTurn,
    Packed,
    Work,
    decoder_library,
    up,
    weights_of,
)
from ..engines.native import Native, steps_of_a_call
from ..engines.noise import Noise
from ..engines.toolchain import CannotBuild
from ..model import LanguageModel
from .backend import BackendType, SamplingBackend
from .memory import unused_zeros
from .modules import ModuleBackend
from .sequence import Sequence

_CPU = torch.device("cpu")  # native code runs here, whatever the default device is


class NativeSequence(CSequence):
    """A sequence as a C struct, with the memory that it points to."""

    def __init__(self, seq: Sequence, block_len: int):
        request = seq.request
        sampling = request.sampling
        length = seq.num_prompt_tokens + request.max_new_tokens
        self.all_tokens = array("q", seq.tokens + [0] * (length - len(seq.tokens)))
        self.block_numbers = array("q", [0] * -(-length // block_len))
        self.stop_tokens = array("q", request.stop)
        self.known: list[int] | None = None  # the block table that `block_numbers` is a copy of
        self.n_known = 0  # how many of its numbers are copied
        self.address = ctypes.addressof(self)
        super().__init__(
            tokens=self.all_tokens.buffer_info()[0],
            table=self.block_numbers.buffer_info()[0],
            noise=None,
            noise_stride=0 if seq.noise is None else seq.noise.shape[-1],
            noise_from=seq.num_prompt_tokens,
            top_k=sampling.top_k or 0,
            temperature=sampling.temperature,
            top_p=1.0 if sampling.top_p is None else sampling.top_p,
            stops=self.stop_tokens.buffer_info()[0],
            n_stops=len(self.stop_tokens),
            stops_from=seq.num_prompt_tokens + request.min_new_tokens,
        )

    def draw_noise(self, noise: Noise, seq: Sequence, n: int) -> None:
        """Draw the noise of the next n tokens; its first row in memory is for `noise_from`."""
        noise.draw(seq.num_new_tokens, n)
        self.noise = noise.rows.data_ptr()
        self.noise_from = seq.num_prompt_tokens + noise.first

    def copy(self, blocks: list[int]) -> None:
        """Copy the block table. A table only grows, so copy only new numbers of the same table."""
        start = self.n_known if self.known is blocks else 0
        self.known = blocks
        self.n_known = len(blocks)
        self.block_numbers[start : len(blocks)] = array("q", blocks[start:])


class NativeBackend(SamplingBackend):
    """The fast backend: every architecture, in float32, on torch.get_num_threads() CPU threads.

    A request's logits are bit-identical alone, in any batch, with any chunking of its prompt, with
    or without shared blocks, on any number of threads. Tokens are also sampled here, so that
    several steps are one call. It packs a copy of the weights: the model must not change while it
    is served. Raises CannotBuild without a C++ compiler.
    """

    def __init__(self, model: LanguageModel, n_blocks: int, block_len: int):
        self.library = decoder_library()
        self.config = decoder_config(model.config)
        self.packed = Packed(self.config)
        weights = flatten(model)
        check_float32(weights_of(weights))
        self.packed.pack(weights)
        # Zeros, because native code multiplies slots past block_len by 0.
        sizes = self.packed.cache_sizes(n_blocks, block_len)
        self.keys, self.values = (unused_zeros((n,), torch.float32, _CPU) for n in sizes)
        addresses = self.keys.data_ptr(), self.values.data_ptr()
        self.cache = CCache(*addresses, n_blocks, block_len)
        self.work = Work()
        self.block_len = block_len
        self.rotary = self.config.rotary
        self.logits_width = up(self.config.vocab_size, self.packed.lanes)
        self.n_positions = len(weights.positions)
        self.logits = torch.empty(0, self.config.vocab_size, dtype=torch.float32, device=_CPU)

    @classmethod
    def refuses_model(cls, model: LanguageModel) -> str | None:
        if (model.device.type, model.dtype) != ("cpu", torch.float32):
            return f"native code reads float32 on the CPU, not {model.dtype} on {model.device}"
        refusal = Native.refuses_model(model)
        return None if refusal is None else f"{refusal.reason}: use ModuleBackend"

    def most_steps(self, n_sequences: int) -> int:
        return steps_of_a_call(self.config, n_sequences)

    def draw(self, batch: list[Sequence], steps: list[int]) -> list[list[int]]:
        """As SamplingBackend.draw.

        Writes the tokens of each NativeSequence, its noise and the cache.
        """
        # 1. Bring each sequence's C struct up to date, and describe what to read of it.
        turns = (CTurn * len(batch))()
        longest = 0
        n_logits = 0
        for turn, seq, n_new in zip(turns, batch, steps, strict=True):
            native = seq.native
            if native is None:
                native = seq.native = NativeSequence(seq, self.block_len)
            # Its blocks may be new ones: it has taken more, or has lost all of them meanwhile.
            blocks = seq.block_table
            n_blocks = len(blocks)
            if native.n_known != n_blocks or native.known is not blocks:
                native.copy(blocks)
            # Randomness is drawn here and not in C++, so that it is PyTorch's, as in `generate`.
            if n_new and seq.noise is not None:
                native.draw_noise(seq.noise, seq, n_new)
            longest = max(longest, n_blocks)
            turn.sequence = native.address
            turn.start = seq.num_computed_tokens
            turn.count = seq.num_scheduled_tokens
            turn.cached = seq.num_cached_tokens
            turn.steps = n_new
            turn.wanted = seq.wanted
            n_logits += seq.wanted + max(0, n_new - 1)
        # 2. Reserve the memory that the call writes to: C++ allocates nothing that Python reads.
        most = max(1, *steps)
        self._grow(n_logits, longest * self.block_len)
        drawn = array("q", bytes(8 * len(batch) * most))
        # 3. All steps, with sampling, in one call. It releases the GIL, so the server's event loop
        #    goes on meanwhile.
        self.library.run_steps(
            self.packed.address,
            ctypes.addressof(self.cache),
            self.work.address,
            ctypes.addressof(turns),
            len(batch),
            most,
            1,  # keep the logits of all steps
            self.logits.data_ptr(),
            drawn.buffer_info()[0],
            torch.get_num_threads(),
        )
        # 4. Each sequence has `most` places for tokens, of which the first n_new are filled.
        return [
            drawn[row : row + n_new].tolist()
            for row, n_new in zip(range(0, len(drawn), most), steps, strict=True)
        ]

    def _grow(self, n_logits: int, positions: int) -> None:
        """Make room for `n_logits` rows of logits and the rotations of `positions` positions."""
        if len(self.logits) < n_logits:
            shape = n_logits, self.logits_width
            self.logits = torch.empty(shape, dtype=torch.float32, device=_CPU)
        if self.rotary and self.n_positions < positions:
            self.n_positions = up(positions, 1024)
            self.packed.rotate_to(rotations(self.n_positions, self.config, torch.float32, _CPU))


BACKENDS: dict[str, BackendType] = {"native": NativeBackend, "modules": ModuleBackend}


def choose_backend(model: LanguageModel) -> tuple[str, str]:
    """The fastest of BACKENDS for this model on this machine, and why it is not the native one."""
    try:
        reason = NativeBackend.refuses_model(model)
        if not reason:
            decoder_library()
            return "native", ""
    except CannotBuild as error:
        reason = str(error)
    return "modules", reason
