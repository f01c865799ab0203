"""The blanks of the notebooks, one page each, in the notebooks' order."""

from __future__ import annotations

from importlib import import_module
from pkgutil import iter_modules

from ..page import Blank


def _all_pages() -> dict[str, Blank]:
    """The BLANK of each module in this folder, by name."""
    modules = [import_module(f"{__name__}.{found.name}") for found in iter_modules(__path__)]
    pages: list[Blank] = [module.BLANK for module in modules]
    ordered = sorted(pages, key=lambda page: [int(part) for part in page.number.split(".")])
    return {page.name: page for page in ordered}


BLANKS = _all_pages()
