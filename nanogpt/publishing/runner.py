"""Run the notebooks headless, strictly, and keep what they make.

Each notebook writes into a folder of its own. When it has passed, its files move to the output
folder in one rename each. When it has not, they are kept below failed/ and replace nothing.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from ..benchmarks.machine import measure_speed
from ..config.checks import check_int, check_positive
from ..config.profiles import get_profile
from ..config.rows import Speed
from ..data.corpus import Corpus, load_corpus
from ..system.device import pick_device
from ..system.environment import environment
from ..system.files import PUBLISHED, ROOT
from . import publish, reproduce, site
from .output_folder import Folder, locked
from .parameters import RunError, assign
from .plan import Pace, choose_pace, describe_plan
from .progress import report
from .series import INTERRUPTED, Series


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
    full: bool = False  # with profile cpu: as much work as the published run
    ratio: float | None = None  # the speed of this machine, 1 the published run's; None: measured

    def __post_init__(self):
        check_int("timeout", self.timeout, 1)
        if self.ratio is not None:
            check_positive("ratio", self.ratio)

    @property
    def changed(self) -> bool:
        """Whether this is something else than all notebooks as they are."""
        return bool(self.notebooks or self.settings or self.out or self.source)


@dataclass(frozen=True)
class Job:
    """A plan that can begin: the notebooks, the values of each, the text, the output folder."""

    sources: list[Path]
    values: dict[str, dict]
    profile: str  # smoke, cpu or gpu
    pace: Pace
    corpus: Corpus
    out: Path
    weights: Path | None = None  # the checkpoint that all notebooks share


def show_plan(plan: RunPlan) -> bool:
    """Print what `run` would do and how long it would take. Raises RunError as `run` does."""
    job = _prepare(plan)
    print(describe_plan([source.stem for source in job.sources], job.pace))
    return True


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
    kind = get_profile(profile).kind
    assign(sources, plan.settings, profile)  # refused now, not after the measurement
    out = (plan.out or ROOT / "outputs" / "run" / kind).resolve()
    check_out(out)
    publish.recover(PUBLISHED)
    corpus = load_corpus()
    pace = _pace(plan, profile, corpus)
    return Job(sources, assign(sources, plan.settings, pace.profile), kind, pace, corpus, out)


def _pace(plan: RunPlan, profile: str, corpus: Corpus) -> Pace:
    """How much work, from the speed of this machine, which is measured if none was given."""
    if get_profile(profile).kind != "cpu":
        return Pace(profile)
    speed = Speed(plan.ratio, plan.ratio) if plan.ratio else measure_speed()
    pace = choose_pace(profile, speed, full=plan.full)
    # The first notebook that finds no weights of its text trains some for the others.
    borrowed = (PUBLISHED / publish.WEIGHTS).is_file() and corpus.sha256 == publish.SHA256
    return pace if borrowed or not corpus.real else replace(pace, lanes=1)


def _prepare_whole(plan: RunPlan, flag: str, out: Path) -> Job:
    """The same for a run of everything; `flag` is what asked for it."""
    profile = "cpu" if plan.profile == "auto" else plan.profile
    job = _prepare(replace(plan, profile=profile, out=out, full=True))
    publish.check(flag, job.profile, job.corpus, plan.changed)
    # Notebook 01 trains what the others load.
    first = sorted(job.sources, key=lambda path: path.stem[:2] != "01")
    return replace(job, sources=first, weights=job.out / publish.WEIGHTS)


def _execute(plan: RunPlan, job: Job) -> list[dict]:
    """Run the notebooks into the output folder, which is locked, and render them: their entries."""
    if job.weights:
        publish.empty(job.out)
    print(job.corpus.banner or job.corpus)
    print(describe_plan([source.stem for source in job.sources], job.pace), flush=True)
    folder = Folder(job.out, describe(job, plan.settings), job.weights)
    series = Series(job.sources, job.values, folder, job.pace)
    entries = series.run(timeout=plan.timeout, fail_fast=plan.fail_fast)
    if plan.html and any(job.out.glob("*.ipynb")):
        site.render(job.out)
    return entries


def _all_passed(entries: list[dict], job: Job) -> bool:
    return len(entries) == len(job.sources) and all(entry["ok"] for entry in entries)


def _stop_if_interrupted(entries: list[dict]) -> None:
    """Raise the KeyboardInterrupt that ended the run, now that what it kept was reported."""
    if any(entry["error"] == INTERRUPTED for entry in entries):
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
        **job.pace.card,
        "settings": list(settings),
        "corpus": about,
        "environment": environment(),
    }
