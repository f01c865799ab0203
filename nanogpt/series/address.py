"""The repository's address on GitHub, owner/name, set by `make badges`; empty until then."""

REPO = ""
REF = "main"
