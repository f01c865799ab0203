"""What runs and renders notebooks, outside of their kernels. Imports no torch."""

import sys

# On import, jsonschema (which nbformat needs) compiles a grammar of addresses with this package
# where it is installed. That takes 3 seconds, and notebooks have no such field.
sys.modules.setdefault("rfc3987_syntax", None)
