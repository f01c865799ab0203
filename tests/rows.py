"""Rows of a long table: a few show its promise in every run, all of them run for a release."""

from collections.abc import Iterable

import pytest


def quick(table: Iterable, *always: object) -> list:
    """For parametrize: the rows of these names, and the others marked as a release's."""
    rows = list(table)
    unknown = set(always) - set(rows)
    assert not unknown, f"no rows of the table: {sorted(unknown)}"
    return [
        pytest.param(row, marks=[pytest.mark.release] * (row not in always), id=str(row))
        for row in rows
    ]
