"""The referee in any project's tests: pytest finds this fixture once the package is installed.

    def test_my_cache(assert_sound):
        assert_sound(MyAdapter(), seconds=30, known=["right padding"])

A bug fails the test with the referee's report. So does the verdict *undecided*, which means that
nothing was proved; `--undecided=skip`, or `assert_sound(…, undecided="skip")`, skips such a test
instead. The verdict is in the JUnit XML file, as a property of the test. The other options are
those of `referee`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from .report import Report

CHOICES = ("fail", "skip")


def pytest_addoption(parser: pytest.Parser) -> None:
    group = parser.getgroup("nanogpt", "referee for KV caches")
    about = "if the referee is undecided about a cache, fail its test (the default) or skip it"
    group.addoption("--undecided", choices=CHOICES, default="fail", help=about)


@pytest.fixture
def assert_sound(request: pytest.FixtureRequest) -> Callable[..., Report]:
    """A function that runs `referee` on a model, and fails or skips the test."""

    def judge(model: Any, *, undecided: str | None = None, **options: Any) -> Report:
        from .referee import referee
        from .report import Verdict

        undecided = undecided or request.config.getoption("--undecided")
        if undecided not in CHOICES:
            raise ValueError(f"undecided={undecided!r}: must be one of {', '.join(CHOICES)}")
        report = referee(model, **options)
        # record_property warns with the default JUnit family, and -W error makes that an error.
        request.node.user_properties.append(("cache verdict", str(report.verdict)))
        request.node.user_properties.append(("paths not reached", str(len(report.unreached))))
        if report.verdict is Verdict.UNDECIDED and undecided == "skip":
            pytest.skip(str(report))
        if not report.verdict.sound:
            pytest.fail(str(report), pytrace=False)
        return report

    return judge
