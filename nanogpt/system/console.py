"""Progress and warnings on a terminal."""

from __future__ import annotations

import os
import sys
import warnings
from pathlib import Path


def headless() -> bool:
    """Whether to leave out progress bars: no terminal and no notebook, or TQDM_DISABLE is set."""
    if os.environ.get("TQDM_DISABLE", "0") not in ("", "0"):
        return True
    return not sys.stdout.isatty() and "ipykernel" not in sys.modules


def warn_caller(message: str) -> None:
    """Warn, pointing at the line outside this package that led here."""
    package, frame, level = Path(__file__).parents[1], sys._getframe(1), 2
    while frame.f_back is not None and package in Path(frame.f_code.co_filename).parents:
        frame, level = frame.f_back, level + 1
    warnings.warn(message, stacklevel=level)
