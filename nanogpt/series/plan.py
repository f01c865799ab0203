"""The plan of a run: everything that is decided before the first notebook starts.

`make_plan` checks what was asked for, and either refuses it or returns a `Plan`, which the runner
carries out. One number is measured: the time that this machine takes for a fixed piece of work. It
only predicts how long the run will take, and never changes what is done.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from enum import Enum
from pathlib import Path
from typing import Any

from ..bench.pace import seconds_of_work
from ..bench.tables import clock_text, table
from ..data import SHA256, Corpus, CorpusError, fewest_characters, load_corpus
from ..device import pick_device
from ..files import PUBLISHED, ROOT, real_path
from ..site.nbfile import is_student_edition, read, read_manifest
from ..training.folders import check_folder
from .parameters import RunError, assign
from .profiles import Profile, get_profile

# `make run` runs the spine, and the branches that also fit into ten minutes.
DEFAULT = ("00", "01", "02", "03", "04", "05", "06", "07", "12")
LONGEST = 512  # characters in notebook 08's longest window of validation text
# A complete run of each of these profiles: its manifest has the seconds of each notebook, and of a
# fixed piece of work on the same machine.
MEASURED = {"laptop": ROOT / "outputs" / "laptop", "full": PUBLISHED}


class Purpose(Enum):
    """What a run is for."""

    RUN = "run"
    PUBLISH = "--publish"  # all notebooks, to replace outputs/published
    REPRODUCE = "--reproduce"  # all notebooks, to be compared with outputs/published


@dataclass(frozen=True)
class Pace:
    """How long each notebook will take on this machine, if known."""

    profile: str
    work: float | None = None  # `seconds_of_work` on this machine
    speed: float = 1.0  # this machine's speed relative to the measured run's machine
    seconds: dict[str, float] = field(default_factory=dict)

    @property
    def total(self) -> float:
        """Seconds of all notebooks; 0 if unknown."""
        return sum(self.seconds.values())

    def __str__(self) -> str:
        """The profile, and the minutes of each notebook and in total."""
        if not self.seconds:
            return f"profile {self.profile}"
        minutes = self.seconds | {"in all, about": self.total}
        rows = [{"notebook": name, "minutes": clock_text(s)} for name, s in minutes.items()]
        speed = f"this machine is {self.speed:.2f} times as fast as that of the measured run"
        return f"profile {self.profile}: the same work on every machine\n{speed}\n{table(rows)}"


@dataclass(frozen=True)
class Plan:
    """A run, checked and ready: what, with which values and on which text, where to, and why."""

    purpose: Purpose
    profile: Profile
    sources: list[Path]  # the notebooks, in the order in which they run
    settings: list[str]  # as given: name=value
    values: dict[str, dict[str, Any]]  # the parameters of each notebook, by its name
    corpus: Corpus
    out: Path  # a run that is published or compared gets a new folder instead
    pace: Pace
    html: bool  # whether the pages are rendered
    timeout: int  # seconds for each cell

    @property
    def whole(self) -> bool:
        """Whether this is a run of all notebooks, to be published or compared."""
        return self.purpose is not Purpose.RUN


def make_plan(
    names: Sequence[str] = (),
    *,
    every: bool = False,
    purpose: Purpose = Purpose.RUN,
    profile: str = "auto",
    settings: Sequence[str] = (),
    out: Path | None = None,
    overwrite: bool = False,
    html: bool = True,
    timeout: int = 1800,
    source: Path | None = None,
) -> Plan:
    """Plan a run of the notebooks `names`, of `every` one, or of DEFAULT.

    `settings` are name=value, and `source` is a folder with other notebooks. Raises RunError or
    ValueError for what cannot run as asked, and CorpusError for a text that cannot be used.
    """
    # 1. How much work, and which notebooks?
    whole = purpose is not Purpose.RUN
    chosen = find_profile("full" if whole and profile == "auto" else profile)
    default = () if every or whole or chosen.name == "smoke" else DEFAULT
    sources = select(names, source or ROOT / "notebooks", default)
    if every and names:
        raise RunError("--all runs all notebooks: leave it out, or the names")
    check_edition(sources)
    # 2. Where do the results go?
    folder = real_path(out or ROOT / "outputs" / "run" / chosen.name)
    check_out(folder)
    if out:
        check_folder(folder, "manifest.json", overwrite)
    # 3. On which text? A run that is published or compared is the published one, unchanged.
    corpus = load_corpus()
    check_length(corpus)
    changed = bool(names or settings or out or source)
    if whole and (changed or chosen.name != "full" or corpus.sha256 != SHA256):
        raise RunError(
            f"{purpose.value} runs all notebooks as they are, in profile full, on Tiny Shakespeare "
            f"(data/README.md): leave out names, -p, --out. "
            f"This is profile {chosen.name}, on {corpus.name}"
        )
    # 4. With which parameters, and for how long?
    values = assign(sources, settings, chosen.name)
    pace = estimate(chosen.name, [path.stem for path in sources])
    return Plan(
        purpose=purpose,
        profile=chosen,
        sources=sources,
        settings=list(settings),
        values=values,
        corpus=corpus,
        out=folder,
        pace=pace,
        html=html,
        timeout=timeout,
    )


def estimate(profile: str, names: list[str]) -> Pace:
    """The seconds that these notebooks took in the measured run, times one measured ratio.

    The ratio compares the seconds that a fixed piece of work takes, here and on that machine.
    Profiles and notebooks that no file in MEASURED is about have no estimate.
    """
    if profile not in MEASURED:
        return Pace(profile)
    # 1. What did each notebook take, on the machine that it was measured on?
    measured = read_manifest(MEASURED[profile])
    seconds = {entry["notebook"]: entry["seconds"] for entry in measured["notebooks"]}
    took = {name: seconds[name] for name in names if name in seconds}
    # 2. How much longer does this machine take for the same work?
    work = round(seconds_of_work(), 4)  # also kept in the manifest, for the next run's estimate
    ratio = work / measured.get("work_seconds", work)
    return Pace(profile, work, 1 / ratio, {name: took[name] * ratio for name in took})


# ------------------------------------------------------------------ its checks


def check_edition(sources: Sequence[Path]) -> None:
    """Raise RunError for the student edition: a headless run needs the solutions."""
    for path in sources:
        if is_student_edition(read(path)):
            raise RunError(
                f"{path} belongs to the student edition, which has no solutions to fill in: run "
                "the repository's notebooks, or step through this one in JupyterLab"
            )


def find_profile(name: str) -> Profile:
    """The profile of that name. Raises ValueError, and RunError for "gpu" without a CUDA device."""
    cuda = pick_device().device.type == "cuda"
    profile = get_profile(name, cuda=cuda)
    if profile.name == "gpu" and not cuda:
        raise RunError(
            "profile 'gpu' needs a CUDA device, and torch sees none: choose laptop, or auto"
        )
    return profile


def select(names: Sequence[str], folder: Path, default: Sequence[str] = ()) -> list[Path]:
    """The notebooks of `folder` given by name: 3, 03, last, 03_last, or a path.

    Without names, those with a number in `default`, or all if there are none. Always ordered by
    number. Raises RunError for an unknown name.
    """
    sources = sorted(folder.glob("[0-9][0-9]_*.ipynb"))
    if not sources:
        raise RunError(f"no notebooks in {folder}: they must be named NN_title.ipynb")
    if not names:
        return [path for path in sources if path.stem[:2] in default] or sources
    paths_by_name: dict[str | Path, Path] = {}
    chosen = set()
    for path in sources:
        number = path.stem[:2]
        for word in (path.stem, number, str(int(number)), path.stem[3:], real_path(path)):
            paths_by_name[word] = path
    for name in map(Path, names):
        key = real_path(name) if len(name.parts) > 1 else name.name.removesuffix(".ipynb")
        if key not in paths_by_name:
            stems = ", ".join(path.stem for path in sources)
            raise RunError(f"there is no notebook '{name}': choose from {stems}")
        chosen.add(paths_by_name[key])
    return sorted(chosen)


def check_length(corpus: Corpus) -> None:
    """Raise CorpusError for a text that is too short for the notebooks."""
    fewest = fewest_characters(LONGEST)
    if len(corpus.text) < fewest:
        raise CorpusError(
            f"{corpus.name} has {len(corpus.text):,} characters, but the notebooks need at least "
            f"{fewest:,}: use a longer text"
        )


def check_out(out: Path) -> None:
    """Raise RunError for an output folder in which executed copies would replace our own files."""
    inside = ROOT / "outputs" not in out.parents and ROOT in (out, *out.parents)
    if inside or PUBLISHED in (out, *out.parents):
        raise RunError(f"{out} is part of the project itself: choose a folder below outputs/run")
