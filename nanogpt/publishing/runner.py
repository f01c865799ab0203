"""Run the notebooks headless, strictly, and keep what they make.

    python -m nanogpt run                     all of them, with the profile that fits the machine
    python -m nanogpt run 00 03 -p seed=7     two of them, with a parameter of theirs changed
    python -m nanogpt run --publish           all of them into outputs/published, or nothing
    python -m nanogpt run --reproduce         all of them, to be compared with outputs/published

Each notebook writes into a folder of its own. When it has passed, its files move to the output
folder in one rename each; when it has not, they are kept below failed/ and replace nothing.
"""

from __future__ import annotations

import json
import logging
import sys
import time
from contextlib import contextmanager
from pathlib import Path

import torch
from tqdm import tqdm

from ..config.profiles import get_profile
from ..data.corpus import Corpus, load_corpus
from ..system.environment import environment
from ..system.files import PUBLISHED, ROOT, sha256
from . import publish, reproduce, site
from .execute import NotebookError, execute, kernel_environment
from .output_folder import Folder, locked
from .parameters import RunError, assign

INTERRUPTED = "interrupted"


def select(names: list[str], folder: Path = ROOT / "notebooks") -> list[Path]:
    """The notebooks of `folder` that the names mean: 3, 03, the_same_tokens, 03_the_same_tokens, a path.

    Without names, all. Always in the order of their numbers. Raises RunError for a name that means none.
    """
    sources = sorted(folder.glob("[0-9][0-9]_*.ipynb"))
    if not sources:
        raise RunError(f"no notebooks in {folder}: they are named NN_title.ipynb")
    chosen = set()
    for name in names:
        plain = Path(name).name.removesuffix(".ipynb")
        plain = plain.zfill(2) if plain.isdigit() else plain
        meant = {path for path in sources if plain in (path.stem, path.stem[:2], path.stem[3:])}
        if not meant:
            raise RunError(
                f"{name!r} is no notebook: there is {', '.join(path.stem for path in sources)}"
            )
        chosen |= meant
    return sorted(chosen) if names else sources


def choose_profile(name: str) -> str:
    """The profile's own name, never "auto". Raises RunError for an unknown one, or gpu without a GPU."""
    cuda = torch.cuda.is_available()
    try:
        profile = get_profile(name, cuda=cuda).name
    except ValueError as error:
        raise RunError(str(error)) from None
    if profile == "gpu" and not cuda:
        raise RunError("profile 'gpu', but torch sees no CUDA device: choose cpu, or auto")
    return profile


def run_one(source: Path, parameters: dict, folder: Folder, timeout: int) -> dict:
    """Run one notebook and return its entry for the manifest; a Ctrl-C is an error of its own."""
    name, start, error = source.stem, time.perf_counter(), None
    with folder.staging(name) as staged, cell_bar(source) as on_cell:
        executed = staged / source.name
        try:
            with kernel_environment(folder.environment(staged)):
                execute(source, executed, parameters, timeout=timeout, on_cell=on_cell)
        except NotebookError as failure:
            error = str(failure)
        except KeyboardInterrupt:
            logging.getLogger("asyncio").disabled = True  # the kernel's death is what was asked for
            error = INTERRUPTED
        digest = sha256(executed) if executed.is_file() else None
        files = folder.set_aside(name, staged) if error else folder.keep(name, staged)
    entry = {
        "notebook": name,
        "ok": error is None,
        "seconds": round(time.perf_counter() - start, 1),
        "error": error,
        "parameters": parameters,
        "corpus": folder.card["corpus"]["name"],
        "source_sha256": sha256(source),
        "sha256": digest,
        "files": files,
    }
    folder.note(entry)
    return entry


@contextmanager
def cell_bar(source: Path):
    """On a terminal, a bar that counts cells; gives the function to call with the index of each."""
    total = len(json.loads(source.read_text(encoding="utf-8"))["cells"])
    hidden = not sys.stderr.isatty()
    with tqdm(total=total, desc=source.stem, unit="cell", leave=False, disable=hidden) as bar:
        yield lambda index: bar.update(index - bar.n)


def run_all(
    sources: list[Path], values: dict, folder: Folder, *, timeout: int, fail_fast: bool
) -> list[dict]:
    """Run the notebooks in turn and print how each went. Only a Ctrl-C stops the others."""
    entries = []
    for i, source in enumerate(sources, 1):
        print(f"[{i}/{len(sources)}] {source.stem}", flush=True)
        entries.append(run_one(source, values[source.stem], folder, timeout))
        if entries[-1]["error"] == INTERRUPTED or (fail_fast and not entries[-1]["ok"]):
            break
    print(f"\n{table(entries)}\n", flush=True)
    return entries


def table(entries: list[dict]) -> str:
    """The closing table: notebook, seconds, passed or the error."""
    width = max(len(entry["notebook"]) for entry in entries)
    lines = [f"{'notebook':{width}}  seconds  result"]
    for entry in entries:
        result = "passed" if entry["ok"] else f"FAILED  {entry['error']}"
        lines.append(f"{entry['notebook']:{width}}  {entry['seconds']:7.1f}  {result}")
    return "\n".join(lines)


def describe(profile: str, settings: list[str], corpus: Corpus) -> dict:
    """What the whole run depends on, for the manifest."""
    about = {
        "name": corpus.name,
        "real": corpus.real,
        "note": corpus.note,
        "characters": len(corpus.text),
        "sha256": corpus.sha256,
    }
    return {"profile": profile, "settings": settings, "corpus": about, "environment": environment()}


def run(args) -> bool:
    """One run as the command line asks; True when all passed. Raises RunError before anything has run."""
    whole = "--publish" if args.publish else "--reproduce" if args.reproduce else None
    sources = select(args.notebooks, args.source)
    profile = choose_profile("cpu" if whole and args.profile == "auto" else args.profile)
    values = assign(sources, args.p, profile)
    build = publish.BUILD.with_name("reproduce") if args.reproduce else publish.BUILD
    out = (build if whole else args.out or ROOT / "outputs" / "run" / profile).resolve()
    if PUBLISHED in (out, *out.parents):
        raise RunError(
            f"{out} is the published run: --publish alone writes there, and only from a green run"
        )
    if (ROOT / "outputs") not in out.parents and ROOT in (out, *out.parents):
        raise RunError(
            f"{out} is part of the project itself: choose a folder below outputs/, or one elsewhere"
        )
    publish.recover(PUBLISHED)
    corpus = load_corpus()
    if whole:
        changed = args.notebooks or args.p or args.out or args.source != ROOT / "notebooks"
        publish.check(whole, profile, corpus, bool(changed))
        sources.sort(key=lambda path: path.stem[:2] != "01")  # it trains what the others load
    with locked(out):
        if whole:
            publish.empty(out)
        print(corpus.banner or corpus, flush=True)
        weights = out / publish.WEIGHTS if whole else None
        folder = Folder(out, describe(profile, args.p, corpus), weights)
        entries = run_all(sources, values, folder, timeout=args.timeout, fail_fast=args.fail_fast)
        green = len(entries) == len(sources) and all(entry["ok"] for entry in entries)
        if (args.html or args.publish) and any(out.glob("*.ipynb")):
            site.render(out)
        if args.publish and green:
            publish.tidy(out)
            publish.exchange(out, PUBLISHED)
            out = PUBLISHED
        report(entries, sources, profile, out)
        return reproduce.report(PUBLISHED, out) and green if args.reproduce else green


def report(entries: list[dict], sources: list[Path], profile: str, out: Path) -> None:
    """How many passed, and where to look."""
    passed = sum(entry["ok"] for entry in entries)
    print(f"{passed} of {len(sources)} passed, profile {profile}, in {short(out)}")
    if passed < len(entries):
        print(f"what failed, up to its error: {short(out / 'failed')}")
    if (page := out / "html" / "index.html").is_file():
        print(f"to read: {short(page)}")


def short(path: Path) -> str:
    """The path as seen from here, where that is shorter."""
    return str(path.relative_to(Path.cwd())) if path.is_relative_to(Path.cwd()) else str(path)
