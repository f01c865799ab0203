"""The page of the public names, written by pdoc: one file that needs no network.

pdoc documents a module with the names in its `__all__`. Ours has the public names and, because
readers need them to use those, the classes that these inherit from, take and return.
"""

from __future__ import annotations

import re
import warnings
from functools import cache
from importlib import import_module
from importlib.util import find_spec
from types import ModuleType
from typing import Any

import nanogpt

from ..files import ROOT
from .html import TEMPLATE_FOLDER

_OURS = re.compile(
    r"\b(nanogpt(?:\.\w+)+)\.([A-Z]\w*)"
)  # a class of this package, as pdoc names it


@cache
def api_page() -> str | None:
    """The documentation of every public name; None where pdoc is not installed."""
    if find_spec("pdoc") is None:
        return None
    import pdoc.doc
    import pdoc.render

    pdoc.render.configure(
        search=False,
        show_source=False,
        template_directory=TEMPLATE_FOLDER / "pdoc",
    )
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # pdoc's, about names that only type checkers import
        module = pdoc.doc.Module(documented())
        # The docstring of a constant is in the source of its own module.
        for name in ("SIZES", "RECIPES"):
            home = import_module(f"nanogpt.{nanogpt._MODULE[name]}")
            module.members[name].docstring = pdoc.doc.Module(home).members[name].docstring
        page = pdoc.render.html_module(module, {"nanogpt": module})
    return page.replace(f"{ROOT}/", "")  # in the default value of a path


def documented() -> ModuleType:
    """A module of the public names, in the order of the package, and of what they lead to."""
    from pdoc.doc import Class, Function, Module

    # 1. The public names; looking one up imports it.
    found: dict[str, Any] = {name: getattr(nanogpt, name) for name in nanogpt._MODULE}
    for member in Module(nanogpt).members.values():
        # 2. The classes of this package that one inherits from.
        names = []
        if isinstance(member, Class):
            names += [(base.__module__, base.__name__) for base in member.obj.__mro__]
            member = member.members.get("__init__", member)
        # 3. The classes of this package that it takes and returns.
        if isinstance(member, Function):
            names += _OURS.findall(str(member.signature))
        for home, name in names:
            if home.startswith("nanogpt.") and not name.startswith("_"):
                found.setdefault(name, getattr(import_module(home), name))
    shown = ModuleType("nanogpt", nanogpt.__doc__)
    vars(shown).update(found, __all__=list(found))
    return shown
