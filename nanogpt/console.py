"""Progress on a terminal and in a notebook, and errors in a line."""

import os
import sys

from tqdm import tqdm


class Progress(tqdm):
    """A bar on a terminal and in a notebook; elsewhere, and where TQDM_DISABLE is set, nothing.

    It is on stdout, like the lines beside it: JupyterLab shows stderr apart, in red.
    """

    def __init__(self, total: int, name: str, *, hidden: bool = False, **options):
        off = hidden or os.environ.get("TQDM_DISABLE", "0") not in ("", "0")
        off |= not (sys.stdout.isatty() or "ipykernel" in sys.modules)
        options |= {"desc": name, "disable": off, "leave": False, "mininterval": 0.5}
        super().__init__(total=total, file=sys.stdout, **options)

    def print(self, line: str) -> None:
        """Print a line above the bar."""
        self.write(line)
        sys.stdout.flush()


def first_line(error: Exception) -> str:
    """The first line of an error's message."""
    return (str(error).strip() or type(error).__name__).splitlines()[0][:200]
