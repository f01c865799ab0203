"""Training prints plain lines here, whatever the tests are run in."""

import pytest


@pytest.fixture(autouse=True)
def plain_lines(monkeypatch):
    monkeypatch.setenv("TQDM_DISABLE", "1")
