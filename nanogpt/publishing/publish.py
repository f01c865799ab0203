"""outputs/published as a whole: what may go there, and how it is exchanged in one step."""

from __future__ import annotations

import shutil
from pathlib import Path

from ..data.corpus import SHA256, Corpus
from ..system.files import ROOT
from .parameters import RunError

# Where a run for publication works, and what stays there if it fails.
BUILD = ROOT / "outputs" / "run" / "publish"
# Notebook 01 trains it, all others load it: one model on every page.
WEIGHTS = "checkpoints/small.safetensors"


def check(flag: str, profile: str, corpus: Corpus, changed: bool) -> None:
    """Raise RunError unless this is what is published: cpu, all notebooks as they are, Shakespeare.

    `flag` is the option that asked for it, for the message.
    """
    if profile != "cpu":
        raise RunError(
            f"{flag} with profile {profile}: what is published was made with cpu, on any laptop"
        )
    if changed:
        raise RunError(
            f"{flag} runs all notebooks as they are: leave out names, -p, --out and --source"
        )
    if corpus.sha256 != SHA256:
        raise RunError(
            f"{flag} with {corpus.name}: put Tiny Shakespeare into data/ first (see data/README.md)"
        )


def empty(folder: Path) -> None:
    """Remove all that an earlier attempt left; the lock file stays."""
    for path in folder.iterdir():
        if path.is_dir():
            shutil.rmtree(path)
        elif path.name != ".lock":
            path.unlink()


def tidy(folder: Path) -> None:
    """Remove what only a run needs: the lock, the newest-step checkpoints, logs."""
    for pattern in (".lock", "checkpoints/*-last.*", "checkpoints/*.jsonl"):
        for path in folder.glob(pattern):
            path.unlink()


def exchange(new: Path, target: Path) -> None:
    """Put the complete folder `new` in the place of `target`, and only then delete the old one.

    Raises OSError when `new` cannot be moved; the old one is back in its place then.
    """
    recover(target)
    old = _aside(target)
    if target.exists():
        target.rename(old)
    try:
        new.rename(target)
    except OSError:  # another disk, or it went meanwhile
        recover(target)
        raise
    shutil.rmtree(old, ignore_errors=True)


def recover(target: Path) -> None:
    """Finish an exchange that was killed half-way: the old folder comes back, or goes for good."""
    old = _aside(target)
    if old.exists() and target.exists():
        shutil.rmtree(old, ignore_errors=True)
    elif old.exists():
        old.rename(target)


def _aside(target: Path) -> Path:
    return target.with_name(f".{target.name}-old")
