"""Changes in other people's modules, and why. Import it before nbformat.

jsonschema, which nbformat needs, compiles a grammar of addresses when it is imported: seconds.
Notebooks have no such field. So the grammar is compiled when one is first checked.
"""

from __future__ import annotations

import sys
from importlib import import_module, util
from types import SimpleNamespace

_GRAMMAR = "rfc3987_syntax"
if _GRAMMAR not in sys.modules and util.find_spec(_GRAMMAR):
    later = SimpleNamespace(is_valid_syntax=lambda *x: import_module(_GRAMMAR).is_valid_syntax(*x))
    sys.modules[_GRAMMAR] = later
    try:
        import_module("jsonschema")
    finally:
        del sys.modules[_GRAMMAR]
