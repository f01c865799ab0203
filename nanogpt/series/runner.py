"""Run notebooks headless and keep what they make.

Each notebook writes into a staging folder of its own. When it has passed, its files move to the
output folder in one rename each. When it has not, they are kept below failed/ and replace nothing.
"""

from __future__ import annotations

import os
import re
import shutil
import sys
import tempfile
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor, wait
from pathlib import Path
from types import SimpleNamespace

from ..bench.environment import environment
from ..console import clock, table
from ..data import load_corpus
from ..device import pick_device
from ..export.ownership import check_exchange, check_ours, drop, everything
from ..files import PUBLISHED, ROOT, ForeignFiles, held, read_json, sealed, sha256, write_json
from . import execute, publish, site
from .nbfile import SyncError, read
from .plan import DEFAULT, RunError, assign, estimate
from .profiles import Profile, get_profile

INTERRUPTED = "interrupted"
SHOWN = 20  # lines at most of what a failed notebook's kernel has logged
EVERY = 10  # seconds between two lines of progress; on a terminal one line changes each second


def run(plan: SimpleNamespace) -> bool:
    """Do what the plan says; True when all notebooks passed, and are the published ones if asked.

    Its fields are the options of the command `run`. Raises RunError or ValueError before anything
    has run, OSError for a full disk, KeyboardInterrupt after a Ctrl-C; both say what is kept.
    """
    series = Series(plan)
    if plan.dry:
        print(series.pace)
        return True
    out = series.out
    with held(out / ".lock", f"into {out}"):
        if plan.publish:
            check_exchange(PUBLISHED, publish.written)  # refused now, not after the work
        try:
            series.run()
        except OSError as error:
            raise OSError(f"{out}: {error}: {series.so_far}") from error
        if (plan.html or plan.publish) and any(out.glob("*.ipynb")):
            site.render(out, PUBLISHED if plan.publish else out)
        green = series.passed == len(series.sources)
        if plan.publish and green:
            publish.publish(out, PUBLISHED)
            out = PUBLISHED
        series.report(out)
        if series.interrupted:
            raise KeyboardInterrupt(series.so_far)
        same = not plan.reproduce or publish.print_comparison(PUBLISHED, out)
    return same and green


class Series:
    """A run that can begin, and what has come of it. Raises RunError or CorpusError."""

    def __init__(self, plan: SimpleNamespace):
        whole = plan.publish or plan.reproduce
        profile = find_profile("full" if whole and plan.profile == "auto" else plan.profile)
        default = () if plan.all or whole or profile.name == "smoke" else DEFAULT
        sources = select(plan.notebooks, plan.source or ROOT / "notebooks", default)
        if plan.all and plan.notebooks:
            raise RunError("--all runs all notebooks: leave it out, or the names")
        out = (plan.out or ROOT / "outputs" / "run" / profile.name).resolve()
        check_out(out)
        self.plan, self.corpus, self.whole = plan, load_corpus(), whole
        if whole:
            publish.check(plan, profile.name, self.corpus)
            out = publish.BUILD if plan.publish else publish.BUILD.with_name("reproduce")
        self.out, self.sources = out, sources
        self.values = assign(sources, plan.settings, profile.name)
        self.pace = estimate(profile.name, [path.stem for path in sources])
        self.entries: list[dict] = []  # of the manifest
        self.interrupted = False
        self.cell: tuple[str, float] | None = None  # the one that runs, and since when
        self.erase = "\x1b[K" if sys.stdout.isatty() else ""  # the rest of a terminal's line

    @property
    def passed(self) -> int:
        """How many notebooks have run and passed."""
        return sum(entry["ok"] for entry in self.entries)

    @property
    def so_far(self) -> str:
        """What a run that was stopped leaves, in words."""
        return f"{self.passed} of {len(self.sources)} notebooks had passed and are kept"

    def run(self) -> None:
        """Run them and print how each went; `entries` are those of the manifest, in order.

        A thread runs them, so that this one can say how far they are and wait for a Ctrl-C, which
        stops the others. Raises their OSErrors.
        """
        for left in self.out.iterdir():  # of a run that was killed, and of no other name
            if re.fullmatch(r"\.running-[a-z0-9_]{8}", left.name) and not left.is_symlink():
                shutil.rmtree(left, ignore_errors=True)
        if self.whole:
            publish.empty(self.out)
        self.kept = publish.entries(self.out)
        self._check_out()
        self.card = self._card()
        print(f"{self.corpus.banner or self.corpus}\n{self.pace}", flush=True)
        self.begun = time.monotonic()
        with ThreadPoolExecutor(1) as pool:
            future = pool.submit(self._run_all)
            try:
                while not wait([future], 1 if self.erase else EVERY).done:
                    self._tick()
                future.result()
            except BaseException as error:
                self.interrupted = True
                execute.kill_all()
                if not isinstance(error, KeyboardInterrupt):
                    raise

    def _check_out(self) -> None:
        """Raise ForeignFiles for what is in the way already: better now than after the work."""
        names = {"manifest.json", *(f"{x}/-" for x in "figures json checkpoints html".split())}
        if self.plan.html:
            stems = {path.stem for path in (*self.sources, *self.out.glob("[0-9][0-9]_*.ipynb"))}
            names |= {f"html/{stem}.html" for stem in stems | {"index", "live", "museum"}}
        for source in self.sources:
            failed = f"failed/{source.stem}"
            names |= {source.name, f"{failed}/-", *self.kept.get(source.stem, {}).get("files", {})}
            names |= {f"{failed}/{name}" for name in everything(self.out / failed)}
        check_ours(self.out, names, publish.written(self.out))

    def _run_all(self) -> None:
        for number, source in enumerate(self.sources, 1):
            print(f"{self.erase}[{number}/{len(self.sources)}] {source.stem}", flush=True)
            start = time.perf_counter()
            with tempfile.TemporaryDirectory(prefix=".running-", dir=self.out) as staged:
                error = self._execute(source, Path(staged))
                self._keep(source, Path(staged), error, time.perf_counter() - start)
            if self.interrupted:
                break

    def _execute(self, source: Path, staged: Path) -> str | None:
        """Why the notebook stopped, or None."""
        n_cells = len(read(source).cells) + 1  # with the cell of the parameters that are given

        def before_cell(index: int, cell) -> None:
            if self.interrupted:
                raise execute.NotebookError(INTERRUPTED)
            what = f"{source.stem}: cell {index + 1} of {n_cells}, {cell.get('id', '')}"
            self.cell = what, time.monotonic()

        try:
            own = {"variables": self._environment(staged), "timeout": self.plan.timeout}
            target, values = staged / source.name, self.values[source.stem]
            execute.execute(source, target, values, before_cell=before_cell, **own)
        except (execute.NotebookError, SyncError, RuntimeError) as failure:  # no kernel: the last
            return INTERRUPTED if self.interrupted else str(failure).strip().partition("\n")[0]
        finally:
            self.cell = None
        return None

    def _tick(self) -> None:
        """Say how far the running cell is: on a terminal in a line that the next one replaces."""
        if not (cell := self.cell):
            return
        spent, expected = time.monotonic() - self.begun, self.pace.total
        total = f" of about {clock(max(spent, expected))}" if expected else " so far"
        line = f"{clock(spent)}{total} | {cell[0]}, {clock(time.monotonic() - cell[1])}"
        if self.erase:
            line = f"{self.erase}{line[: shutil.get_terminal_size().columns - 1]}\r"
        print(line, end="" if self.erase else "\n", flush=True)

    def _environment(self, staged: Path) -> dict[str, str | None]:
        """The kernel's variables: where to write, what the run has made, what not to fetch."""
        variables = {"NANOGPT_OUT": str(staged), "NANOGPT_RUN": str(self.out)}
        if not self.corpus.real:
            # The download has failed once: do not wait for it in each kernel.
            variables |= {"NANOGPT_OFFLINE": "1", "NANOGPT_OFFLINE_REASON": self.corpus.note}
        if self.whole:
            variables["NANOGPT_CHECKPOINT"] = None  # the reader's: the run uses its own model
        return variables

    def _keep(self, source: Path, staged: Path, error: str | None, seconds: float) -> None:
        """Move its files to where they belong, and write the manifest with its entry.

        Weights are never dropped: a notebook that trained them once finds them the next time.
        """
        name, old = source.stem, self.kept.get(source.stem, {})
        before, listed = old.get("before", {}) | old.get("files", {}), publish.written(self.out)
        self._show_log(name, staged / execute.LOG, error)
        found = (path for path in sorted(staged.rglob("*")) if path.is_file())
        made = {path.relative_to(staged).as_posix(): sha256(path) for path in found}
        try:
            check_ours(self.out, [] if error else made, listed)
        except ForeignFiles as foreign:
            error = str(foreign)
            print(f"{self.erase}{name} failed: {error}", flush=True)
        to = f"failed/{name}/" if error else ""
        kept = [x for x in before if x[:12] == "checkpoints/" or (error and x[:7] != "failed/")]
        files = {file: before[file] for file in kept}
        files |= {f"{to}{file}": digest for file, digest in made.items()}
        entry = {
            "notebook": name,
            "ok": error is None,
            "seconds": round(seconds, 1),
            "error": error,
            "parameters": self.values[name],
            "corpus": self.corpus.name,
            "source_sha256": sha256(source),
            "sha256": made.get(source.name),
            "files": files,
        }
        # Noted first: were it killed while it moves them, the next run knows the old and the new.
        self._note(name, entry | {"before": before})
        drop(self.out, before.keys() - files, listed)
        for file in made:
            (self.out / f"{to}{file}").parent.mkdir(parents=True, exist_ok=True)
            os.replace(staged / file, self.out / f"{to}{file}")
        self._note(name, entry)
        self.entries.append(entry)

    def _show_log(self, name: str, log: Path, error: str | None) -> None:
        """Print why a notebook failed, and the end of its log; a log is kept for that alone."""
        lines = log.read_text("utf-8", "replace").strip().splitlines() if log.is_file() else []
        if error and error != INTERRUPTED:
            said = "\n    ".join([f"{name} failed: {error}", *lines[-SHOWN:]])
            print(f"{self.erase}{said}", flush=True)
        if not (error and lines):
            log.unlink(missing_ok=True)

    def _note(self, name: str, entry: dict) -> None:
        """Put the entry of a notebook into the manifest."""
        self.kept[name] = entry
        notebooks = [self.kept[name] for name in sorted(self.kept)]
        write_json(self.out / "manifest.json", sealed({**self.card, "notebooks": notebooks}))

    def _card(self) -> dict:
        """What the whole run depends on, for the manifest."""
        corpus = self.corpus
        about = {"name": corpus.name, "real": corpus.real, "note": corpus.note}
        about |= {"characters": len(corpus.text), "sha256": corpus.sha256}
        card = {"profile": self.pace.profile, "settings": list(self.plan.settings), "corpus": about}
        card |= {"work_seconds": self.pace.work} if self.pace.work else {}
        # Of the kernels: this process, which computes nothing, may have more.
        threads = get_profile(self.pace.profile).threads
        return card | {"environment": environment() | ({"threads": threads} if threads else {})}

    def report(self, out: Path) -> None:
        """Print a table of what ran, how many passed, and where to look."""
        rows = []
        for entry in sorted(self.entries, key=lambda entry: entry["notebook"]):
            result = "passed" if entry["ok"] else f"FAILED  {entry['error']}"
            seconds = f"{entry['seconds']:.1f}"
            rows.append({"notebook": entry["notebook"], "seconds": seconds, "result": result})
        if rows:
            print(f"{self.erase}\n{table(rows)}\n\n{findings_line(out, self.sources)}")
        print(f"{self.passed} of {len(self.sources)} passed, profile {self.pace.profile}, in {out}")
        if self.passed < len(rows):
            print(f"what failed, up to its error: {out / 'failed'}")
        if (page := out / "html" / "index.html").is_file():
            print(f"to read: {page}")


def findings_line(out: Path, sources: Sequence[Path]) -> str:
    """How many of these notebooks' findings hold in the run at `out`, in one line."""
    holds, not_so, too_short = 0, 0, 0
    for source in sources:
        saved = read_json(out / "json" / f"{source.stem[:2]}.json")
        for finding in saved.get("findings", []) if isinstance(saved, dict) else []:
            holds += finding["enough"] and finding["holds"]
            not_so += finding["enough"] and not finding["holds"]
            too_short += not finding["enough"]
    short = f", for {too_short} it is too short" if too_short else ""
    return f"findings: {holds} hold, {not_so} do not in this run{short}"


# ------------------------------------------------------------------ what is asked for


def find_profile(name: str) -> Profile:
    """The profile of that name. Raises ValueError, and RunError for "gpu" without a CUDA device."""
    cuda = pick_device().device.type == "cuda"
    profile = get_profile(name, cuda=cuda)
    if profile.name == "gpu" and not cuda:
        raise RunError("profile 'gpu', but torch sees no CUDA device: choose laptop, or auto")
    return profile


def select(names: Sequence[str], folder: Path, default: Sequence[str] = ()) -> list[Path]:
    """The notebooks of `folder` that the names mean: 3, 03, last, 03_last, or a path.

    Without names, those with a number in `default`; all, where none has one. Always in the order of
    their numbers. Raises RunError for an unknown name.
    """
    sources = sorted(folder.glob("[0-9][0-9]_*.ipynb"))
    if not sources:
        raise RunError(f"no notebooks in {folder}: they are named NN_title.ipynb")
    if not names:
        return [path for path in sources if path.stem[:2] in default] or sources
    there, chosen = {}, set()
    for path in sources:
        words = (path.stem, path.stem[:2], str(int(path.stem[:2])), path.stem[3:], path.resolve())
        there |= dict.fromkeys(words, path)
    for name in map(Path, names):
        key = name.resolve() if len(name.parts) > 1 else name.name.removesuffix(".ipynb")
        if key not in there:
            stems = ", ".join(path.stem for path in sources)
            raise RunError(f"'{name}' names no notebook: there is {stems}")
        chosen.add(there[key])
    return sorted(chosen)


def check_out(out: Path) -> None:
    """Raise RunError for an output folder where executed copies would replace what is ours."""
    inside = ROOT / "outputs" not in out.parents and ROOT in (out, *out.parents)
    if inside or PUBLISHED in (out, *out.parents):
        raise RunError(f"{out} is part of the project itself: choose a folder below outputs/run")
