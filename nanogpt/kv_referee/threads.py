"""Two threads in a fixed order: they take turns before each line of Python, outside torch itself.

A scratch buffer that two threads share is then overwritten on every run, not once in a thousand.
This file imports nothing of the room: a script that shows a bug contains it.
"""

import os
import sys
import threading
import time
from collections.abc import Callable
from typing import Any

import torch

# Seconds: a thread that uses no processor time for this long waits for a lock of the other one. A
# first call into a library computes for longer than that: 0.1 s have been seen.
_PATIENCE = 0.05
_OWN = os.path.dirname(__file__)
# In no file below these are lines of the model's own code.
_APART = (_OWN, os.path.dirname(torch.__file__), "<frozen")
_STANDARD = os.path.dirname(os.__file__)


def _is_apart(name: str) -> bool:
    """Whether a file is torch's, Python's or the referee's."""
    installed = "site-packages" in name or "dist-packages" in name
    return name.startswith(_APART) or (name.startswith(_STANDARD) and not installed)


def seconds_of(thread: threading.Thread) -> float:
    """The processor time that a running thread has used; 0 where no system call tells."""
    clock_of = getattr(time, "pthread_getcpuclockid", None)  # Linux has it
    assert thread.ident is not None
    return 0.0 if clock_of is None else time.clock_gettime(clock_of(thread.ident))


def by_turns_in_threads(*runs: Callable[[], Any]) -> list[Any]:
    """Call these functions, each in a thread of its own; returns what they return.

    Raises what the first of them raised.
    """
    turn = threading.Condition()
    now = [0]  # whose turn it is
    running = set(range(len(runs)))
    waiting: set[int] = set()  # for a lock of another thread, as far as can be seen
    results: dict[int, Any] = {}
    errors: dict[int, BaseException] = {}
    inference = torch.is_inference_mode_enabled()
    begin = threading.Barrier(len(runs))

    def comes_back_to(me: int, other: int) -> bool:
        """Wait for the turn; False if the other thread, which has it, waits for a lock."""
        used = seconds_of(threads[other])
        while not turn.wait_for(lambda: now[0] == me or other not in running, _PATIENCE):
            before = used
            used = seconds_of(threads[other])
            if used - before < _PATIENCE / 10:
                return False
        return True

    def pass_on(me: int) -> None:
        """Let the next thread run a line, and wait until it has passed the turn on."""
        with turn:
            # 1. One that had waited for a lock moves again: it has no turn yet.
            if me in waiting:
                waiting.discard(me)
                turn.wait_for(lambda: now[0] == me or running <= {me}, _PATIENCE)
            # 2. The next one that can move.
            others = sorted(running - waiting - {me}, key=lambda i: (i < me, i))
            if others:
                now[0] = others[0]
                turn.notify_all()
                if not comes_back_to(me, others[0]):
                    waiting.add(others[0])  # for a lock that this thread holds
            now[0] = me

    def trace_of(me: int) -> Callable[..., Any]:
        def trace(frame: Any, event: str, argument: Any) -> Any:
            if _is_apart(frame.f_code.co_filename):
                return None
            if event == "line":
                pass_on(me)
            return trace

        return trace

    def run(me: int) -> None:
        begin.wait()
        with turn:
            turn.wait_for(lambda: now[0] == me or running <= {me})
        try:
            with torch.inference_mode(inference):
                sys.settrace(trace_of(me))
                results[me] = runs[me]()
        except BaseException as error:  # of any class: it is raised again in the caller's thread
            errors[me] = error
        finally:
            sys.settrace(None)
            with turn:
                running.discard(me)
                now[0] = min(running, default=0)
                turn.notify_all()

    threads = [threading.Thread(target=run, args=(i,), daemon=True) for i in range(len(runs))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if errors:
        raise errors[min(errors)]
    return [results[i] for i in range(len(runs))]
