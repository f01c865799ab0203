"""Real notebooks in this process: an IPython shell in place of a kernel, which would take seconds.

What a cell shows is kept as a kernel sends it: streams, displayed data, the value of a last line.
"""

from __future__ import annotations

import contextlib
import os
import random
import runpy
import signal
import socket
import sys
import warnings
from concurrent.futures import Future

import nbformat
import numpy as np
import pytest
import torch
from IPython.core.displayhook import DisplayHook
from IPython.core.displaypub import DisplayPublisher
from IPython.core.interactiveshell import InteractiveShell
from matplotlib import pyplot
from nbformat import v4

from nanogpt.files import ROOT
from nanogpt.series.execute import ENVIRONMENT, NotebookError, save
from nanogpt.training.signals import STOPS

# What cells assert of a model's shape, which is smaller here.
SMALLER = {
    "assert reach == 4 * 15": "assert reach == 15",
    "assert today ==": "assert today or today ==",
}


class Stream:
    """Standard output or standard error of a cell: what is written becomes its output."""

    encoding = "utf-8"

    def __init__(self, name: str, outputs: list):
        self.name = name
        self.outputs = outputs

    def write(self, text: str) -> int:
        last = self.outputs[-1] if self.outputs else {}
        if last.get("name") == self.name:
            last["text"] += text
        elif text:
            self.outputs.append(v4.new_output("stream", name=self.name, text=text))
        return len(text)

    def flush(self) -> None:
        pass

    def isatty(self) -> bool:
        return False


class Publisher(DisplayPublisher):
    """What `display` shows, without a front end."""

    def publish(self, data, metadata=None, *_, **__):
        shown = v4.new_output("display_data", data=data, metadata=metadata or {})
        self.shell.outputs.append(shown)


class LastLine(DisplayHook):
    """The value of a cell's last line."""

    def write_output_prompt(self):
        pass

    def write_format_data(self, format_dict, md_dict=None):
        shown = v4.new_output("execute_result", data=format_dict, metadata=md_dict or {})
        self.shell.outputs.append(shown)


class Shell(InteractiveShell):
    """A notebook's shell. `run(cell)` raises NotebookError, which names the cell, as a run does."""

    def __init__(self, **more):
        super().__init__(display_pub_class=Publisher, displayhook_class=LastLine, **more)
        self.outputs = []

    def init_history(self):
        super().init_history()
        self.history_manager.enabled = False  # nothing is written to the user's own history

    def _showtraceback(self, etype, evalue, stb):
        error = v4.new_output("error", ename=etype.__name__, evalue=str(evalue), traceback=stb)
        self.outputs.append(error)

    def run(self, cell: nbformat.NotebookNode) -> None:
        """Run a code cell and put its outputs into it."""
        self.outputs = []
        out = Stream("stdout", self.outputs)
        err = Stream("stderr", self.outputs)
        with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
            result = self.run_cell(smaller(cell.source), store_history=True, cell_id=cell.id)
        cell.outputs = [nbformat.from_dict(output) for output in self.outputs]
        error = result.error_before_exec or result.error_in_exec
        if isinstance(error, Exception):
            words = f"{type(error).__name__}: {error}".partition("\n")[0]
            raise NotebookError(f"cell {cell.id!r}: {words}") from error
        if error:  # a Ctrl-C, which is no error of the cell's
            raise error


def smaller(source: str) -> str:
    for theirs, here in SMALLER.items():
        source = source.replace(theirs, here)
    return source


@contextlib.contextmanager
def restored():
    """What a notebook changes in its process is as it was before: the next one starts fresh."""
    threads = torch.get_num_threads()
    dtype = torch.get_default_dtype()
    exact = torch.are_deterministic_algorithms_enabled()
    states = torch.get_rng_state(), np.random.get_state(), random.getstate()
    variables = dict(os.environ)
    path = list(sys.path)
    folder = os.getcwd()
    handlers = {number: signal.getsignal(number) for number in STOPS}
    try:
        with warnings.catch_warnings(), torch.random.fork_rng(devices=[]):
            yield
    finally:
        torch.set_num_threads(threads)
        torch.set_default_dtype(dtype)
        torch.use_deterministic_algorithms(exact)
        torch.set_rng_state(states[0])
        np.random.set_state(states[1])
        random.setstate(states[2])
        os.environ.clear()
        os.environ.update(variables)
        sys.path[:] = path
        os.chdir(folder)
        for number, handler in handlers.items():
            signal.signal(number, handler)
        pyplot.close("all")


@contextlib.contextmanager
def shell():
    """A new shell: no name from another notebook is known in it."""
    InteractiveShell.clear_instance()
    made = Shell.instance()
    try:
        yield made
    finally:
        made.restore_sys_module_state()
        made.reset(new_session=False)
        Shell.clear_instance()


def run_in_shell(nb_man, kernel_name, *, options, **_) -> None:
    """papermill's engine without a kernel: the cells run here, in a shell of their own."""
    variables, target, _timeout, before_cell = options
    try:
        with restored(), shell() as here:
            for name, value in {**ENVIRONMENT, **variables}.items():
                os.environ.pop(name, None) if value is None else os.environ.update({name: value})
            os.chdir(ROOT)
            for index, cell in enumerate(nb_man.nb.cells):
                if cell.cell_type == "code":
                    before_cell(index, cell)
                    here.run(cell)
    finally:
        save(nb_man.nb, target)


def one_process(words, processes: int) -> str:
    """In place of torchrun: its program in this process alone, as the only one of its group."""
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    with pytest.MonkeyPatch.context() as patch:
        place = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": f"{port}"}
        for name, value in {**place, "RANK": "0", "WORLD_SIZE": "1"}.items():
            patch.setenv(name, value)
        patch.setattr(sys, "argv", list(words))
        runpy.run_path(words[0], run_name="worker")
    return ""


class Inline:
    """A ThreadPoolExecutor whose work is done at once, in the thread that asks: the main one."""

    def __init__(self, *_):
        pass

    def __enter__(self):
        return self

    def __exit__(self, *_):
        pass

    def submit(self, work, *arguments):
        future = Future()
        future.set_result(work(*arguments))
        return future


def no_kernels(patch: pytest.MonkeyPatch) -> None:
    """The command `run` runs its notebooks in this process, one after another."""
    patch.setattr("nanogpt.series.execute.Strict.execute_managed_notebook", run_in_shell)
    patch.setattr("nanogpt.series.runner.ThreadPoolExecutor", Inline)
    patch.setattr("nanogpt.training.processes.torchrun", one_process)
