"""Notebooks side by side: who measures is alone, an error ends all lanes, nothing runs twice."""

import threading

import pytest

from nanogpt.publishing.lanes import Turns, in_lanes


def test_one_that_measures_is_alone_and_is_let_in_between_the_cells_of_the_others():
    """The other notebook gives way at its next cell, or who measures would wait for its end."""
    turns, order, inside = Turns(), [], threading.Event()

    def measure():
        with turns.taken() as change:
            inside.set()
            change(True)
            order.append("alone")
            assert (turns.together, turns.alone) == (0, True)
            change(True)  # the next cell measures as well
            order.append("still alone")
            change(False)

    with turns.taken() as change:
        thread = threading.Thread(target=measure, daemon=True)
        thread.start()
        inside.wait(10)
        with turns.changed:
            assert turns.changed.wait_for(lambda: turns.waiting == 1, 10), "it waits for this one"
        order.append("a cell of mine")
        change(False)  # my next cell
        order.append("my next")
    thread.join(10)
    assert order == ["a cell of mine", "alone", "still alone", "my next"]
    assert (turns.together, turns.alone, turns.waiting) == (0, False, 0)


@pytest.mark.parametrize("lanes", [1, 2, 3])
def test_every_job_is_done_once_in_their_order(lanes):
    done = []
    in_lanes(range(20), lambda job: done.append(job) or True, lanes)
    assert sorted(done) == list(range(20))
    assert lanes > 1 or done == list(range(20))


def test_after_a_false_no_job_begins():
    done = []
    in_lanes(range(5), lambda job: done.append(job) or job < 2, 1)
    assert done == [0, 1, 2]


@pytest.mark.parametrize("error", [KeyboardInterrupt, OSError])
def test_an_error_in_this_lane_stops_the_other(error):
    both, ended = threading.Barrier(2, timeout=10), threading.Event()
    main = threading.current_thread()

    def work(job):
        both.wait()
        if threading.current_thread() is main:
            raise error("stop")
        assert ended.wait(10), "nobody stopped this lane"
        return True

    with pytest.raises(error):
        in_lanes(range(9), work, 2, stop=ended.set)


def test_an_error_of_the_other_lane_is_raised_here():
    both, main = threading.Barrier(2, timeout=10), threading.current_thread()

    def work(job):
        both.wait()
        if threading.current_thread() is not main:
            raise OSError("the disk is full")
        return False

    with pytest.raises(OSError, match="the disk is full"):
        in_lanes(range(2), work, 2)
