"""Who holds which blocks of keys and values. Counts blocks; knows neither tensors nor requests.

As in vLLM (Kwon et al. 2023, PagedAttention, arXiv 2309.06180), but for one process. A text takes a
block when it needs one. A full block is known by a hash of its tokens and of all before it, so that
a text that begins in the same way shares it. What nobody uses is kept until its place is needed.
"""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from hashlib import sha256

from ..config.checks import check_int

ROOT = b""  # the parent of a text's first block


def block_hash(parent: bytes, tokens: Sequence[int]) -> bytes:
    """The name of a full block: of its own tokens, and through its parent of all before them.

    Keys and values of a position depend on every token up to it. So two blocks of equal tokens hold
    the same numbers only where everything before them is equal, too.
    """
    return sha256(parent + array("q", tokens).tobytes()).digest()


class BlockPool:
    """`n_blocks` blocks: each is held by one text or more, or kept for its content, or empty.

    With reuse=False nothing is kept and nothing found: every text computes all of its own.
    """

    def __init__(self, n_blocks: int, reuse: bool = True):
        check_int("n_blocks", n_blocks, 1)
        self.n_blocks, self.reuse = n_blocks, reuse
        self.users = [0] * n_blocks  # how many texts hold each block
        self.empty = list(range(n_blocks))[::-1]
        self.kept: dict[int, None] = {}  # full, and held by no text; the longest unused first
        self.block_of: dict[bytes, int] = {}
        self.hash_of: dict[int, bytes] = {}

    @property
    def available(self) -> int:
        """Blocks that `take` can give."""
        return len(self.empty) + len(self.kept)

    def take(self) -> int:
        """A block for one text to write in; what was kept there longest unused is forgotten.

        Raises IndexError when every block is held.
        """
        if self.empty:
            block = self.empty.pop()
        elif self.kept:
            block = next(iter(self.kept))
            del self.kept[block], self.block_of[self.hash_of.pop(block)]
        else:
            raise IndexError(f"all {self.n_blocks} blocks are held")
        self.users[block] = 1
        return block

    def share(self, block: int) -> None:
        """One more text holds this block."""
        self.kept.pop(block, None)
        self.users[block] += 1

    def release(self, blocks: Sequence[int]) -> None:
        """A text holds these blocks no more. The last one goes first: it needs those before it."""
        for block in reversed(blocks):
            self.users[block] -= 1
            if self.users[block] == 0 and block in self.hash_of:
                self.kept[block] = None
            elif self.users[block] == 0:
                self.empty.append(block)

    def publish(self, block: int, name: bytes) -> None:
        """This block is full: texts may find it under its hash, if no equal one was there first."""
        if self.reuse and name not in self.block_of:
            self.block_of[name], self.hash_of[block] = block, name

    def find(self, names: Sequence[bytes]) -> list[int]:
        """The blocks of these hashes, up to the first that is not there."""
        found = []
        for name in names:
            if name not in self.block_of:
                break
            found.append(self.block_of[name])
        return found

    def audit(self, held: Sequence[Sequence[int]]) -> None:
        """Raises AssertionError unless these texts' blocks, and they alone, are held."""
        count = [0] * self.n_blocks
        for block in (block for blocks in held for block in blocks):
            count[block] += 1
        assert count == self.users, f"blocks held {count}, counted {self.users}"
        unused = sorted([*self.empty, *self.kept])
        assert unused == [b for b, n in enumerate(count) if n == 0], f"blocks lost: {unused}"
        assert {b: n for n, b in self.block_of.items()} == self.hash_of, "hashes do not match"
        assert set(self.kept) <= set(self.hash_of), "a block is kept that nobody can find"
        assert not set(self.empty) & set(self.hash_of), "an empty block can be found"
