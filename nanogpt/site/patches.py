"""Patches of third-party modules. Import this before nbformat.

jsonschema, which nbformat needs, takes seconds to compile a grammar of addresses on import.
Notebooks have no such field, so the grammar is compiled only when it is first needed.
"""

from __future__ import annotations

import sys
from importlib import import_module, util
from types import ModuleType

_GRAMMAR = "rfc3987_syntax"


def _is_valid_syntax(*words: str) -> bool:
    """The grammar's own function, compiled now."""
    return bool(import_module(_GRAMMAR).is_valid_syntax(*words))


if _GRAMMAR not in sys.modules and util.find_spec(_GRAMMAR):
    later = ModuleType(_GRAMMAR)
    vars(later)["is_valid_syntax"] = _is_valid_syntax
    sys.modules[_GRAMMAR] = later
    try:
        import_module("jsonschema")
    finally:
        del sys.modules[_GRAMMAR]
