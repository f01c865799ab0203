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


FEW = 8  # rows of a table that are always run, unless its mark `rows` gives another number
PART = 16  # of a longer table, every sixteenth row


def rows_of(table):
    """How many rows of a table are run by default; 0 leaves a test that takes long to a release."""
    mark = table[0].get_closest_marker("rows")
    if mark:
        return min(len(table), *mark.args)
    return min(len(table), max(FEW, len(table) // PART))


def pytest_collection_modifyitems(config, items):
    """Of long tables a part of the rows, evenly spaced; NANOGPT_ROWS=all or -k runs all of them."""
    chosen = config.option.keyword or any("::" in argument for argument in config.args)
    if os.environ.get("NANOGPT_ROWS") != "all" and not chosen:
        tables = {}
        for item in items:
            name = getattr(item, "originalname", item.name)
            tables.setdefault((item.path, item.cls, name), []).append(item)
        left = []
        for rows in tables.values():
            count = rows_of(rows)
            kept = {(i + 1) * len(rows) // count - 1 for i in range(count)}  # the last row is one
            left += [row for i, row in enumerate(rows) if i not in kept]
        if left:
            config.hook.pytest_deselected(items=left)
            gone = {id(item) for item in left}
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
