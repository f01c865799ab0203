"""Whose files a run may replace: those that it wrote and that nobody has changed since.

A folder has a list: the digests that each file may have, by its name; None stands for a file that
has proved it by itself.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Collection, Iterable, Mapping
from contextlib import suppress
from pathlib import Path

from ..files import ForeignFiles, sha256

Listed = Mapping[str, Collection[str] | None]


def check_ours(folder: Path, names: Iterable[str], listed: Listed) -> None:
    """Raise ForeignFiles, naming three, unless each of these names in `folder` may be replaced.

    It may where nothing is there, or a plain file that `listed` has, to which no link leads. The
    folder itself may be a link, as its user has named it: the rule holds for where it leads.
    """
    if found := sorted({str(path) for x in names if (path := _in_the_way(folder, x, listed))}):
        them = "it" if len(found) == 1 else "them"
        more = f" and {len(found) - 3:,} more" if len(found) > 3 else ""
        why = f"this command did not write {them}, or somebody changed {them} since"
        cure = f"move {them} away, or name another place"
        raise ForeignFiles(f"{', '.join(found[:3])}{more}: {why}: {cure}")


def _in_the_way(folder: Path, name: str, listed: Listed) -> Path | None:
    path, parts = folder / name, Path(name).parts
    if not parts or ".." in parts or Path(name).is_absolute():
        return path
    for above in [folder, *(folder.joinpath(*parts[:i]) for i in range(1, len(parts)))]:
        if (above != folder and above.is_symlink()) or (above.exists() and not above.is_dir()):
            return above
    plain = path.is_file() and not path.is_symlink() and name in listed
    ours = plain and (listed[name] is None or sha256(path) in listed[name])
    return path if os.path.lexists(path) and not ours else None


def everything(folder: Path) -> list[str]:
    """The names of all files and links below a folder."""
    found = (path for path in folder.rglob("*") if path.is_symlink() or not path.is_dir())
    return sorted(path.relative_to(folder).as_posix() for path in found)


def drop(folder: Path, names: Iterable[str], listed: Listed) -> None:
    """Delete those of these files that may be replaced, and folders that are empty then."""
    for name in names:
        path = folder / name
        if _in_the_way(folder, name, listed) or not path.exists():
            continue
        path.unlink()
        with suppress(OSError):  # not empty
            for above in path.relative_to(folder).parents:
                (folder / above).rmdir()


def exchange(new: Path, target: Path, read_list: Callable[[Path], Listed]) -> None:
    """Put the complete folder `new` in the place of `target`, and only then delete the old one.

    Raises ForeignFiles where there is anything that the old one's own list does not name, and
    OSError when `new` cannot be moved; the old one is back in its place then.
    """
    check_exchange(target, read_list)
    if target.exists():
        target.rename(_aside(target))
    try:
        new.rename(target)
    finally:  # where that failed, on another disk, the old one comes back
        recover(target, read_list)


def check_exchange(target: Path, read_list: Callable[[Path], Listed]) -> None:
    """Finish an exchange that was killed; raise ForeignFiles unless another one can be made."""
    recover(target, read_list)
    check_ours(target, everything(target) or ["-"], read_list(target))


def recover(target: Path, read_list: Callable[[Path], Listed]) -> None:
    """Finish an exchange that was killed half-way: the old folder comes back, or goes for good.

    Raises ForeignFiles where a folder of that name holds what its own list does not name.
    """
    if not os.path.lexists(old := _aside(target)):
        return
    listed = read_list(old)
    named = {f"{old.name}/{name}": digests for name, digests in listed.items()}
    check_ours(old.parent, [f"{old.name}/{name}" for name in everything(old) or ["-"]], named)
    if target.exists():
        drop(old, listed, listed)  # in its order: the list itself is the last
        for path, *_ in os.walk(old, topdown=False):  # folders that were empty before
            with suppress(OSError):  # not empty
                os.rmdir(path)
    else:
        old.rename(target)


def _aside(target: Path) -> Path:
    return target.with_name(f".{target.name}-old")
