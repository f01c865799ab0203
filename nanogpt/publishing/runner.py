"""Run notebooks headless and keep what they make.

Each notebook writes into a staging folder of its own. When it has passed, its files move to the
output folder in one rename each. When it has not, they are kept below failed/ and replace nothing.
"""

from __future__ import annotations

import os
import shutil
import tempfile
import threading
import time
from collections.abc import Sequence
from concurrent.futures import FIRST_EXCEPTION, ThreadPoolExecutor, wait
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from ..config.checks import check_int
from ..config.profiles import get_profile
from ..data.corpus import Corpus, load_corpus
from ..system.console import PROGRESS
from ..system.device import pick_device
from ..system.environment import environment
from ..system.files import PUBLISHED, ROOT, recover, sha256, write_json
from ..system.lock import held
from . import execute, publish, site
from .manifest import read_manifest
from .nbfile import SyncError, is_timing, read
from .parameters import RunError, assign
from .plan import Pace, choose_pace
from .progress import Screen, report, table

INTERRUPTED = "interrupted"
SHOWN = 20  # lines at most of what a failed notebook's kernel has logged


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
    dry: bool = False  # print what would be done, and how long it would take
    publish: bool = False  # a run of all, which replaces outputs/published if all pass
    reproduce: bool = False  # a run of all, compared with outputs/published to the byte

    def __post_init__(self):
        check_int("timeout", self.timeout, 1)


def run(plan: RunPlan) -> bool:
    """Do what the plan says; True when all notebooks passed, and are the published ones if asked.

    Raises RunError or ValueError before anything has run, and KeyboardInterrupt after a Ctrl-C,
    once what had passed is kept and was reported.
    """
    series = prepare(plan)
    if plan.dry:
        print(series.pace)
        return True
    out = series.out
    with held(out / ".lock", f"into {out}"):
        series.run()
        if (plan.html or plan.publish) and any(out.glob("*.ipynb")):
            site.render(out)
        if plan.publish and series.passed:
            publish.publish(out, PUBLISHED)
            out = PUBLISHED
        report(series.entries, len(series.sources), series.pace.profile, out)
        if series.interrupted:
            raise KeyboardInterrupt
        same = not plan.reproduce or publish.print_comparison(PUBLISHED, out)
    return same and series.passed


def prepare(plan: RunPlan) -> Series:
    """Find and check all that the plan names. Raises RunError or CorpusError."""
    sources = select(plan.notebooks, plan.source or ROOT / "notebooks")
    whole = plan.publish or plan.reproduce
    profile = choose_profile(
        "cpu" if whole and plan.profile == "auto" else plan.profile,
        cuda=pick_device().device.type == "cuda",
    )
    assign(sources, plan.settings, profile)  # refused now, not after the measurement
    out = (plan.out or ROOT / "outputs" / "run" / get_profile(profile).kind).resolve()
    check_out(out)
    recover(PUBLISHED)
    corpus, weights = load_corpus(), None
    if whole:
        publish.check(plan, profile, corpus)
        out = publish.BUILD if plan.publish else publish.BUILD.with_name("reproduce")
        weights = out / publish.WEIGHTS
        # Notebook 01 trains what the others load.
        sources = sorted(sources, key=lambda path: path.stem[:2] != "01")
    # The first notebook that finds no weights of its text trains some for the others.
    borrowed = (PUBLISHED / publish.WEIGHTS).is_file() and corpus.sha256 == publish.SHA256
    pace = choose_pace(
        profile,
        [source.stem for source in sources],
        full=plan.full or whole,
        lanes=2 if borrowed or not corpus.real else 1,
    )
    values = assign(sources, plan.settings, pace.profile)
    return Series(plan, sources, values, pace, corpus, out, weights)


@dataclass
class Series:
    """A run that can begin, and what has come of it."""

    plan: RunPlan
    sources: list[Path]
    values: dict[str, dict]  # of the parameters, for each notebook
    pace: Pace
    corpus: Corpus
    out: Path
    weights: Path | None  # the checkpoint that all notebooks share; None: each looks for one

    def __post_init__(self):
        self.entries: list[dict] = []  # of the manifest
        self.begun = 0  # notebooks
        self.interrupted = self.enough = False  # enough: no more notebooks begin
        self.turns, self.writing = Turns(), threading.Lock()

    @property
    def passed(self) -> bool:
        """Whether all notebooks have run and passed."""
        return len(self.entries) == len(self.sources) and all(e["ok"] for e in self.entries)

    def run(self) -> None:
        """Run them and print how each went; `entries` are those of the manifest, in order.

        Only a Ctrl-C stops the others, and with fail_fast the first that fails.
        """
        if self.weights:
            publish.empty(self.out)
        for left in self.out.glob(".running-*"):  # of a run that was killed
            shutil.rmtree(left, ignore_errors=True)
        self.card = self._card()
        self.kept = {entry["notebook"]: entry for entry in read_manifest(self.out)["notebooks"]}
        print(f"{self.corpus.banner or self.corpus}\n{self.pace}", flush=True)
        self.screen = Screen(self.pace.total)
        order = self.sources
        if self.pace.lanes > 1:  # those that measure no time first, and of each kind the longest
            took = self.pace.seconds
            order = sorted(order, key=lambda path: (_measures(path), -took[path.stem]))
        self._work_off(order)
        self.entries.sort(key=lambda entry: entry["notebook"])
        if self.entries:
            print(f"\n{table(self.entries)}\n", flush=True)

    def _work_off(self, sources: list[Path]) -> None:
        """Run them in threads, so that this one can wait for a Ctrl-C. Raises their OSErrors."""
        with ThreadPoolExecutor(self.pace.lanes) as pool:
            futures = [pool.submit(self._one, source) for source in sources]
            try:
                while True:
                    done, left = wait(futures, self.screen.pause, return_when=FIRST_EXCEPTION)
                    for future in done:
                        future.result()
                    if not left:
                        break
                    self.screen.tick()
            except BaseException as error:
                self.interrupted = self.enough = True
                execute.kill_all()
                if not isinstance(error, KeyboardInterrupt):
                    raise

    def _one(self, source: Path) -> None:
        """Run one notebook and keep its files and its entry."""
        if self.enough:
            return
        name, n_cells = source.stem, len(read(source).cells)
        with self.writing:
            self.begun += 1
            self.screen.print(f"[{self.begun}/{len(self.sources)}] {name}")
        with staging(self.out, name) as staged:
            told, start = staged / ".progress", time.perf_counter()

            @contextmanager
            def around(index: int, cell):
                self.screen.at(name, f"cell {index + 1} of {n_cells}, {cell.get('id', '')}", told)
                with self.turns.taken(alone=is_timing(cell)):
                    if self.interrupted:
                        raise execute.NotebookError(INTERRUPTED)
                    yield

            error = self._execute(source, staged, {PROGRESS: str(told)}, around)
            self.screen.ended(name)
            told.unlink(missing_ok=True)
            with self.writing:
                self._keep(source, staged, error, time.perf_counter() - start)
        if error and self.plan.fail_fast:
            self.enough = True

    def _execute(self, source: Path, staged: Path, variables: dict, around) -> str | None:
        """Why the notebook stopped, or None."""
        variables |= self._environment(staged)
        try:
            execute.execute(
                source,
                staged / source.name,
                self.values[source.stem],
                variables=variables,
                timeout=self.plan.timeout,
                around=around,
            )
        except (execute.NotebookError, SyncError, RuntimeError) as failure:  # no kernel: the last
            return INTERRUPTED if self.interrupted else str(failure).strip().partition("\n")[0]
        return None

    def _environment(self, staged: Path) -> dict[str, str | None]:
        """The kernel's variables: where to write, what the run has made, what not to fetch."""
        variables = {"NANOGPT_OUT": str(staged), "NANOGPT_RUN": str(self.out)}
        if not self.corpus.real:
            # The download has failed once: do not wait for it in each kernel.
            variables |= {"NANOGPT_OFFLINE": "1", "NANOGPT_OFFLINE_REASON": self.corpus.note}
        if self.weights:
            there = str(self.weights) if self.weights.is_file() else None
            variables["NANOGPT_CHECKPOINT"] = there
        return variables

    def _keep(self, source: Path, staged: Path, error: str | None, seconds: float) -> None:
        """Move its files to where they belong, and write the manifest with its entry."""
        name, log, executed = source.stem, staged / execute.LOG, staged / source.name
        lines = log.read_text("utf-8", "replace").strip().splitlines() if log.is_file() else []
        if error and error != INTERRUPTED:
            self.screen.print("\n    ".join([f"{name} failed: {error}", *lines[-SHOWN:]]))
        if not (error and lines):
            log.unlink(missing_ok=True)
        digest = sha256(executed) if executed.is_file() else None
        move, before = set_aside if error else keep, self.kept.get(name, {}).get("files", [])
        self.kept[name] = {
            "notebook": name,
            "ok": error is None,
            "seconds": round(seconds, 1),
            "error": error,
            "parameters": self.values[name],
            "corpus": self.corpus.name,
            "source_sha256": sha256(source),
            "sha256": digest,
            "files": move(self.out, name, staged, before),
        }
        self.entries.append(self.kept[name])
        notebooks = [self.kept[name] for name in sorted(self.kept)]
        write_json(self.out / "manifest.json", {**self.card, "notebooks": notebooks})

    def _card(self) -> dict:
        """What the whole run depends on, for the manifest."""
        corpus = self.corpus
        about = {"name": corpus.name, "real": corpus.real, "note": corpus.note}
        about |= {"characters": len(corpus.text), "sha256": corpus.sha256}
        settings = {"settings": list(self.plan.settings), "corpus": about}
        return self.pace.card | settings | {"environment": environment()}


class Turns:
    """Which cells may run now: any number of those that measure nothing, or one that does, alone.

    One that waits to be alone goes before those that come after it.
    """

    def __init__(self):
        self.changed = threading.Condition()
        self.running = self.waiting = 0  # cells; of the waiting, those that want to be alone
        self.alone = False

    @contextmanager
    def taken(self, *, alone: bool):
        """A turn for the length of a with-block, which begins when it may."""
        with self.changed:
            self.waiting += alone
            self.changed.wait_for(
                lambda: not (self.running if alone else self.alone or self.waiting)
            )
            self.waiting -= alone
            self.running, self.alone = self.running + 1, alone
        try:
            yield
        finally:
            with self.changed:
                self.running, self.alone = self.running - 1, False
                self.changed.notify_all()


def _measures(path: Path) -> bool:
    return any(map(is_timing, read(path).cells))


# ------------------------------------------------------------------ what is asked for


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
        profile = get_profile(name, cuda=cuda)
    except ValueError as error:
        raise RunError(str(error)) from None
    if profile.kind == "gpu" and not cuda:
        raise RunError(f"profile {name!r}, but torch sees no CUDA device: choose cpu, or auto")
    return profile.name


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


# ------------------------------------------------------------------ what is kept


@contextmanager
def staging(out: Path, name: str):
    """A new folder beside the good files; what is still in it at the end is removed."""
    path = Path(tempfile.mkdtemp(prefix=f".running-{name}-", dir=out))
    path.chmod(0o755)
    try:
        yield path
    finally:
        shutil.rmtree(path, ignore_errors=True)


def keep(out: Path, name: str, staged: Path, before: list[str]) -> list[str]:
    """Move a passed notebook's files into place; drop those of `before` that it made no more.

    Weights are never dropped: a notebook that trained them once finds them the next time. Nor is
    anything outside of the output folder, whatever the manifest names.
    """
    found = [path for path in staged.rglob("*") if path.is_file()]
    files = sorted(path.relative_to(staged).as_posix() for path in found)
    for file in files:
        (out / file).parent.mkdir(parents=True, exist_ok=True)
        os.replace(staged / file, out / file)
    root, kept = out.resolve(), {(out / file).resolve() for file in files}
    for file in before:
        with suppress(OSError, ValueError, RuntimeError, TypeError):  # a name that no file can have
            path = (root / file).resolve()
            ours = root in path.parents and root / "checkpoints" not in path.parents
            if ours and path not in kept and path.is_file():
                path.unlink()
    shutil.rmtree(out / "failed" / name, ignore_errors=True)
    return files


def set_aside(out: Path, name: str, staged: Path, before: list[str]) -> list[str]:
    """Keep a failed notebook's files below failed/; returns what an earlier run made."""
    shutil.rmtree(out / "failed" / name, ignore_errors=True)
    (out / "failed").mkdir(exist_ok=True)
    os.replace(staged, out / "failed" / name)
    return before
