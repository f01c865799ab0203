"""Fixtures for the tests of pages and figures."""

from site_fixtures import browser, chromium, little_corpus, no_live_page, phone  # noqa: F401
