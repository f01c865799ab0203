"""The referee in any project's tests: pytest finds this fixture once the package is installed.

    def test_my_cache(assert_sound):
        assert_sound(MyAdapter(), known=["a text forked after 20 of 40 tokens"])

A bug fails the test with the referee's report. So does the verdict *undecided*, which means that
nothing was proved; `--undecided=skip`, or `assert_sound(…, undecided="skip")`, skips such a test
instead. The verdict is in the JUnit XML file, as a property of the test. The other options are
those of `referee`.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from .report import Report

_CHOICES = ("fail", "skip")


def pytest_addoption(parser: pytest.Parser) -> None:
    group = parser.getgroup("kv-referee", "referee for KV caches")
    about = "if the referee is undecided about a cache, fail its test (the default) or skip it"
    # A project that carries this folder along may be installed beside it, and has added it already.
    with contextlib.suppress(ValueError):
        group.addoption("--undecided", choices=_CHOICES, default="fail", help=about)


def fixture_of(referee: Callable[..., Report]) -> Any:
    """The fixture `assert_sound` that asks this referee."""

    @pytest.fixture(name="assert_sound")
    def assert_sound(request: pytest.FixtureRequest) -> Callable[..., Report]:
        """A function that runs the referee on a model, and fails or skips the test."""

        def judge(model: Any, *, undecided: str | None = None, **options: Any) -> Report:
            undecided = undecided or request.config.getoption("--undecided")
            if undecided not in _CHOICES:
                raise ValueError(f"undecided={undecided!r}: must be one of {', '.join(_CHOICES)}")
            report = referee(model, **options)
            # record_property warns with the default JUnit family, and -W error makes that an error.
            properties = request.node.user_properties
            properties.append(("cache verdict", str(report.verdict)))
            properties.append(("paths not reached", str(len(report.unreached))))
            if str(report.verdict) == "undecided" and undecided == "skip":
                pytest.skip(str(report))
            if not report.verdict.sound:
                pytest.fail(str(report), pytrace=False)
            return report

        return judge

    return assert_sound


def _referee(model: Any, **options: Any) -> Report:
    from .trial import referee  # not at the top: pytest starts without torch

    return referee(model, **options)


assert_sound = fixture_of(_referee)
