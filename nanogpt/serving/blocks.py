"""The owner of all blocks of keys and values. Counts blocks; knows no tensors.

As in vLLM (Kwon et al. 2023, PagedAttention, arXiv 2309.06180), but for one process. A sequence
takes a block when it needs one. A full block is known by a hash of its tokens and of all before it,
so that a sequence that begins in the same way shares it. Unused full blocks are kept until their
memory is needed.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterable
from hashlib import sha256
from itertools import takewhile

from .request import Sequence

ROOT = b""  # the parent of a sequence's first block


def block_hash(parent: bytes, tokens: list[int]) -> bytes:
    """The name of a full block: of its own tokens, and through its parent of all before them.

    Keys and values of a position depend on every token up to it. So two blocks of equal tokens hold
    the same numbers only where everything before them is equal, too.
    """
    return sha256(parent + array("q", tokens).tobytes()).digest()


class BlockManager:
    """`n_blocks` blocks of `block_len` positions: held by one sequence or more, or kept, or empty.

    With reuse=False nothing is kept and nothing found: every sequence computes all of its own.
    """

    def __init__(self, n_blocks: int, block_len: int, reuse: bool = True):
        self.n_blocks = n_blocks
        self.block_len = block_len
        self.reuse = reuse
        self.ref_counts = [0] * n_blocks  # how many sequences hold each block
        self.empty = list(range(n_blocks))[::-1]
        self.kept: dict[int, None] = {}  # full, and held by nobody; the longest unused first
        self.block_of: dict[bytes, int] = {}
        self.hash_of: dict[int, bytes] = {}

    @property
    def available(self) -> int:
        """Blocks that sequences can take."""
        return len(self.empty) + len(self.kept)

    def blocks_for(self, length: int) -> int:
        """Blocks that so many positions need."""
        return -(-length // self.block_len)

    def admit(self, seq: Sequence) -> bool:
        """Give a sequence the blocks in which its beginning lies already.

        False, and nothing happens, while there are too few blocks for all that is to be read.
        """
        hashes = self._hashes(seq) if self.reuse else []
        cached = [self.block_of[name] for name in takewhile(self.block_of.__contains__, hashes)]
        revived = sum(self.ref_counts[block] == 0 for block in cached)
        if self.blocks_for(len(seq.tokens)) - len(cached) + revived > self.available:
            return False
        for block in cached:
            self.kept.pop(block, None)
            self.ref_counts[block] += 1
        seq.block_table = cached
        seq.num_cached_tokens = len(cached) * self.block_len
        # Cached tokens whose logits were requested are computed again.
        seq.num_computed_tokens = min(seq.num_cached_tokens, seq.num_shown_tokens)
        return True

    def extend(self, seq: Sequence, length: int) -> bool:
        """Blocks for the first `length` positions of a sequence. False if too few are left."""
        n_new = self.blocks_for(length) - len(seq.block_table)
        if n_new > self.available:
            return False
        seq.block_table += [self._take() for _ in range(n_new)]
        return True

    def extend_all(self, seqs: list[Sequence], counts: list[int]) -> bool:
        """Blocks for so many more positions of each. False, and nothing happens, if too few are."""
        lengths = [seq.num_computed_tokens + n for seq, n in zip(seqs, counts, strict=True)]
        new = (self.blocks_for(n) - len(s.block_table) for s, n in zip(seqs, lengths, strict=True))
        return sum(n for n in new if n > 0) <= self.available and all(
            self.extend(seq, length) for seq, length in zip(seqs, lengths, strict=True)
        )

    def advance(self, seq: Sequence, n: int) -> None:
        """The next n tokens of a sequence are computed, and what is full now can be found.

        Of equal blocks the first one is found.
        """
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
        """The sequence holds nothing any more."""
        self._release(seq.block_table)
        seq.block_table = []
        seq.num_computed_tokens = 0
        seq.num_cached_tokens = 0

    def audit(self, held: Iterable[Sequence]) -> None:
        """Raises AssertionError unless these sequences' blocks, and they alone, are held."""
        count = [0] * self.n_blocks
        for block in (block for seq in held for block in seq.block_table):
            count[block] += 1
        assert count == self.ref_counts, f"blocks held {count}, counted {self.ref_counts}"
        unused = sorted([*self.empty, *self.kept])
        assert unused == [b for b, n in enumerate(count) if n == 0], f"blocks lost: {unused}"
        assert {b: n for n, b in self.block_of.items()} == self.hash_of, "hashes do not match"
        assert set(self.kept) <= set(self.hash_of), "a block is kept that nobody can find"
        assert not set(self.empty) & set(self.hash_of), "an empty block can be found"

    def _take(self) -> int:
        """A block to write in: an empty one, or else the one that is unused for longest."""
        if self.empty:
            block = self.empty.pop()
        else:
            block = next(iter(self.kept))
            del self.kept[block]
            del self.block_of[self.hash_of.pop(block)]
        self.ref_counts[block] = 1
        return block

    def _release(self, blocks: list[int]) -> None:
        """One sequence fewer holds these. The last goes first: it is useless without the others."""
        for block in reversed(blocks):
            self.ref_counts[block] -= 1
            if self.ref_counts[block] == 0 and block in self.hash_of:
                self.kept[block] = None
            elif self.ref_counts[block] == 0:
                self.empty.append(block)

    def _hashes(self, seq: Sequence) -> list[bytes]:
        """The hashes of a sequence's full blocks; each is computed once."""
        size = self.block_len
        hashes = seq.block_hashes
        for i in range(len(hashes), len(seq.tokens) // size):
            parent = hashes[-1] if hashes else ROOT
            hashes.append(block_hash(parent, seq.tokens[i * size : (i + 1) * size]))
        return hashes
