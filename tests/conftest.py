"""The order of the tests; what they share is in shared_fixtures.py, whose names are here as well.

The process that only hands tests to others does without: importing torch takes it 3 seconds.
"""

import gc
import importlib
import os
from collections import Counter

import pytest

pytest.register_assert_rewrite("shared_fixtures")


def __getattr__(name: str):
    if name.startswith(("pytest_", "_")):  # pytest looks for plugins and hooks
        raise AttributeError(name)
    return getattr(importlib.import_module("shared_fixtures"), name)


def pytest_configure(config):
    # The tests are of the CPU wherever they run, but for those that `-m gpu` asks for.
    if config.option.markexpr != "gpu":
        os.environ["CUDA_VISIBLE_DEVICES"] = ""
    if config.getoption("dist", "no") == "no" or config.option.collectonly:
        config.pluginmanager.import_plugin("shared_fixtures")


APART = ("release", "gpu")  # marks of tests that run only when they are asked for


def pytest_collection_modifyitems(config, items):
    """Leave out tests of APART, unless `-m` names their mark, or `-k` or `::` names tests."""
    named = config.option.keyword or any("::" in argument for argument in config.args)
    apart = [] if named else [mark for mark in APART if mark not in config.option.markexpr]
    left = [item for item in items if any(map(item.get_closest_marker, apart))]
    if left:
        config.hook.pytest_deselected(items=left)
        gone = set(map(id, left))
        items[:] = [item for item in items if id(item) not in gone]
    in_order(items)


def in_order(items):
    """The series, files with slow tests, those of many: two processes then end together."""
    slow = {item.path for item in items if item.get_closest_marker("slow")}
    size = Counter(item.path for item in items if item.path not in slow)  # 0 for slow ones
    first = "test_series.py"
    items.sort(key=lambda x: (x.path.name != first, x.path not in slow, -size[x.path]))


def pytest_collection_finish():
    """What lives as long as the run, half a million objects, is not looked through for garbage."""
    gc.freeze()
