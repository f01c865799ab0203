"""A request, the sequence that it becomes, and the blocks that hold its keys and values.

Blocks work as in vLLM (Kwon et al. 2023, PagedAttention, arXiv 2309.06180), for one process. A
sequence takes a block when it needs one. A full block is identified by a hash of its tokens and all
tokens before it, so sequences with a common prefix share it. Unused full blocks are kept until
their memory is needed. This module knows nothing about models; a block is just a number.
"""

from __future__ import annotations

from array import array
from collections.abc import Hashable, Iterable
from dataclasses import dataclass, field
from hashlib import sha256
from itertools import count, takewhile
from typing import Any, NamedTuple

import torch
from torch import Tensor

from .. import sampling as limits
from ..config import check_int, check_number, check_switch
from ..engines.noise import Noise
from ..sampling import PLAIN, SamplingParams


@dataclass(frozen=True, eq=False)
class Request:
    """One text to continue. Raises ValueError for invalid or inconsistent fields.

        Request(tokenizer.encode("ROMEO:"), 200, SamplingParams(temperature=0.8), seed=7)

    `prompt` (T,) holds tokens. Each request has its own randomness: noise from `seed`, drawn as in
    `generate`. So its tokens are those of generate(model, prompt[None], max_new_tokens, …) with
    this seed, no matter which other requests are served. `arrival` is in seconds after the start;
    `id` identifies it in errors (a number by default). `logprobs` asks for the log-probability of
    each sampled token and of that many most likely tokens; with `echo`, also for the prompt's
    tokens. They are the model's own: temperature, top_k and top_p do not affect them. The text ends
    after a token of `stop`. As in vLLM, stop tokens are not sampled among the first
    `min_new_tokens`: there their logits are -inf.
    """

    prompt: Tensor
    max_new_tokens: int
    sampling: SamplingParams = PLAIN
    seed: int = 1337
    arrival: float = 0.0
    id: Hashable = field(default_factory=count().__next__)
    logprobs: int | None = None
    echo: bool = False
    stop: tuple[int, ...] = ()
    min_new_tokens: int = 0

    def __post_init__(self) -> None:
        # Everything that needs no model is checked here, so an error names the line that made it.
        where = f"request {self.id!r}: "
        if not isinstance(self.id, Hashable):
            raise ValueError(f"{where}its id must be a number, a string or another hashable value")
        limits.check_prompt(self.prompt, ndim=1, where=where)
        limits.check_sampling(self.sampling, where=where)
        check_int(f"{where}max_new_tokens", self.max_new_tokens, 1, limits.MOST_NEW)
        check_number(f"{where}arrival", self.arrival, 0.0, 1e9)
        limits.check_seed(f"{where}seed", self.seed)
        check_switch(f"{where}echo", self.echo)
        check_int(f"{where}min_new_tokens", self.min_new_tokens, 0)
        if not isinstance(self.stop, tuple):
            raise ValueError(f"{where}stop={self.stop!r:.60}: pass a tuple of tokens such as (2,)")
        for token in self.stop:
            check_int(f"{where}stop", token, 0, limits.MOST_NEW)
        if self.logprobs is not None or self.echo:
            check_int(f"{where}logprobs", self.logprobs, 0, limits.MOST_NEW)

    def check(self, vocab_size: int, positions: int | None) -> None:
        """Raises ValueError if a model with this vocabulary and context cannot serve it."""
        where = f"request {self.id!r}: "
        low, high = torch.stack(self.prompt.aminmax()).tolist()
        limits.check_tokens(low, high, vocab_size, f"{where}the prompt holds")
        limits.check_length(len(self.prompt), self.max_new_tokens, positions, where)
        limits.check_sampling(self.sampling, vocab_size, where)
        if self.stop:
            limits.check_tokens(min(self.stop), max(self.stop), vocab_size, f"{where}stop holds")

    def ends_with(self, token: int, index: int) -> bool:
        """Whether this token, the new token number `index`, ends the text."""
        return token in self.stop and index >= self.min_new_tokens

    def noise(self, vocab_size: int) -> Noise | None:
        """The noise of its tokens; None if it needs none."""
        if self.sampling.greedy:
            return None
        generator = torch.Generator().manual_seed(self.seed)
        return Noise(generator, (self.max_new_tokens, 1, vocab_size))


class Sequence:
    """The text of a request: its tokens so far, and the blocks that hold their keys and values.

    The keys and values of its first `num_computed_tokens` are in the blocks of `block_table`. Those
    of the first `num_cached_tokens` were already there when it was admitted, computed for an
    earlier sequence. The next step reads `num_scheduled_tokens` more. The logits of the first
    `num_shown_tokens` have been returned, or were not requested.
    """

    def __init__(self, request: Request, noise: Noise | None):
        self.request = request
        self.running = False  # whether it holds blocks, and takes part in steps
        self.noise = noise  # None for greedy decoding
        self.native: Any = None  # its NativeSequence (native_steps.py), if native code serves it
        self.tokens: list[int] = request.prompt.tolist()
        self.num_prompt_tokens = len(self.tokens)
        self.num_new_tokens = 0
        self.block_table: list[int] = []
        self.block_hashes: list[bytes] = []  # of its full blocks
        self.num_computed_tokens = 0
        self.num_cached_tokens = 0
        self.num_scheduled_tokens = 0
        self.num_shown_tokens = 0 if request.echo else self.num_prompt_tokens - 1
        self.logprobs: list[Logprob] = []  # not yet returned

    @property
    def pending(self) -> int:
        """Tokens to read before the next one can be sampled: 1 while it decodes."""
        return len(self.tokens) - self.num_computed_tokens

    @property
    def draws(self) -> bool:
        """Whether the step reads all pending tokens, so that a new one is sampled."""
        return self.num_scheduled_tokens == self.pending

    @property
    def barred(self) -> tuple[int, ...]:
        """The tokens that must not be sampled next: the stop tokens, while the text is short."""
        request = self.request
        return request.stop if self.num_new_tokens < request.min_new_tokens else ()

    @property
    def next_noise(self) -> Tensor:
        """The noise of the next token, unless sampling is greedy.  (V,)"""
        assert self.noise is not None
        return self.noise.row(self.num_new_tokens)[0]

    @property
    def wanted(self) -> int:
        """How many of the step's last tokens need their logits returned."""
        n = self.num_scheduled_tokens
        return max(0, min(n, self.num_computed_tokens + n - self.num_shown_tokens))


class Logprob(NamedTuple):
    """A token's log-probability in nats: log_softmax of the logits before it."""

    token: int
    value: float | None  # None for the first token of a text, which nothing predicts
    top: dict[int, float]  # by token: those of the most likely tokens, as many as requested


class Output(NamedTuple):
    """One token of one request."""

    request: Request
    token: int
    index: int  # type: ignore[assignment]  # hides tuple.index; among the new tokens: 0, 1, …
    finished: bool  # whether it is the last
    logprobs: tuple[Logprob, ...] = ()  # its own; with echo, at index 0 after the prompt's


# ------------------------------------------------------------------ blocks

ROOT = b""  # the parent of a sequence's first block


def block_hash(parent: bytes, tokens: list[int]) -> bytes:
    """A hash of a full block's tokens and, through its parent, of all tokens before them.

    Keys and values of a position depend on every token up to it. So two blocks of equal tokens hold
    the same numbers only if all tokens before them are also equal.
    """
    return sha256(parent + array("q", tokens).tobytes()).digest()


class BlockManager:
    """`n_blocks` blocks of `block_len` positions: held by sequences, or reusable, or empty.

    With reuse=False no blocks are kept for reuse: every sequence computes all of its own.
    """

    def __init__(self, n_blocks: int, block_len: int, reuse: bool = True):
        self.n_blocks = n_blocks
        self.block_len = block_len
        self.reuse = reuse
        self.ref_counts = [0] * n_blocks  # how many sequences hold each block
        self.empty = list(range(n_blocks))[::-1]
        self.reusable: dict[int, None] = {}  # full, held by no sequence; least recently used first
        self.block_of: dict[bytes, int] = {}
        self.hash_of: dict[int, bytes] = {}

    @property
    def available(self) -> int:
        """Number of blocks that sequences can take."""
        return len(self.empty) + len(self.reusable)

    def blocks_for(self, length: int) -> int:
        """Number of blocks for `length` positions."""
        return -(-length // self.block_len)

    def admit(self, seq: Sequence) -> bool:
        """Give a sequence the blocks that already hold its prefix.

        Returns False and changes nothing if there are too few blocks for the rest of its tokens.
        """
        # 1. Its first blocks whose hashes are known hold what it would compute. Of a hash only a
        #    run from the beginning counts: a block depends on all tokens before it.
        hashes = self._hashes(seq) if self.reuse else []
        cached = [self.block_of[name] for name in takewhile(self.block_of.__contains__, hashes)]
        # 2. Is there room for the rest? A shared block that nobody holds now counts as available,
        #    and will not be any more.
        revived = sum(self.ref_counts[block] == 0 for block in cached)
        if self.blocks_for(len(seq.tokens)) - len(cached) + revived > self.available:
            return False
        # 3. Hold the shared blocks. It takes the others step by step, as it reads (`extend`).
        for block in cached:
            self.reusable.pop(block, None)
            self.ref_counts[block] += 1
        seq.block_table = cached
        seq.num_cached_tokens = len(cached) * self.block_len
        # 4. Begin to read after them, but not after the last token: its logits predict the first
        #    new one. With echo, all of the prompt's logits are requested, so all of it is read
        #    again.
        seq.num_computed_tokens = min(seq.num_cached_tokens, seq.num_shown_tokens)
        return True

    def extend(self, seq: Sequence, length: int) -> bool:
        """Take blocks for the first `length` positions of a sequence. False if too few are left."""
        n_new = self.blocks_for(length) - len(seq.block_table)
        if n_new > self.available:
            return False
        seq.block_table += [self._take() for _ in range(n_new)]
        return True

    def extend_all(self, seqs: list[Sequence], counts: list[int]) -> bool:
        """Take blocks for `counts` more positions. False, and no change, if too few are left."""
        lengths = []
        n_new = 0
        for seq, n in zip(seqs, counts, strict=True):
            length = seq.num_computed_tokens + n
            lengths.append(length)
            n_new += max(0, self.blocks_for(length) - len(seq.block_table))
        if n_new > self.available:
            return False
        return all(self.extend(seq, length) for seq, length in zip(seqs, lengths, strict=True))

    def advance(self, seq: Sequence, n: int) -> None:
        """Count a sequence's next n tokens as computed, and register blocks that are now full.

        Of several equal blocks only the first is registered.
        """
        # A full block is registered only now, after its step: before, it holds no keys and values
        # yet, and a sequence that found it would read whatever was there.
        first = seq.num_computed_tokens // self.block_len
        seq.num_computed_tokens += n
        full = range(first, seq.num_computed_tokens // self.block_len)
        if full and self.reuse:
            hashes = self._hashes(seq)
            for i in full:
                if hashes[i] not in self.block_of:
                    block = seq.block_table[i]
                    self.block_of[hashes[i]] = block
                    self.hash_of[block] = hashes[i]

    def free(self, seq: Sequence) -> None:
        """Release all blocks of a sequence."""
        self._release(seq.block_table)
        seq.block_table = []
        seq.num_computed_tokens = 0
        seq.num_cached_tokens = 0

    def audit(self, held: Iterable[Sequence]) -> None:
        """Raises AssertionError unless exactly these sequences' blocks are held."""
        count = [0] * self.n_blocks
        # 1. Each block is held as often as it is in a table.
        for seq in held:
            for block in seq.block_table:
                count[block] += 1
        assert count == self.ref_counts, f"blocks held {count}, counted {self.ref_counts}"
        # 2. Those that nobody holds are empty or reusable, each once.
        unused = sorted([*self.empty, *self.reusable])
        assert unused == [b for b, n in enumerate(count) if n == 0], f"blocks lost: {unused}"
        # 3. Only blocks that hold something have a hash, and it leads back to them.
        assert {b: n for n, b in self.block_of.items()} == self.hash_of, "hashes do not match"
        assert set(self.reusable) <= set(self.hash_of), "a reusable block has no hash"
        assert not set(self.empty) & set(self.hash_of), "an empty block has a hash"

    def _take(self) -> int:
        """A block to write to: an empty one, or else the least recently used reusable one."""
        if self.empty:
            block = self.empty.pop()
        else:
            # From here on nobody finds what it holds, which is about to be overwritten.
            block = next(iter(self.reusable))
            del self.reusable[block]
            del self.block_of[self.hash_of.pop(block)]
        self.ref_counts[block] = 1
        return block

    def _release(self, blocks: list[int]) -> None:
        """Drop a reference to each block, the last first: it is useless without the others."""
        for block in reversed(blocks):
            self.ref_counts[block] -= 1
            # A full one may serve a later sequence, so it goes to the end of the reusable ones; one
            # that is not full, or equal to a registered one, is of no use to anybody.
            if self.ref_counts[block] == 0 and block in self.hash_of:
                self.reusable[block] = None
            elif self.ref_counts[block] == 0:
                self.empty.append(block)

    def _hashes(self, seq: Sequence) -> list[bytes]:
        """The hashes of a sequence's full blocks, each computed only once."""
        size = self.block_len
        hashes = seq.block_hashes
        for i in range(len(hashes), len(seq.tokens) // size):
            parent = hashes[-1] if hashes else ROOT
            hashes.append(block_hash(parent, seq.tokens[i * size : (i + 1) * size]))
        return hashes
