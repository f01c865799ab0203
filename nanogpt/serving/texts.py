"""Which texts wait, which run, and which blocks are whose: everything but who reads in a step."""

from __future__ import annotations

from collections import deque

from ..config.checks import check_int
from .blocks import ROOT, BlockPool, block_hash
from .request import Sequence, State

Plan = list[tuple[Sequence, int]]  # texts of one step, and how many tokens of each are read


class Texts:
    """The queue, the texts that run, oldest first, and their blocks of `block_len` positions.

    In a step at most `budget` tokens are read (None: no limit), and at most `max_running` texts
    hold blocks at a time. Raises ValueError for numbers below 1.
    """

    def __init__(self, pool: BlockPool, block_len: int, budget: int | None, max_running: int):
        check_int("block_len", block_len, 1)
        check_int("max_running", max_running, 1)
        if budget is not None:
            check_int("budget", budget, 1)
        self.pool, self.block_len = pool, block_len
        self.budget = 2**31 if budget is None else budget
        self.max_running = max_running
        self.waiting: deque[Sequence] = deque()
        self.running: list[Sequence] = []

    def blocks_for(self, length: int) -> int:
        """Blocks that so many positions need."""
        return -(-length // self.block_len)

    def add(self, text: Sequence) -> None:
        """The text joins the end of the queue. Raises ValueError if it can never fit."""
        request = text.request
        need = self.blocks_for(text.n_prompt + request.max_new_tokens - 1)
        if need > self.pool.n_blocks:
            raise ValueError(
                f"request {request.id!r}: a prompt of {text.n_prompt} and "
                f"{request.max_new_tokens} new tokens need {need} blocks of {self.block_len} "
                f"positions, and the pool has {self.pool.n_blocks}: ask for fewer tokens, or for "
                f"n_blocks={need}"
            )
        self.waiting.append(text)

    def admit(self) -> Sequence | None:
        """Let the first of the queue run, on blocks that are there already where it has some.

        None, and nothing happens, while there are too few blocks for all that is to be read.
        """
        text = self.waiting[0]
        found = self.pool.find(self._hashes(text)) if self.pool.reuse else []
        kept = sum(self.pool.users[block] == 0 for block in found)
        if self.blocks_for(len(text.tokens)) - len(found) + kept > self.pool.available:
            return None
        for block in found:
            self.pool.share(block)
        text.blocks, text.shared = found, len(found) * self.block_len
        text.computed = min(text.shared, len(text.tokens) - 1)  # logits need one token to be read
        text.state = State.RUNNING
        self.running.append(self.waiting.popleft())
        return text

    def make_room(self, text: Sequence, n: int) -> bool:
        """Blocks for n more tokens, from the youngest text if need be. False if that is this one.

        Nothing is lost: the youngest goes back to the front of the queue and is read again.
        """
        while len(text.blocks) * self.block_len < text.computed + n:
            if self.pool.available:
                text.blocks.append(self.pool.take())
                continue
            youngest = self.running.pop()
            self._free(youngest, State.PREEMPTED)
            self.waiting.appendleft(youngest)
            if youngest is text:
                return False
        return True

    def ahead(self, plan: Plan, most: int) -> int:
        """Steps, at most `most`, in which these texts do nothing but decode, or end.

        More than 1 only where all texts that run decode. Nobody else can be admitted before one of
        them ends, and who ends leaves the step to the others. The blocks for them are taken.
        """
        if most == 1 or len(plan) < len(self.running):
            return 1
        if any(text.pending > 1 for text, _ in reversed(plan)):  # the youngest may be in its prompt
            return 1
        texts = [text for text, _ in plan]
        left = [text.left for text in texts]
        for steps in range(min(most, max(left)), 1, -1):
            ends = [t.computed + min(steps, n) for t, n in zip(texts, left, strict=True)]
            more = [
                max(0, self.blocks_for(end) - len(text.blocks))
                for text, end in zip(texts, ends, strict=True)
            ]
            if sum(more) <= self.pool.available:
                for text, n in zip(texts, more, strict=True):
                    text.blocks += [self.pool.take() for _ in range(n)]
                return steps
        return 1

    def advance(self, plan: Plan) -> None:
        """These tokens were read: their keys and values are held, and full blocks can be found."""
        for text, n in plan:
            before, text.computed = text.computed, text.computed + n
            full = range(before // self.block_len, text.computed // self.block_len)
            if full and self.pool.reuse:
                hashes = self._hashes(text)
                for i in full:
                    self.pool.publish(text.blocks[i], hashes[i])

    def finish(self, text: Sequence) -> None:
        """The text leaves, wherever it stands. Its blocks are free for others."""
        (self.running if text.state is State.RUNNING else self.waiting).remove(text)
        self._free(text, State.FINISHED)

    def audit(self) -> None:
        """Raises AssertionError when a block was lost, or is held by a text that is gone."""
        assert not any(text.blocks for text in self.waiting), "a text that waits holds blocks"
        self.pool.audit([text.blocks for text in self.running])

    def _free(self, text: Sequence, state: State) -> None:
        self.pool.release(text.blocks)
        text.blocks, text.computed, text.shared, text.state = [], 0, 0, state

    def _hashes(self, text: Sequence) -> list[bytes]:
        """The hashes of the text's full blocks; each is computed once."""
        size, hashes = self.block_len, text.hashes
        for i in range(len(hashes), len(text.tokens) // size):
            parent = hashes[-1] if hashes else ROOT
            hashes.append(block_hash(parent, text.tokens[i * size : (i + 1) * size]))
        return hashes
