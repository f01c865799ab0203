"""The fixture `assert_sound` of kv_referee, with a referee that also takes a GPT or a server."""

from __future__ import annotations

from typing import Any

from ..kv_referee.plugin import fixture_of
from ..kv_referee.plugin import pytest_addoption as pytest_addoption
from ..kv_referee.report import Report


def _referee(model: Any, **options: Any) -> Report:
    from .referee import referee  # not at the top: pytest starts without torch

    return referee(model, **options)


_assert_sound = fixture_of(_referee)
