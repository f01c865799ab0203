"""A notebook's run: figures, results and the model."""

from __future__ import annotations

import base64
import gc
import os
import platform
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from IPython.display import Image, display
from matplotlib.figure import Figure

from ..bench.environment import conditions, environment
from ..config import check_int
from ..course import lesson as lessons
from ..course.practice import model_with, trainer_with
from ..data import CharTokenizer, Corpus, load_corpus, split
from ..decoder.checkpoint import Checkpoint
from ..device import Device, pick_device
from ..files import (
    PUBLISHED,
    ROOT,
    check_writable,
    path_in,
    read_json,
    sha256,
    write_json,
    write_whole,
)
from ..model import GPT, LanguageModel
from ..site.plots import style
from ..training.evaluation import full_loss
from ..training.history import TrainingResult
from ..training.loop import Stopped
from ..training.trainer import Trainer
from .findings import Finding, as_data, published_findings
from .profiles import Profile, beside_published, get_profile
from .weights import load_or_train


@dataclass
class Run:
    """One notebook's run: its settings, its corpus, and where its files go."""

    number: str  # the notebook's number: "04"
    profile: Profile
    device: Device
    corpus: Corpus
    parameters: dict[str, Any]
    out: Path
    card: dict[str, Any] = field(repr=False)  # the environment card
    findings: list[Finding] = field(default_factory=list, repr=False)
    about: str = ""  # what the figures show, if nothing in the notebook depends on the corpus

    mine = staticmethod(lessons.mine)

    def figure(
        self,
        figure: Figure,
        name: str,
        alt: str,
        *,
        note: str = "",
        published: str = "",
        moving: tuple[str, dict[str, Any]] | None = None,
    ) -> None:
        """Save a matplotlib figure as figures/NN_name.png, and show it with its alt text.

        Its footer states this run's conditions, after `note`. A figure that this run did not
        measure states the conditions `published` instead. `moving` is the kind of an interactive
        figure, a script in figures/, and its data: a page shows it instead of the still.
        Every figure is also drawn for phones.
        """
        footer = f"published, not from this run: {published}" if published else self._footer(note)
        narrow = style.for_phone(figure)
        phone = style.to_png(narrow, footer) if narrow else None
        self._picture(style.to_png(figure, footer), name, alt, moving, phone)

    def finding(
        self,
        name: str,
        claim: str,
        holds: bool,
        numbers: str,
        *,
        enough: bool = True,
        needs: str = "",
    ) -> bool:
        """Print whether this run supports a claim; returns True if it does.

        `claim` is a clause without numbers, `numbers` are this run's. `enough` is whether its
        steps, seeds or repeats suffice, and `needs` says how many it takes and how many it has.
        If the run does not support the claim, the published result is printed below it.
        """
        finding = Finding(name, claim, numbers, bool(holds), bool(enough), needs)
        self.findings = [one for one in self.findings if one.name != name] + [finding]
        print(finding.lines(published_findings(self.number).get(name)))
        return finding.supported

    def check(self, holds: bool, otherwise: str) -> bool:
        """Print `otherwise` if a condition fails; raise it if no code is the reader's.

        A bare assertion would stop a notebook at reader's code that its check has accepted.
        Raises AssertionError.
        """
        if not holds:
            if not lessons.read_lesson().begun:
                raise AssertionError(otherwise)
            print(f"Not with your code: {otherwise}.")
        return bool(holds)

    def animation(
        self, figures: list[Figure], name: str, alt: str, *, note: str, milliseconds: int
    ) -> None:
        """Like `figure`, for an animated PNG; viewers without animation show the first frame.

        The phone version has every sixth frame, with the same duration, to keep the file small.
        """
        footer = self._footer(note)
        phone = None
        shown = (figures[0], *figures[1:-1:6], figures[-1])
        narrow = [one for one in map(style.for_phone, shown) if one]
        if len(narrow) == len(shown):
            phone = style.to_apng(narrow, footer, 6 * milliseconds)
        self._picture(style.to_apng(figures, footer, milliseconds), name, alt, phone=phone)

    def save(self, **results: Any) -> None:
        """Write the results, plain data, to json/NN.json with everything they depend on."""
        path = self.out / "json" / f"{self.number}.json"
        used = {"name": self.corpus.name, "sha256": self.corpus.sha256}
        corpus = None if self.about else used
        data = {
            "notebook": self.number,
            "profile": self.profile.name,
            "parameters": self.parameters,
            "corpus": corpus,
            "environment": self.card,
            "findings": as_data(self.findings),
            "results": results,
        }
        write_json(path, data)
        print(f"results: json/{path.name}")

    def load_model(self, checkpoint: str = "auto") -> Checkpoint:
        """The trained model that lessons use: this run's, published, or trained now; prints which.

        Raises CheckpointError for a named file that does not fit.
        """
        size = self.profile.size
        with self.training():
            trained = load_or_train(
                self.corpus,
                self.profile.train,
                size=size,
                checkpoint=checkpoint,
                keep=[folder / "checkpoints" / size for folder in self._folders()],
                device=self.device,
            )
        if _is_yours(trained):
            trained.origin = "the model that you trained in notebook 01"
        print(trained)
        return trained

    def gain(self, checkpoint: str) -> str:
        """The cache's speedup with those weights, as measured by notebook 05 in this run.

        Without such a measurement, returns the published one, marked as such.
        """
        for folder in [*self._folders(), PUBLISHED]:
            results = (read_json(folder / "json" / "05.json") or {}).get("results", {})
            ratio = results.get("gain_255")
            published = folder == PUBLISHED
            if ratio and (published or results["checkpoint"] == checkpoint):
                gain = style.format_ratio(ratio, 2)
                return f"{gain}, published, not from this run," if published else gain
        return "what it prints"

    def trainer(self, *names: str) -> type[Trainer]:
        """The trainer of 01's model, with the reader's code or the package's; prints which.

        `names` are the exercises involved: "attention_weights", "one_step". If the reader has
        written neither, the package's own fused steps train.
        """
        lesson = lessons.read_lesson().check(names)
        if not {*names} & {*lesson.yours} or self.device.dtype == torch.float16:
            print(
                "the package's own attention and step train this model; yours will, once you "
                "have written them"
            )
            return Trainer
        lesson.say(names, "{} train this model")
        return trainer_with(*(lesson.scope[name] for name in names))

    def my_model(self, model: GPT) -> GPT:
        """The model with the reader's heads, or the solution's; prints which.

        Raises LessonError for an architecture that the lecture's heads do not support.
        """
        lesson = lessons.read_lesson()
        lesson.say(["Head"])
        return model_with(lesson, model)

    def keep_model(self, path: Path) -> None:
        """Copy that checkpoint's weights next to the reader's lesson, which loads them."""
        if lessons.read_lesson().begun:
            to = lessons.lesson_path().with_name("model.safetensors")
            write_whole(to, path.with_name(f"{path.name}.safetensors").read_bytes())
            print(f"copied to {to}: `python {to.with_name('lesson.py')}` generates text with them")

    @property
    def train_threads(self) -> int | None:
        """The CPU threads for training: as many as the profile says, if available."""
        return allowed_threads(self.profile.train_threads)

    def history_until(self, stopped: Stopped, model: LanguageModel) -> TrainingResult:
        """The history of a training that the reader stopped, with its validation loss on all text.

        Raises `stopped` again in a headless run.
        """
        if lessons.headless():
            raise stopped
        done = len(stopped.history["batch_loss"])
        print(f"{stopped}. The rest of this notebook uses these {done:,} steps.")
        data = CharTokenizer(self.corpus.text).encode(self.corpus.text)
        _, val = split(data, model.config.block_size)
        return stopped.history | {"full_val": full_loss(model, val)}

    @contextmanager
    def training(self) -> Iterator[None]:
        """Context manager: torch uses the CPU threads for training."""
        threads = torch.get_num_threads()
        torch.set_num_threads(self.train_threads or threads)
        try:
            yield
        finally:
            torch.set_num_threads(threads)

    def checkpoint(self, name: str) -> Path:
        """The path of the checkpoint with that name, without suffix."""
        return self.out / "checkpoints" / name

    def _folders(self) -> list[Path]:
        """This notebook's folder, and the runner's output folder for earlier notebooks."""
        earlier = os.environ.get("NANOGPT_RUN")
        return [self.out, *([Path(earlier)] if earlier else [])]

    def _footer(self, note: str) -> str:
        about = self.about or self.corpus.name
        parts = [note, conditions(self.card), about, f"profile {self.profile.name}"]
        return style.SEPARATOR.join(part for part in parts if part)

    def _picture(
        self,
        png: bytes,
        name: str,
        alt: str,
        moving: tuple[str, dict[str, Any]] | None = None,
        phone: bytes | None = None,
    ) -> None:
        write_whole(self.out / "figures" / f"{self.number}_{name}.png", png)
        about: dict[str, Any] = {"alt": alt, "name": name}
        if phone:
            about["phone"] = base64.b64encode(phone).decode("ascii")
        if moving:
            kind, data = moving
            about["moving"] = {"kind": kind, "data": data}
        display(Image(data=png, format="png", metadata=about))


def allowed_threads(wanted: int | None) -> int | None:
    """`wanted` CPU threads, but at most OMP_NUM_THREADS and this process's CPUs."""
    if wanted is None:
        return None
    limits = [wanted, os.cpu_count() or 1]
    if hasattr(os, "sched_getaffinity"):
        limits.append(len(os.sched_getaffinity(0)))
    said = os.environ.get("OMP_NUM_THREADS", "").partition(",")[0].strip()
    if said.isdecimal() and int(said):
        limits.append(int(said))
    return min(limits)


def _is_yours(trained: Checkpoint) -> bool:
    """Whether these are the weights from the reader's own training, next to the lesson."""
    path = lessons.lesson_path().with_name("model.safetensors")
    return path.is_file() and sha256(path) == trained.sha256


def open_run(
    number: str, *, profile: str = "auto", mine: str | bool = "auto", **parameters: Any
) -> Run:
    """Check a notebook's parameters, load the corpus, and print the settings.

    `mine` says whose code runs if the reader has written some; see course.lesson.choose.
    Files go to the folder in NANOGPT_OUT, or else to outputs/run/PROFILE-lab, separate from those
    of `python -m nanogpt run`, whose manifest does not list them. Raises ValueError for an unknown
    profile or `mine`, or an unusable seed, CorpusError for a corpus that cannot be used, and
    OSError for a folder that cannot be written.
    """
    gc.freeze()  # exempt imported objects: timings collect garbage before each turn
    device = pick_device()
    chosen = get_profile(profile, cuda=device.device.type == "cuda")
    lessons.choose(mine)
    check_int("seed", parameters.get("seed", 0), 0, 2**63 - 1)
    decoding = allowed_threads(chosen.threads)
    if decoding:
        torch.set_num_threads(decoding)
    corpus = load_corpus()
    out = path_in("NANOGPT_OUT") or ROOT / "outputs" / "run" / f"{chosen.name}-lab"
    check_writable(out / f"{number}.json")  # fail now, not after the work
    threads = torch.get_num_threads()
    training = allowed_threads(chosen.train_threads)
    print(f"python {platform.python_version()}, torch {torch.__version__}, device {device}")
    more = f" ({training} to train)" if training else ""
    print(f"profile {chosen.name}, {threads} CPU thread{'s' * (threads > 1)}{more}")
    print(beside_published(chosen))
    print(corpus)
    if corpus.banner:
        print(f"\n{corpus.banner}")
    return Run(number, chosen, device, corpus, parameters, out, environment(device))
