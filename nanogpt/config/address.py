"""The repository's address: written by `make badges REPO=owner/name`."""

from __future__ import annotations

# The repository's address, owner/name. The Colab badges and the set-up cell are written from
# it by `make badges REPO=owner/name`. As shipped it is no address at all (GitHub allows no
# underscore in an owner's name), so nobody can answer in our place.
REPO = "OWNER_NAME/nanogpt-notebooks"


REF = "main"
