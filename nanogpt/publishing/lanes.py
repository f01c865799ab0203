"""Notebooks side by side: a cell that measures time runs while no other cell does."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import contextmanager


class Turns:
    """Who may compute now: any number of those that measure nothing, or one that does, alone.

    One that waits to be alone goes before those that come after it.
    """

    def __init__(self):
        self.changed = threading.Condition()
        self.together = 0  # how many compute that measure nothing
        self.alone = False  # whether one measures
        self.waiting = 0  # how many wait to be alone

    @contextmanager
    def taken(self):
        """A turn for the length of a with-block; gives a function that changes its kind.

        `change(True)` waits until no other computes, `change(False)` until none is alone.
        """
        turn = Turn(self)
        turn.begin(False)
        try:
            yield turn.change
        finally:
            turn.end()


class Turn:
    """One that computes."""

    def __init__(self, turns: Turns):
        self.turns, self.kind = turns, None  # None: it waits

    def change(self, alone: bool) -> None:
        if not (alone and self.kind):  # else it goes on alone; the others give way to who waits
            self.end()
            self.begin(alone)

    def begin(self, alone: bool) -> None:
        turns = self.turns
        with turns.changed:
            turns.waiting += alone
            try:
                if alone:
                    turns.changed.wait_for(lambda: not (turns.alone or turns.together))
                    turns.alone = True
                else:
                    turns.changed.wait_for(lambda: not (turns.alone or turns.waiting))
                    turns.together += 1
                self.kind = alone
            finally:
                turns.waiting -= alone
                turns.changed.notify_all()

    def end(self) -> None:
        turns = self.turns
        with turns.changed:
            if self.kind is not None:
                turns.alone = False if self.kind else turns.alone
                turns.together -= not self.kind
                self.kind = None
            turns.changed.notify_all()


def in_lanes(
    jobs: Sequence,
    work: Callable[[object], bool],
    lanes: int,
    *,
    stop: Callable[[], None] = lambda: None,
) -> None:
    """Call work(job) for every job in their order, in so many lanes; this thread is one of them.

    When a call returns False no more jobs begin. An error, a Ctrl-C too, ends every lane: `stop()`
    is called until all have ended, then it is raised again.
    """
    left, errors = deque(jobs), []

    def other_lane() -> None:
        try:
            _work_off(left, work)
        except BaseException as error:  # it is raised in the first lane
            left.clear()
            errors.append(error)

    others = [threading.Thread(target=other_lane, daemon=True) for _ in range(lanes - 1)]
    for thread in others:
        thread.start()
    try:
        _work_off(left, work)
        for thread in others:
            thread.join()
    except BaseException:
        left.clear()
        while alive := [thread for thread in others if thread.is_alive()]:
            stop()
            alive[0].join(0.5)
        raise
    if errors:
        raise errors[0]


def _work_off(left: deque, work: Callable[[object], bool]) -> None:
    while True:
        try:
            job = left.popleft()
        except IndexError:  # none is left
            return
        if not work(job):
            left.clear()
