"""What runs and renders notebooks, outside of their kernels. Imports no torch."""

import sys
from importlib import import_module, util
from types import SimpleNamespace

# On import, jsonschema (which nbformat needs) would compile a grammar of addresses with this
# package, for seconds. Notebooks have no such field: it is compiled when one is first checked.
_GRAMMAR = "rfc3987_syntax"
if _GRAMMAR not in sys.modules and util.find_spec(_GRAMMAR):
    later = SimpleNamespace(is_valid_syntax=lambda *x: import_module(_GRAMMAR).is_valid_syntax(*x))
    sys.modules[_GRAMMAR] = later
    try:
        import_module("jsonschema")
    finally:
        del sys.modules[_GRAMMAR]
