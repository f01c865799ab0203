"""The referee in the tests of any project: pytest finds this by itself once the package is there.

    def test_my_cache(assert_sound):
        assert_sound(MyModel(), seconds=30, known=["right padding"])

A bug fails the test with the referee's report; what is undecided skips it. The verdict stands in
JUnit's file, as a property of the test. Options are those of `referee`.
"""

from __future__ import annotations

import pytest


@pytest.fixture
def assert_sound(record_property):
    """A function that judges a model as `referee` does, and fails or skips the test."""

    def judge(model, **options):
        from .referee import referee

        report = referee(model, **options)
        record_property("cache verdict", report.verdict)
        record_property("ways not reached", len(report.unreached))
        report.raise_for_bug()
        if report.verdict == "undecided":
            pytest.skip(str(report))
        return report

    return judge
