"""Keep the notebooks equal to the package: mirrored code, the set-up cell, links and badges.

    python -m nanogpt sync                               write what differs
    python -m nanogpt sync --check                       list what differs, write nothing, exit 1
    python -m nanogpt sync --repo owner/name [--ref v1]  set the repository's address first

The package is the truth. A code cell whose metadata says {"nanogpt": {"mirror": [names]}} is
written from the source of those objects; {"nanogpt": {"generated": "setup"}} and "links" mark the
two cells that are written from here. Outputs and execution counts of the sources are dropped.
Notebooks in outputs/published keep theirs, and get the two generated cells when the address changes.
"""

from __future__ import annotations

import importlib
import inspect
import json
import re
from pathlib import Path

import nbformat

from ..config import address
from ..system.files import ROOT, sha256, write_json
from .nbfile import METADATA, SyncError, _text, _write, read, title

BADGE = "https://colab.research.google.com/assets/colab-badge.svg"


COLAB = "https://colab.research.google.com/github"


SETUP = """\
# Set-up, the same in every notebook. Opened alone, as on Colab, it first fetches the repository.
import os
import subprocess
import sys
import tempfile
from pathlib import Path

URL = os.environ.get("NANOGPT_REPO", "https://github.com/@REPO@")
NAME, REF = "@NAME@", os.environ.get("NANOGPT_REF", "@REF@")
os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")  # the same sums each time on a GPU
os.environ["GIT_TERMINAL_PROMPT"] = "0"  # git fails rather than asks
here = Path.cwd()
root = next((p for p in (here, *here.parents, here / NAME) if (p / "nanogpt/__init__.py").exists()), None)
if root is None:
    if "OWNER_NAME" in URL:
        raise RuntimeError("no address yet: run `make badges REPO=owner/name`, or set NANOGPT_REPO")
    with tempfile.TemporaryDirectory(dir=here) as new:  # renamed once complete, else gone
        clone = ["git", "clone", "--quiet", "--depth=1", f"--branch={REF}", URL, f"{new}/{NAME}"]
        done = subprocess.run(clone, stderr=subprocess.PIPE, text=True, timeout=300)
        if done.returncode:
            raise RuntimeError(f"cannot fetch {REF} of {URL}: set NANOGPT_REPO. git said: {done.stderr}")
        root = Path(new, NAME).rename(here / NAME)
sys.path[:0] = {str(root)} - set(sys.path)
from nanogpt.notebook.session import begin

begin()"""


def setup_cell(repo: str, ref: str) -> str:
    """The source of the set-up cell for the repository `repo` (owner/name) at the branch or tag `ref`."""
    return SETUP.replace("@REPO@", repo).replace("@NAME@", repo.split("/")[1]).replace("@REF@", ref)


def links_cell(path: Path, neighbours: list[Path], repo: str, ref: str) -> str:
    """Badge, executed page, previous and next of the notebook at `path` among its sorted neighbours."""
    i = neighbours.index(path)
    before, after = (
        neighbours[i - 1] if i else None,
        neighbours[i + 1] if i + 1 < len(neighbours) else None,
    )
    parts = [
        f"[![Open in Colab]({BADGE})]({COLAB}/{repo}/blob/{ref}/notebooks/{path.name})",
        f"[with outputs](https://github.com/{repo}/blob/{ref}/outputs/published/{path.name})",
        before and f"← [{title(read(before))}]({before.name})",
        after and f"[{title(read(after))}]({after.name}) →",
    ]
    return " · ".join(part for part in parts if part)


def mirror_cell(names: list[str]) -> str:
    """The source texts of the named objects, two blank lines apart. Raises SyncError for a wrong name."""
    return "\n\n\n".join(inspect.getsource(find(name)).rstrip("\n") for name in names)


def find(name: str):
    """The object of a dotted name such as nanogpt.model.Head. Raises SyncError."""
    module, _, attribute = name.rpartition(".")
    try:
        return getattr(importlib.import_module(module), attribute)
    except (ImportError, AttributeError, ValueError) as error:
        raise SyncError(f"{name!r} is no class or function of the package ({error})") from error


def write_generated(nb, path: Path, neighbours: list[Path], repo: str, ref: str) -> None:
    """Put the set-up and the links cell right, in place."""
    for cell in nb.cells:
        kind = cell.metadata.get("nanogpt", {}).get("generated")
        if kind == "setup":
            cell.source = setup_cell(repo, ref)
        elif kind == "links":
            cell.source = links_cell(path, neighbours, repo, ref)
        elif kind is not None:
            raise SyncError(
                f"{path.name}, cell {cell.id!r}: generated={kind!r}; it can be setup or links"
            )


def synced(path: Path, neighbours: list[Path], repo: str, ref: str):
    """The source notebook at `path` as it should be: generated, mirrored, stripped, plain metadata."""
    nb = read(path)
    write_generated(nb, path, neighbours, repo, ref)
    for cell in nb.cells:
        cell.metadata = {
            k: v for k, v in cell.metadata.items() if k in ("tags", "nanogpt", "jupyter") and v
        }
        if names := cell.metadata.get("nanogpt", {}).get("mirror"):
            try:
                cell.source = mirror_cell(names)
            except SyncError as error:
                raise SyncError(f"{path.name}, cell {cell.id!r}: {error}") from error
        if cell.cell_type == "code":
            cell.outputs, cell.execution_count = [], None
        cell.source = cell.source.strip("\n")
    nb.cells = [cell for cell in nb.cells if cell.source]  # editors leave an empty one behind
    nb.metadata, nb.nbformat, nb.nbformat_minor = nbformat.from_dict(METADATA), 4, 5
    return nb


def sync(
    root: Path = ROOT, repo: str = address.REPO, ref: str = address.REF, *, check: bool = False
) -> list:
    """Write what differs below `root` (with `check`: nothing) and return the paths that differed.

    Everything is worked out before the first file is written, so an error leaves all as it was.
    """
    check_address(repo, ref)
    sources = sorted((root / "notebooks").glob("*.ipynb"))
    wanted = {path: _text(synced(path, sources, repo, ref)) for path in sources}
    published = root / "outputs" / "published"
    for source in sources:
        if (path := published / source.name).is_file():
            nb = read(path)
            write_generated(nb, source, sources, repo, ref)
            wanted[path] = _text(nb)
    if (readme := root / "README.md").is_file():
        badges = rf"{COLAB}/[^/\s]+/[^/\s]+/blob/[^/\s]+/notebooks/"
        text = readme.read_text(encoding="utf-8")
        wanted[readme] = re.sub(badges, f"{COLAB}/{repo}/blob/{ref}/notebooks/", text)
    differ = [path for path, text in wanted.items() if path.read_text(encoding="utf-8") != text]
    if not check:
        for path in differ:
            _write(path, wanted[path])
        if any(path.parent == published for path in differ):
            _renew_checksums(published / "manifest.json")
    return differ


def _renew_checksums(manifest: Path) -> None:
    if manifest.is_file():
        card = json.loads(manifest.read_text(encoding="utf-8"))
        for entry in card["notebooks"]:
            entry["sha256"] = sha256(manifest.with_name(f"{entry['notebook']}.ipynb"))
        write_json(manifest, card)


def check_address(repo: str, ref: str) -> None:
    """Raise SyncError unless repo is owner/name and ref a plain branch or tag name."""
    if not re.fullmatch(r"[A-Za-z0-9_-]{1,64}/[A-Za-z0-9._-]{1,100}", repo) or repo.endswith(
        (".git", ".")
    ):
        raise SyncError(f"repo={repo!r}: give owner/name, as in https://github.com/owner/name")
    if not re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9._-]{0,100}", ref):
        raise SyncError(f"ref={ref!r}: give a branch or a tag, without slashes")


def set_address(repo: str, ref: str, root: Path = ROOT) -> None:
    """Write the repository's address into nanogpt/config.py and README.md. Raises SyncError."""
    check_address(repo, ref)
    path, readme = root / "nanogpt" / "config.py", root / "README.md"
    text, old = path.read_text(encoding="utf-8"), None
    for name, value in (("REPO", repo), ("REF", ref)):
        found = re.findall(rf'^{name} = "(.*)"$', text, re.M)
        if len(found) != 1:
            raise SyncError(f'{path} has {len(found)} lines {name} = "…": one is needed')
        old = old or found[0]
        text = re.sub(rf'^{name} = ".*"$', f'{name} = "{value}"', text, flags=re.M)
    _write(path, text)
    if readme.is_file():
        _write(readme, readme.read_text(encoding="utf-8").replace(old, repo))
