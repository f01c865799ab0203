"""Two threads take turns, line by line, however long a line takes."""

import time

import pytest

from nanogpt.kv_referee.threads import by_turns_in_threads


@pytest.mark.skipif(
    not hasattr(time, "pthread_getcpuclockid"), reason="no system call tells a thread's time"
)
def test_a_line_that_computes_for_long_keeps_the_turn():
    """As a first call into a library does: with Python 3.13.0 it took 0.1 s."""
    seen = []

    def first():
        seen.append("first 1")
        seen.append("first 2")
        seen.append("first 3")

    def second():
        sum(range(30_000_000))  # a few tenths of a second, without a line of Python
        seen.append("second 2")
        seen.append("second 3")

    by_turns_in_threads(first, second)
    assert seen == ["first 1", "first 2", "second 2", "first 3", "second 3"]
