"""Keep the notebooks equal to the package: mirrored code, the set-up cell, links and badges.

The package is the truth. A code cell whose metadata says {"nanogpt": {"mirror": [names]}} holds the
source of those objects; {"nanogpt": {"generated": "setup"}} and "links" mark the two cells that
this module writes. The sources keep no outputs and no execution counts. Notebooks in
outputs/published keep theirs, and get the two generated cells when the address changes.
"""

from __future__ import annotations

import importlib
import inspect
import re
from pathlib import Path

import nbformat

from ..config import address
from ..system.files import ROOT, sha256, write_json
from .manifest import read_manifest
from .nbfile import METADATA, SyncError, fold, keep_metadata, read, title, to_text, write_text

BADGE = "https://colab.research.google.com/assets/colab-badge.svg"
COLAB = "https://colab.research.google.com/github"

NO_ADDRESS = (
    "Colab: this copy has no address yet. On GitHub the first push sets it, elsewhere "
    "`make badges REPO=owner/name`. In Colab, first run "
    "`%env NANOGPT_REPO=https://github.com/owner/name`, with the page where you found this notebook"
)

SETUP = """\
# @title Set-up, the same in every notebook; opened alone, as on Colab, it fetches the repository
import os
import subprocess
import sys
import tempfile
from pathlib import Path

URL = os.environ.get("NANOGPT_REPO", "https://github.com/@REPO@")
NAME, REF = "@NAME@", os.environ.get("NANOGPT_REF", "@REF@")
os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")  # the same sums each time on a GPU
os.environ["GIT_TERMINAL_PROMPT"] = "0"  # git fails rather than asks
here, door = Path.cwd(), "nanogpt/notebook/session.py"
places = (here, *here.parents, here / NAME, *map(Path, sys.path))
root = next((p.resolve() for p in places if (p / door).exists()), None)
if root is None:
    if "OWNER_NAME" in URL:
        why = "no repository here and no address: start inside one (papermill --cwd), or first run"
        raise RuntimeError(f"{why}  %env NANOGPT_REPO=https://github.com/owner/name")
    with tempfile.TemporaryDirectory(dir=here) as new:  # renamed once complete, else gone
        clone = ["git", "clone", "-q", "--depth=1", f"--branch={REF}", "--", URL, f"{new}/{NAME}"]
        done = subprocess.run(clone, stderr=subprocess.PIPE, text=True, timeout=300)
        if done.returncode:
            raise RuntimeError(f"cannot fetch {REF} of {URL}: set NANOGPT_REPO. git: {done.stderr}")
        root = Path(new, NAME).rename(here / NAME)
sys.path[:0] = {str(root)} - set(sys.path)
from nanogpt.notebook.session import begin

begin()"""


def setup_cell(repo: str, ref: str) -> str:
    """The set-up cell's source for the repository `repo` (owner/name), at a branch or tag `ref`."""
    return SETUP.replace("@REPO@", repo).replace("@NAME@", repo.split("/")[1]).replace("@REF@", ref)


def links_cell(path: Path, neighbours: list[Path], repo: str, ref: str) -> str:
    """Badge, executed page, previous and next of the notebook at `path`, one of `neighbours`.

    Without an address, what to do about it stands in place of the first two.
    """
    i, away = neighbours.index(path), [NO_ADDRESS]
    if not is_placeholder(repo):
        away = [
            f"[![Open in Colab]({BADGE})]({COLAB}/{repo}/blob/{ref}/notebooks/{path.name})",
            f"[with outputs](https://github.com/{repo}/blob/{ref}/outputs/published/{path.name})",
        ]
    parts = [
        *away,
        *(f"← [{title(read(p))}]({p.name})" for p in neighbours[max(i - 1, 0) : i]),
        *(f"[{title(read(p))}]({p.name}) →" for p in neighbours[i + 1 : i + 2]),
    ]
    return " · ".join(parts)


def is_placeholder(repo: str) -> bool:
    """Whether this address, owner/name, cannot be one: GitHub allows no _ in an owner's name."""
    return "_" in repo.split("/")[0]


def mirror_cell(names: list[str]) -> str:
    """The sources of the named objects, two blank lines apart. Raises SyncError for a bad name."""
    return "\n\n\n".join(inspect.getsource(find(name)).rstrip("\n") for name in names)


def find(name: str):
    """The object of a dotted name such as nanogpt.model.gpt.Head. Raises SyncError."""
    module, _, attribute = name.rpartition(".")
    try:
        return getattr(importlib.import_module(module), attribute)
    except (ImportError, AttributeError, ValueError) as error:
        raise SyncError(f"{name!r} names nothing in the package ({error})") from error


def write_generated(nb, path: Path, neighbours: list[Path], repo: str, ref: str) -> None:
    """Bring the set-up and the links cell up to date, in place."""
    for cell in nb.cells:
        kind = cell.metadata.get("nanogpt", {}).get("generated")
        if kind == "setup":
            cell.source = setup_cell(repo, ref)
            cell.metadata["tags"] = ["hide-input"]
        elif kind == "links":
            cell.source = links_cell(path, neighbours, repo, ref)
        elif kind is not None:
            raise SyncError(
                f"{path.name}, cell {cell.id!r}: generated={kind!r}; it can be setup or links"
            )


def synced(path: Path, neighbours: list[Path], repo: str, ref: str):
    """The source notebook at `path` as it should be: generated, mirrored, without outputs."""
    nb = read(path)
    write_generated(nb, path, neighbours, repo, ref)
    for cell in nb.cells:
        keep_metadata(cell)
        if names := cell.metadata.get("nanogpt", {}).get("mirror"):
            try:
                cell.source = mirror_cell(names)
            except SyncError as error:
                raise SyncError(f"{path.name}, cell {cell.id!r}: {error}") from error
        fold(cell)
        if cell.cell_type == "code":
            cell.outputs, cell.execution_count = [], None
        cell.source = cell.source.strip("\n")
    nb.cells = [cell for cell in nb.cells if cell.source]  # editors leave an empty one behind
    nb.metadata, nb.nbformat, nb.nbformat_minor = nbformat.from_dict(METADATA), 4, 5
    return nb


def sync(
    root: Path = ROOT, repo: str = address.REPO, ref: str = address.REF, *, check: bool = False
) -> list[Path]:
    """Write what differs below `root` (with `check`: nothing) and return the paths that differed.

    Everything is worked out before the first file is written, so an error changes nothing.
    Raises SyncError.
    """
    check_address(repo, ref)
    wanted = _wanted(root, repo, ref)
    differ = [path for path, text in wanted.items() if path.read_text(encoding="utf-8") != text]
    if check:
        return differ
    for path in differ:
        write_text(path, wanted[path])
    published = root / "outputs" / "published"
    if any(path.parent == published for path in differ):
        _renew_checksums(published / "manifest.json")
    return differ


def _wanted(root: Path, repo: str, ref: str) -> dict[Path, str]:
    """The text that each notebook, each published notebook and the README should have."""
    sources = sorted((root / "notebooks").glob("*.ipynb"))
    wanted = {path: to_text(synced(path, sources, repo, ref)) for path in sources}
    for source in sources:
        if (path := root / "outputs" / "published" / source.name).is_file():
            nb = read(path)
            write_generated(nb, source, sources, repo, ref)
            wanted[path] = to_text(nb)
    if (readme := root / "README.md").is_file():
        wanted[readme] = _with_badges(readme.read_text(encoding="utf-8"), sources, repo, ref)
    return wanted


def _with_badges(readme: str, sources: list[Path], repo: str, ref: str) -> str:
    """The README with its badges, and its reference `[NN]: …` for each notebook, at this address.

    Without an address the references lead to the README's own words on it.
    """
    folder = f"{COLAB}/{repo}/blob/{ref}/notebooks/"
    readme = re.sub(rf"{COLAB}/[^/\s]+/[^/\s]+/blob/[^/\s]+/notebooks/", folder, readme)
    for path in sources:
        to = folder + path.name
        if is_placeholder(repo):
            to = '#the-notebooks "No address yet: make badges REPO=owner/name"'
        readme = re.sub(
            rf"^\[{path.name[:2]}\]: .*$", f"[{path.name[:2]}]: {to}", readme, flags=re.M
        )
    return readme


def _renew_checksums(manifest: Path) -> None:
    if manifest.is_file():
        card = read_manifest(manifest.parent)
        for entry in card["notebooks"]:
            if (path := manifest.with_name(f"{entry['notebook']}.ipynb")).is_file():
                entry["sha256"] = sha256(path)
        write_json(manifest, card)


def check_address(repo: str, ref: str) -> None:
    """Raise SyncError unless repo is owner/name and ref a plain branch or tag name."""
    plain = re.fullmatch(r"[A-Za-z0-9_-]{1,64}/[A-Za-z0-9._-]{1,100}", repo)
    if not plain or repo.endswith((".git", ".")):
        raise SyncError(f"repo={repo!r}: give owner/name, as in https://github.com/owner/name")
    if not re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9._-]{0,100}", ref):
        raise SyncError(f"ref={ref!r}: give a branch or a tag, without slashes")


def set_address(repo: str, ref: str, root: Path = ROOT) -> None:
    """Write the repository's address into config/address.py and README.md. Raises SyncError."""
    check_address(repo, ref)
    path, readme = root / "nanogpt" / "config" / "address.py", root / "README.md"
    text = path.read_text(encoding="utf-8")
    found = {name: re.findall(rf'^{name} = "(.*)"$', text, re.M) for name in ("REPO", "REF")}
    for (name, values), value in zip(found.items(), (repo, ref), strict=True):
        if len(values) != 1:
            raise SyncError(f'{path} has {len(values)} lines {name} = "…": one is needed')
        text = re.sub(rf'^{name} = ".*"$', f'{name} = "{value}"', text, flags=re.M)
    write_text(path, text)
    if readme.is_file():
        old = found["REPO"][0]
        write_text(readme, readme.read_text(encoding="utf-8").replace(old, repo))
