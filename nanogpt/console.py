"""Progress on a terminal and in a notebook, and errors in a line."""

import os
import sys
from contextlib import AbstractContextManager

from tqdm import tqdm


class Progress(AbstractContextManager):
    """The progress of some work, shown until the with-block ends, however it ends.

    A bar on a terminal and in a notebook, on stdout like the lines beside it: JupyterLab shows
    stderr apart, in red. Elsewhere, and where TQDM_DISABLE is set, nothing.
    """

    def __init__(self, total: int, name: str, *, done: int = 0, hidden: bool = False, **options):
        off = hidden or os.environ.get("TQDM_DISABLE", "0") not in ("", "0")
        off |= not (sys.stdout.isatty() or "ipykernel" in sys.modules)
        options |= {"desc": name, "initial": done, "disable": off}
        self.bar = tqdm(total=total, file=sys.stdout, leave=False, mininterval=0.5, **options)

    def __exit__(self, *error) -> None:
        self.bar.close()

    def update(self, n: int = 1, note: str = "") -> None:
        """Count n more as done; `note` stands behind the bar."""
        if note and not self.bar.disable:
            self.bar.set_postfix_str(note, refresh=False)
        self.bar.update(n)

    def print(self, line: str) -> None:
        """Print a line above the bar."""
        print(line, flush=True) if self.bar.disable else self.bar.write(line)


def first_line(error: Exception) -> str:
    """The first line of an error's message."""
    return (str(error).strip() or type(error).__name__).splitlines()[0][:200]
