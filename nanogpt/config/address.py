"""The repository's address, owner/name, for Colab badges and the set-up cell.

`make badges REPO=owner/name` writes it; on GitHub the first push does. The one shipped cannot exist
(GitHub allows no underscore in an owner's name), so that nobody else's repository can answer in
place of ours.
"""

from __future__ import annotations

REPO = "OWNER_NAME/nanogpt-notebooks"
REF = "main"
