"""The referee in the tests of any project: pytest finds this by itself once the package is there.

    def test_my_cache(assert_sound):
        assert_sound(MyModel(), seconds=30, known=["right padding"])

A bug fails the test with the referee's report; what is undecided skips it. The verdict stands in
JUnit's file, as a property of the test. Options are those of `referee`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from .report import Report


@pytest.fixture
def assert_sound(record_property: Callable[[str, object], None]) -> Callable[..., Report]:
    """A function that judges a model as `referee` does, and fails or skips the test."""

    def judge(model: Any, **options: Any) -> Report:
        from .referee import referee
        from .report import Verdict

        report = referee(model, **options)
        record_property("cache verdict", str(report.verdict))
        record_property("ways not reached", len(report.unreached))
        report.raise_for_bug()
        if report.verdict is Verdict.UNDECIDED:
            pytest.skip(str(report))
        return report

    return judge
