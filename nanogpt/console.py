"""Progress bars in a terminal and a notebook, and errors in one line."""

import os
import sys

from tqdm import tqdm


class Progress(tqdm):
    """A progress bar in a terminal or a notebook; hidden elsewhere, or if TQDM_DISABLE is set.

    It goes to stdout, like the lines around it: JupyterLab shows stderr separately, in red.
    """

    def __init__(self, total: int, name: str, *, hidden: bool = False, **options):
        # 1. Switched off by the caller or by tqdm's own environment variable.
        off = hidden or os.environ.get("TQDM_DISABLE", "0") not in ("", "0")
        # 2. A bar redraws its line. In a log file or a pipe that would be thousands of lines,
        #    so there is none unless a terminal or a notebook shows it.
        terminal = sys.stdout is not None and sys.stdout.isatty()  # None: it was closed
        off |= not (terminal or "ipykernel" in sys.modules)
        # 3. A finished bar disappears, so that only results stay on the page.
        options |= {"desc": name, "disable": off, "leave": False, "mininterval": 0.5}
        super().__init__(total=total, file=sys.stdout, **options)

    def print(self, line: str) -> None:
        """Print a line above the bar."""
        if sys.stdout is not None:
            self.write(line)
            sys.stdout.flush()


def first_line(error: BaseException) -> str:
    """The first line of an error's message, at most 200 characters; its class if it has none."""
    # Torch, compilers and parsers append a trace of their own, which hides the cause.
    return (str(error).strip() or type(error).__name__).splitlines()[0][:200]
