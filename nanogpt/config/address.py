"""The repository's address on GitHub, owner/name, for Colab badges and the set-up cell.

`make badges REPO=owner/name` writes it; on GitHub the first push does. It is empty until then, and
there are no badges.
"""

from __future__ import annotations

REPO = ""
REF = "main"
