"""Run the notebooks headless, strictly, and keep what they make.

Each notebook writes into a folder of its own. When it has passed, its files move to the output
folder in one rename each. When it has not, they are kept below failed/ and replace nothing.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from ..config.checks import check_int
from ..config.profiles import get_profile
from ..data.corpus import Corpus, load_corpus
from ..system.device import pick_device
from ..system.environment import environment
from ..system.files import PUBLISHED, ROOT, sha256
from . import publish, reproduce, site
from .execute import NotebookError, execute, kernel_environment
from .output_folder import Folder, locked
from .parameters import RunError, assign
from .progress import cell_bar, report, table

INTERRUPTED = "interrupted"


@dataclass(frozen=True)
class RunPlan:
    """What to run, with which values, and where to write. Raises ValueError for a bad timeout."""

    notebooks: Sequence[str] = ()  # numbers or names; none: all
    settings: Sequence[str] = ()  # "name=value", for every notebook with that parameter
    profile: str = "auto"
    out: Path | None = None  # None: outputs/run/PROFILE
    source: Path | None = None  # None: notebooks/
    timeout: int = 1800  # seconds for each cell
    fail_fast: bool = False  # stop at the first notebook that fails
    html: bool = True  # render the pages

    def __post_init__(self):
        check_int("timeout", self.timeout, 1)

    @property
    def changed(self) -> bool:
        """Whether this is something else than all notebooks as they are."""
        return bool(self.notebooks or self.settings or self.out or self.source)


@dataclass(frozen=True)
class Job:
    """A plan that can begin: the notebooks, the values of each, the text, the output folder."""

    sources: list[Path]
    values: dict[str, dict]
    profile: str  # never "auto"
    corpus: Corpus
    out: Path
    weights: Path | None = None  # the checkpoint that all notebooks share


def run(plan: RunPlan) -> bool:
    """Run the chosen notebooks; True when all passed. Raises RunError before anything has run."""
    job = _prepare(plan)
    with locked(job.out):
        entries = _execute(plan, job)
        report(entries, len(job.sources), job.profile, job.out)
    _stop_if_interrupted(entries)
    return _all_passed(entries, job)


def run_and_publish(plan: RunPlan) -> bool:
    """Run all notebooks; replace outputs/published if all passed. Raises RunError as `run` does."""
    job = _prepare_whole(plan, "--publish", publish.BUILD)
    with locked(job.out):
        entries = _execute(replace(plan, html=True), job)
        if passed := _all_passed(entries, job):
            publish.tidy(job.out)
            publish.exchange(job.out, PUBLISHED)
        report(entries, len(job.sources), job.profile, PUBLISHED if passed else job.out)
    _stop_if_interrupted(entries)
    return passed


def run_and_compare(plan: RunPlan) -> bool:
    """Run all notebooks; True when all outputs are those of outputs/published, to the byte."""
    job = _prepare_whole(plan, "--reproduce", publish.BUILD.with_name("reproduce"))
    with locked(job.out):
        entries = _execute(plan, job)
        report(entries, len(job.sources), job.profile, job.out)
        _stop_if_interrupted(entries)
        same = reproduce.print_comparison(PUBLISHED, job.out)
    return same and _all_passed(entries, job)


def _prepare(plan: RunPlan) -> Job:
    """Find and check all that the plan names. Raises RunError or CorpusError."""
    sources = select(plan.notebooks, plan.source or ROOT / "notebooks")
    profile = choose_profile(plan.profile, cuda=pick_device().device.type == "cuda")
    values = assign(sources, plan.settings, profile)
    out = (plan.out or ROOT / "outputs" / "run" / profile).resolve()
    check_out(out)
    publish.recover(PUBLISHED)
    return Job(sources, values, profile, load_corpus(), out)


def _prepare_whole(plan: RunPlan, flag: str, out: Path) -> Job:
    """The same for a run of everything; `flag` is what asked for it."""
    profile = "cpu" if plan.profile == "auto" else plan.profile
    job = _prepare(replace(plan, profile=profile, out=out))
    publish.check(flag, job.profile, job.corpus, plan.changed)
    # Notebook 01 trains what the others load.
    first = sorted(job.sources, key=lambda path: path.stem[:2] != "01")
    return replace(job, sources=first, weights=job.out / publish.WEIGHTS)


def _execute(plan: RunPlan, job: Job) -> list[dict]:
    """Run the notebooks into the output folder, which is locked, and render them: their entries."""
    if job.weights:
        publish.empty(job.out)
    print(job.corpus.banner or job.corpus, flush=True)
    folder = Folder(job.out, describe(job, plan.settings), job.weights)
    entries = run_all(job, folder, timeout=plan.timeout, fail_fast=plan.fail_fast)
    if plan.html and any(job.out.glob("*.ipynb")):
        site.render(job.out)
    return entries


def _all_passed(entries: list[dict], job: Job) -> bool:
    return len(entries) == len(job.sources) and all(entry["ok"] for entry in entries)


def _stop_if_interrupted(entries: list[dict]) -> None:
    """Raise the KeyboardInterrupt that ended the run, now that what it kept was reported."""
    if entries and entries[-1]["error"] == INTERRUPTED:
        raise KeyboardInterrupt


def select(names: Sequence[str], folder: Path) -> list[Path]:
    """The notebooks of `folder` that the names mean: 3, 03, last, 03_last, or a path.

    Without names, all. Always in the order of their numbers. Raises RunError for an unknown name.
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
                f"{name!r} names no notebook: there is {', '.join(path.stem for path in sources)}"
            )
        chosen |= meant
    return sorted(chosen) if names else sources


def choose_profile(name: str, *, cuda: bool) -> str:
    """The profile's own name, never "auto". Raises RunError if unknown, or for gpu without CUDA."""
    try:
        profile = get_profile(name, cuda=cuda).name
    except ValueError as error:
        raise RunError(str(error)) from None
    if profile == "gpu" and not cuda:
        raise RunError("profile 'gpu', but torch sees no CUDA device: choose cpu, or auto")
    return profile


def check_out(out: Path) -> None:
    """Raise RunError for an output folder where executed copies would replace what is ours."""
    if PUBLISHED in (out, *out.parents):
        raise RunError(
            f"{out} is the published run: --publish alone writes there, and only if all pass"
        )
    if (ROOT / "outputs") not in out.parents and ROOT in (out, *out.parents):
        raise RunError(
            f"{out} is part of the project itself: choose a folder below outputs/, or one elsewhere"
        )


def describe(job: Job, settings: Sequence[str]) -> dict:
    """What the whole run depends on, for the manifest."""
    corpus = job.corpus
    about = {
        "name": corpus.name,
        "real": corpus.real,
        "note": corpus.note,
        "characters": len(corpus.text),
        "sha256": corpus.sha256,
    }
    return {
        "profile": job.profile,
        "settings": list(settings),
        "corpus": about,
        "environment": environment(),
    }


def run_all(job: Job, folder: Folder, *, timeout: int, fail_fast: bool) -> list[dict]:
    """Run the notebooks in turn and print how each went. Only a Ctrl-C stops the others."""
    entries = []
    for i, source in enumerate(job.sources, 1):
        print(f"[{i}/{len(job.sources)}] {source.stem}", flush=True)
        entries.append(run_one(source, job.values[source.stem], folder, timeout))
        if entries[-1]["error"] == INTERRUPTED or (fail_fast and not entries[-1]["ok"]):
            break
    print(f"\n{table(entries)}\n", flush=True)
    return entries


def run_one(source: Path, parameters: dict, folder: Folder, timeout: int) -> dict:
    """Run one notebook and return its entry in the manifest; a Ctrl-C is an error like others."""
    name, start, error = source.stem, time.perf_counter(), None
    with folder.staging(name) as staged, cell_bar(source) as on_cell:
        executed = staged / source.name
        try:
            with kernel_environment(folder.environment(staged)):
                execute(source, executed, parameters, timeout=timeout, on_cell=on_cell)
        except NotebookError as failure:
            error = str(failure)
        except KeyboardInterrupt:
            logging.getLogger("asyncio").disabled = True  # the user asked for the kernel's death
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
