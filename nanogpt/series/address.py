"""The repository's address on GitHub, owner/name, which `make badges` writes; empty until then."""

REPO = ""
REF = "main"
