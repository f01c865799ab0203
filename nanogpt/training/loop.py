"""The training loop: `train`, and how a run is measured, saved and reported."""

import math
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from ..config import check_type
from ..console import Progress
from ..data import CharTokenizer, Corpus, split
from ..device import Device, forked_random_state, pick_device, synchronize
from ..generation import check_forwards
from ..model import LanguageModel
from .evaluation import Batches, fixed_batches, full_loss, mean_loss
from .history import History, TrainingResult
from .preparation import form_to_train
from .processes import ALONE, Team
from .recipes import TrainConfig
from .resume import RunFiles
from .signals import deferred_interrupt
from .trainer import Trainer


def train(
    model: LanguageModel,
    corpus: Corpus,
    config: TrainConfig,
    *,
    tokenizer: CharTokenizer | None = None,
    out: str | Path | None = None,
    device: Device | None = None,
    resume: bool = False,
    speed: bool = False,
    watch: Callable[[int, LanguageModel], None] | None = None,
    trainer: type[Trainer] = Trainer,
    team: Team = ALONE,
) -> TrainingResult:
    """Train the model in place and return its history as plain data, ready to plot.

    A GPT, whose layers are lists of heads, is trained as a packed Decoder, which computes the same
    function in about half the time; the weights are copied back at the end. `out` is where
    checkpoints, a log and the training state are written; those of an earlier run of ours are
    replaced. With `resume`, a stopped run continues from its last saved state, and its final
    weights are bit-identical to those of an uninterrupted run. Ctrl-C finishes the step,
    saves, and raises. Each evaluation prints a line (including the throughput with `speed`) and
    calls `watch(step, model)`. `trainer` is the class that executes the steps, `team` the processes
    that share them (`nanogpt.training.processes.joined`).

    Raises TypeError for an argument of the wrong type; ValueError for a vocabulary or corpus that
    does not fit, a state with other settings, or unrelated files at `out`; CheckpointError for a
    damaged state and for trained weights whose state is lost; MemoryError, with advice; and
    FloatingPointError if the loss is not finite.
    """
    # 1. What is certain to fail fails now, before the model or a file changes.
    _check_arguments(model, corpus, config, tokenizer, device, resume, speed, watch, team)
    device = device or pick_device()

    # 2. The text as numbers: the first 90 % for training, the rest for validation.
    if tokenizer is None:
        tokenizer = CharTokenizer(corpus.text)
    n = len(tokenizer)
    if model.config.vocab_size != n:
        raise ValueError(
            f"the model has {model.config.vocab_size} characters, the vocabulary {n}: "
            f"build the model with GPTConfig(vocab_size={n})"
        )
    data, val = split(tokenizer.encode(corpus.text), model.config.block_size)

    # 3. The files of the run: can it begin or resume there?
    files = None if out is None else RunFiles(out, model, corpus, config, tokenizer)
    if resume and not files:
        raise ValueError("resume=True, but no `out` says where the run was saved")
    if files:
        files.check(resume)

    # 4. Initialize the model and bring it into the form in which it is trained; at the end of the
    #    block its weights are copied back.
    form = form_to_train(model, config, device)
    with form as (worker, generator), _memory_advice(config, team), forked_random_state(device):
        # Batches come from a generator of their own; dropout uses the global one.
        torch.manual_seed(config.seed)
        run = TrainingRun(
            trainer(worker, data, config, generator, device, team), val, files, speed, watch
        )
        # 5. Continue where the saved state ends. It replaces all that was just initialized.
        if files and resume:
            run.done = files.load_state(run.trainer, run.history)
        # 6. The steps and evaluations that are left.
        run.train()
    return run.result()


@contextmanager
def _memory_advice(config: TrainConfig, team: Team) -> Iterator[None]:
    """Wrap training: out of memory becomes a MemoryError that says how to use less."""
    try:
        yield
    except (RuntimeError, MemoryError) as error:
        words = ("can't allocate memory", "not enough memory")  # the CPU allocator's
        full = isinstance(error, (torch.OutOfMemoryError, MemoryError))
        if not full and not any(part in str(error) for part in words):
            raise
        size = config.batch_size
        raise MemoryError(
            f"out of memory with a batch of {size} windows "
            f"in parts of {size // config.accumulate}: "
            f"use a smaller model or batch_size, or up to accumulate={size // team.size}"
        ) from error


class Stopped(KeyboardInterrupt):
    """Raised when Ctrl-C stops a run; the model has that step's weights, `history` the losses."""

    def __init__(self, words: str, history: TrainingResult):
        super().__init__(words)
        self.history = history


@dataclass(eq=False)
class TrainingRun:
    """Everything around the steps of a run: evaluation, history, saving, Ctrl-C and the clock."""

    trainer: Trainer
    val: Tensor
    files: RunFiles | None
    speed: bool
    watch: Callable[[int, LanguageModel], None] | None

    def __post_init__(self) -> None:
        trainer = self.trainer
        self.config = trainer.config
        self.model = trainer.model
        self.team = trainer.team
        self.device = trainer.device.device
        self.fixed: dict[int, list[Batches]] = {}  # for training and validation, by block
        self.history = History()
        self.done = 0  # steps of an earlier part of this run
        self.meter = Meter(trainer.device)

    def train(self) -> None:
        """Run the first evaluation and all remaining steps."""
        steps = self.config.steps
        every = self.config.eval_every
        bar = Progress(steps, "train", initial=self.done, hidden=not self.team.first)
        with bar as self.bar, deferred_interrupt() as self.interrupts:
            # 1. Evaluate the untrained model, unless this run resumes: the curve begins at step 0.
            if not self.history.step:
                self.evaluate(0)
            for step in range(self.done, steps):
                # 2. Stop between two steps, if Ctrl-C was pressed during the last one.
                self.stop_if_asked(step)
                # 3. One update of the weights.
                self.record(step, self.trainer.step(step))
                # 4. From time to time, and at the end, evaluate and save.
                if (step + 1) % every == 0 or step + 1 == steps:
                    self.evaluate(step + 1)
            self.stop_if_asked(steps)

    def record(self, step: int, loss: Tensor) -> None:
        """Record the loss of a step. Raises FloatingPointError if it is not finite."""
        # On a GPU, reading the loss would wait for all queued work: there the loss stays on the
        # device, and NaN is noticed at the next evaluation.
        if self.device.type == "cpu":
            self._check_finite(float(loss), step)
            self.bar.set_postfix_str(f"loss {float(loss):.2f}", refresh=False)
        self.history.add_step(self.config.scale(step), loss)
        block, n = self.trainer.window(step)
        self.meter.tokens += n * block
        self.bar.update()

    def evaluate(self, step: int) -> None:
        """Measure losses at the current block, save, print a line, and call `watch`."""
        self.meter.lap(trained=True)  # the clock counts the steps alone
        if self.team.first:
            # 1. The losses on fixed windows, as long as those of the last step.
            block, _ = self.trainer.window(max(0, step - 1))
            train, val = self.measure(block)
            self._check_finite(train, step)
            self._check_finite(val, step)
            # 2. A new run first saves its state: from now on --resume continues it, and not an
            #    earlier run that wrote to the same place.
            if not self.history.step:
                self.save(step)
            self.history.add_evaluation(step, train, val, block)
            # 3. At the end, also the loss on the whole validation text.
            if step == self.config.steps:
                self.history.full_val = full_loss(self.model, self.val)
            # 4. Checkpoints and the log, then the state: a run that is killed in between repeats
            #    the evaluation and writes the same files again.
            if self.files:
                self.files.save_newest(self.model, self.history, self.meter.summary())
            self.save(step)
            # 5. Tell the user, and show the model to the caller, whose sampling changes nothing.
            line = f"step {step:5d} of {self.config.steps} | train {train:.4f} | val {val:.4f}"
            if self.config.stages:
                line += f" | block {block}"
            if self.speed:
                line += f" | {self.meter.summary()['chars_per_second'] or 0:,} chars/s"
            self.bar.print(line)
            if self.watch:
                with forked_random_state(self.trainer.device):
                    self.watch(step, self.model)
                self.model.train()
        self.meter.lap(trained=False)

    def measure(self, block: int) -> tuple[float, float]:
        """Training and validation loss on fixed windows of `block` characters.

        Both in nats per character.
        """
        # Every evaluation reads the same windows, so that losses differ only by the model.
        if block not in self.fixed:
            n = self.config.eval_batches
            parts = (self.trainer.data, self.val)
            self.fixed[block] = [fixed_batches(part, block, n, self.device) for part in parts]
        means = [mean_loss(self.model, batches) for batches in self.fixed[block]]
        train, val = torch.stack(means).tolist()  # a single synchronization
        return train, val

    def save(self, step: int) -> None:
        """Save the state that the next step depends on."""
        if self.files and self.team.first:
            self.files.save_state(step, self.trainer, self.history)

    def stop_if_asked(self, step: int) -> None:
        """If Ctrl-C was pressed, in any process, save and raise Stopped, with advice."""
        # All processes must stop at the same step, because each step waits for all of them. Asking
        # the others also waits for the GPU's queue: there, only at every tenth step.
        last = step == self.config.steps
        if self.team.size > 1 and self.device.type == "cuda" and step % 10 and not last:
            return
        if not self.team.any_process(bool(self.interrupts), self.device):
            return
        self.save(step)
        saved = "; nothing was saved, because no `out` was given"
        if self.files:
            saved = " and saved: the same call with resume=True resumes from here"
        raise Stopped(f"stopped after {step} steps{saved}", self.result())

    def result(self) -> TrainingResult:
        """The history as plain data, with the loss over the whole validation text."""
        return self.history.result(self.model.config.block_size)

    def _check_finite(self, loss: float, step: int) -> None:
        """Raise FloatingPointError, with advice, if the loss is infinite or NaN."""
        c = self.config
        if not math.isfinite(loss):
            muon = f", muon_lr={c.muon_lr / 2:g}" if c.muon_lr else ""
            raise FloatingPointError(
                f"the loss is {loss} at step {step}: "
                f"try half the learning rate, lr={c.lr / 2:g}{muon}, or "
                f"warmup={max(10, 2 * c.warmup)}"
            )


def _check_arguments(
    model: LanguageModel,
    corpus: Corpus,
    config: TrainConfig,
    tokenizer: CharTokenizer | None,
    device: Device | None,
    resume: bool,
    speed: bool,
    watch: Callable[[int, LanguageModel], None] | None,
    team: Team,
) -> None:
    """Check the arguments of `train`. Raises TypeError, and ValueError for untrainable weights."""
    # 1. Types, by name.
    check_type("model", model, LanguageModel)
    check_type("corpus", corpus, Corpus)
    check_type("config", config, TrainConfig)
    check_type("device", device, (Device, type(None)))
    check_type("resume", resume, bool)
    check_type("speed", speed, bool)
    check_type("team", team, Team)
    if watch is not None and not callable(watch):
        raise TypeError(f"watch={watch!r:.80}: pass a function of a step and a model")
    # 2. A model that cannot be trained.
    if model.device.type == "meta":
        raise ValueError("the model is on the meta device, without data: build it on the CPU")
    check_forwards(model)
    if not any(weight.requires_grad for weight in model.parameters()):
        raise ValueError("all weights are frozen: set requires_grad on those to train")
    # 3. A tokenizer, but not by its class: the tokenizer of notebook 01 is a class of its own cell.
    sized = hasattr(tokenizer, "encode") and hasattr(tokenizer, "__len__")
    if tokenizer is not None and not sized:
        raise TypeError(f"tokenizer={tokenizer!r:.80}: pass a CharTokenizer of the text")


class Meter:
    """A clock for training without evaluation; it starts when the run starts or resumes."""

    def __init__(self, device: Device):
        self.device = device
        self.tokens = 0
        self.seconds = 0.0
        self.last = time.perf_counter()

    def lap(self, trained: bool) -> None:
        """Count the time since the last lap if it was spent on training; waits for a GPU."""
        synchronize(self.device.device)  # a GPU works on after its calls have returned
        before = self.last
        self.last = time.perf_counter()
        if trained:
            self.seconds += self.last - before

    def summary(self) -> dict[str, float | None]:
        """Seconds of training, and characters per second; None before the first step."""
        speed = self.tokens / self.seconds if self.seconds else 0.0
        return {"seconds": round(self.seconds, 3), "chars_per_second": round(speed) or None}
