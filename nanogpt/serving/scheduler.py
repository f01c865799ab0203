"""Which sequences wait, which run, and how many tokens each of them reads in the next step."""

from __future__ import annotations

from collections import deque

from .blocks import BlockManager
from .request import Sequence, State


class Scheduler:
    """First come, first served; a step mixes sequences that decode with chunks of prompts.

    A sequence that decodes reads one token, one that was admitted reads its prompt: all of it, or
    as much as the `budget` of the step leaves. Those that run, oldest first, come before those that
    wait, so no prompt makes them wait. At most `max_running` hold blocks at a time.
    """

    def __init__(self, block_manager: BlockManager, budget: int, max_running: int):
        self.block_manager, self.budget, self.max_running = block_manager, budget, max_running
        self.waiting: deque[Sequence] = deque()
        self.running: list[Sequence] = []

    def schedule(self) -> list[Sequence]:
        """The sequences of the next step, each with its num_scheduled_tokens."""
        batch, left = [], self.budget
        for seq in list(self.running):
            n = min(seq.pending, left)
            # The youngest loses its blocks when an older one needs them.
            if n and seq.state is State.RUNNING and self._reserve(seq, n):
                batch.append(seq)
                left -= n
        while left and self.waiting and len(self.running) < self.max_running:
            seq = self.waiting[0]
            if not self.block_manager.admit(seq):
                break
            seq.state = State.RUNNING
            self.running.append(self.waiting.popleft())
            n = min(seq.pending, left)
            self._reserve(seq, n)
            batch.append(seq)
            left -= n
        return batch

    def _reserve(self, seq: Sequence, n: int) -> bool:
        """Schedule n tokens, if need be in blocks of the youngest. False if that is this one.

        Nothing is lost: the youngest goes back to the front of the queue and is read again.
        """
        while not self.block_manager.extend(seq, seq.num_computed_tokens + n):
            youngest = self.running.pop()
            self.block_manager.free(youngest)
            youngest.state = State.PREEMPTED
            self.waiting.appendleft(youngest)
            if youngest is seq:
                return False
        seq.num_scheduled_tokens = n
        return True

    def finish(self, seq: Sequence) -> None:
        """The sequence leaves, wherever it stands. Its blocks are free for others."""
        (self.running if seq.state is State.RUNNING else self.waiting).remove(seq)
        self.block_manager.free(seq)
        seq.state = State.FINISHED
