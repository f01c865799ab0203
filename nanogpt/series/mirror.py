"""Keep the notebooks equal to the package: mirrored code, the set-up cell, links and badges.

Also writes the README's table of speedups from the published measurements.

The package is the source of truth. A code cell whose metadata says {"nanogpt": {"mirror": [names]}}
has the source of those objects; {"nanogpt": {"generated": "setup"}}, "links" and "solution" mark
the cells that this module writes. The sources keep no outputs and no execution counts.
"""

from __future__ import annotations

import inspect
import re
import textwrap
from contextlib import ExitStack
from pathlib import Path
from pkgutil import resolve_name

import nbformat
from nbformat import NotebookNode

from ..course.blanks import BLANKS
from ..files import ROOT, atomic_path
from ..site import address
from ..site.address import colab
from ..site.nbfile import (
    METADATA,
    SyncError,
    exercise,
    fold,
    keep_metadata,
    ours,
    place,
    read,
    solution,
    title,
    to_text,
)
from ..site.speed import with_speedups

BADGE = "[![Open in Colab](https://colab.research.google.com/assets/colab-badge.svg)]"
PUBLISHED_LINK = re.compile(  # in the README, with its badge if any
    rf"(?:{re.escape(BADGE)}\([^)]*\) )?(\[[^]]*\]\(outputs/published/(\d\d_\w+)\.ipynb\))"
)
ONLINE = re.compile(r"(\[Read it online\]\()[^)]*")  # the README's link to the pages
_WIDTH = 116  # characters of a line of prose
_PAGES = "outputs/published/html/index.html"  # their location until there is an address

SETUP = """\
# @title Set-up, the same in every notebook; opened alone, as on Colab, it fetches the repository
import subprocess
import sys
from pathlib import Path

URL = "@URL@"  # of the repository, for a notebook opened alone; `make badges` writes it
folders = [Path.cwd(), *Path.cwd().parents, Path("@NAME@"), *map(Path, sys.path)]
root = next((path for path in folders if (path / "nanogpt/course/__init__.py").exists()), None)
if root is None:
    subprocess.run(["git", "clone", "-q", "-b@REF@", "--depth=1", "--", URL, "@NAME@"], check=True)
sys.path.insert(0, str((root or Path("@NAME@")).resolve()))
from nanogpt.course import check, hint  # noqa: F401"""


def setup_cell(repo: str, ref: str) -> str:
    """The set-up cell for the repository `repo` (owner/name, or empty) at a branch or tag `ref`."""
    name = repo.partition("/")[2] or "nanogpt-notebooks"
    text = SETUP.replace("@URL@", f"https://github.com/{repo}" if repo else "")
    return text.replace("@NAME@", name).replace("@REF@", ref)


def links_cell(name: str, titles: dict[str, str], repo: str, ref: str) -> str:
    """The notebook's badge and executed page (if there is an address), neighbours and branches.

    `titles` maps the file names of all notebooks, in order, to their titles.
    """
    links = {other: f"[{words}]({other})" for other, words in titles.items()}
    near = place(name, titles)
    parts = []
    if repo:
        executed = f"https://github.com/{repo}/blob/{ref}/outputs/published/{name}"
        badge = f"{BADGE}({colab(name.removesuffix('.ipynb'), repo, ref)})"
        parts = [badge, f"[with outputs]({executed})"]
    if near["before"]:
        arrow = "a branch from" if near["origin"] else "←"
        parts.append(f"{arrow} {links[near['before']]}")
    if near["after"]:
        parts.append(f"{links[near['after']]} →")
    parts += [f"branch: {links[other]}" for other in near["branches"]]
    return " · ".join(parts)


def solution_cell(name: str, *, hint: bool = True, solved: bool = True) -> str:
    """The folded cell below an exercise's blank: the second stage of its hint, and the solution."""
    parts = []
    if hint:
        words = "\n".join(textwrap.wrap(BLANKS[name].hints[1], _WIDTH))
        parts.append(f"<details><summary>Hint</summary>\n\n{words}\n\n</details>")
    if solved:
        code = f"```python\n{solution(name)}\n```"
        parts.append(f"<details><summary>Solution</summary>\n\n{code}\n\n</details>")
    return "\n\n".join(parts)


def write_cells(nb: NotebookNode, name: str, titles: dict[str, str], repo: str, ref: str) -> None:
    """Update a source notebook in place: generated and mirrored cells, no outputs."""
    for cell in nb.cells:
        keep_metadata(cell)
        kind = ours(cell).get("generated")
        if kind == "setup":
            cell.source = setup_cell(repo, ref)
            cell.metadata["tags"] = ["hide-input"]
        elif kind == "links":
            cell.source = links_cell(name, titles, repo, ref)
        elif kind == "solution":
            cell.source = solution_cell(exercise(cell))
        try:
            mirrored = map(resolve_name, ours(cell).get("mirror", []))
            code = "\n\n\n".join(inspect.getsource(thing).rstrip("\n") for thing in mirrored)
        except (ImportError, AttributeError, TypeError, ValueError) as error:
            raise SyncError(
                f"{name}, cell {cell.id!r} mirrors code that does not exist ({error})"
            ) from error
        cell.source = (code or cell.source).strip("\n")
        fold(cell)
        if cell.cell_type == "code":
            cell.outputs = []
            cell.execution_count = None
    nb.cells = [cell for cell in nb.cells if cell.source]  # editors leave an empty one at the end
    nb.metadata = nbformat.from_dict(METADATA)
    nb.nbformat = 4
    nb.nbformat_minor = 5


def sync(
    root: Path = ROOT,
    repo: str = address.REPO,
    ref: str = address.REF,
    *,
    check: bool = False,
    more: dict[Path, str] | None = None,
) -> list[Path]:
    """Write the files below `root` that differ (none with `check`), and return their paths.

    These are the notebooks, the README (badges and table of speedups), and the files in `more`,
    given as texts. Everything is written to temporary files before the first file is replaced, so
    an error changes nothing. Raises SyncError and OSError.
    """
    books = {path: read(path) for path in sorted((root / "notebooks").glob("*.ipynb"))}
    titles = {path.name: title(nb) for path, nb in books.items()}
    wanted = {}
    for path, nb in books.items():
        write_cells(nb, path.name, titles, repo, ref)
        wanted[path] = to_text(nb)
    readme = root / "README.md"
    if readme.is_file():
        text = with_speedups(readme.read_text(encoding="utf-8"))
        wanted[readme] = with_address(text, repo, ref)
    wanted.update(more or {})
    differ = [path for path, text in wanted.items() if path.read_text(encoding="utf-8") != text]
    with ExitStack() as files:  # write all next to the old ones before renaming the first
        for path in [] if check else differ:
            files.enter_context(atomic_path(path)).write_text(wanted[path], encoding="utf-8")
    return differ


def with_address(readme: str, repo: str, ref: str) -> str:
    """The README's text with the address in its badges and in its link to the pages."""

    def with_badge(link: re.Match[str]) -> str:
        badge = f"{BADGE}({colab(link[2], repo, ref)}) " if repo else ""
        return f"{badge}{link[1]}"

    owner, _, name = repo.partition("/")
    pages = f"https://{owner.lower()}.github.io/{name}/" if repo else _PAGES
    return PUBLISHED_LINK.sub(with_badge, ONLINE.sub(rf"\g<1>{pages}", readme))


def set_address(repo: str, ref: str, root: Path = ROOT) -> list[Path]:
    """Write the repository's address wherever it occurs, and return the changed paths.

    Updates site/address.py and everything that `sync` writes; published files get the address
    when they are published again. Raises SyncError unless `repo` is owner/name and `ref` a plain
    branch or tag.
    """
    if not re.fullmatch(r"[A-Za-z0-9_-]{1,64}/[A-Za-z0-9._-]{1,100}(?<!\.git)(?<!\.)", repo):
        raise SyncError(f"repo={repo!r}: pass owner/name, as in https://github.com/owner/name")
    if not re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9._-]{0,100}", ref):
        raise SyncError(f"ref={ref!r}: pass a branch or a tag, without slashes")
    path = root / "nanogpt" / "site" / "address.py"
    text = path.read_text(encoding="utf-8")
    for name, value in {"REPO": repo, "REF": ref}.items():
        text = re.sub(rf'^{name} = ".*"$', f'{name} = "{value}"', text, flags=re.M)
    return sync(root, repo, ref, more={path: text})
