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
from ..decoder.pack import pack_heads, unpack_state
from ..decoder.standard import first_difference, not_standard
from ..device import Device, forked_random_state, pick_device, synchronize
from ..model import GPT, LanguageModel, check_forwards
from .first_weights import previous_token_init, zero_init
from .history import History, TrainingResult
from .recipes import TrainConfig
from .resume import RunFiles, deferred_interrupt
from .trainer import Batches, Trainer, fixed_batches, full_loss, mean_loss, memory_advice


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
) -> TrainingResult:
    """Train the model in place and return its history as plain data, ready to plot.

    A GPT, whose layers are lists of heads, is trained as a packed Decoder, which computes the same
    function in about half the time; the weights are copied back at the end. `out` is where
    checkpoints, a log and the training state are written; those of an earlier run of ours are
    replaced. With `resume`, a stopped run continues from its last saved state, and its final
    weights are bit-identical to those of an uninterrupted run. Ctrl-C finishes the step,
    saves, and raises. Each evaluation prints a line (including the throughput with `speed`) and
    calls `watch(step, model)`. `trainer` is the class that executes the steps.

    Raises TypeError for an argument of the wrong type; ValueError for a vocabulary or corpus that
    does not fit, a state with other settings, or unrelated files at `out`; CheckpointError for a
    damaged state and for trained weights whose state is lost; MemoryError, with advice; and
    FloatingPointError if the loss is not finite.
    """
    _check_arguments(model, corpus, config, tokenizer, device, resume, speed, watch)
    device = device or pick_device()
    if tokenizer is None:
        tokenizer = CharTokenizer(corpus.text)
    n = len(tokenizer)
    if model.config.vocab_size != n:
        raise ValueError(
            f"the model has {model.config.vocab_size} characters, the vocabulary {n}: "
            f"build the model with GPTConfig(vocab_size={n})"
        )
    data, val = split(tokenizer.encode(corpus.text), model.config.block_size)
    files = None if out is None else RunFiles(out, model, corpus, config, tokenizer)
    if resume and not files:
        raise ValueError("resume=True, but no `out` says where the run was saved")
    if files:
        files.check(resume)
    form = _form_to_train(model, config, device)
    advice = memory_advice(config, trainer.size)
    with form as (worker, generator), advice, forked_random_state(device):
        torch.manual_seed(config.seed)  # for dropout, which takes no generator
        steps = trainer(worker, data, config, generator, device)
        run = TrainingRun(steps, val, files, speed, watch)
        if files and resume:
            run.done = files.load_state(steps, run.history)
        run.train()
    return run.result()


def prepare(
    model: LanguageModel, config: TrainConfig, device: Device
) -> tuple[LanguageModel, torch.Generator]:
    """The initialized model, in the form in which it is trained, and the generator of batches."""
    generator = torch.Generator().manual_seed(config.seed)
    try:
        if config.zero_init:
            zero_init(model, generator)
        if config.previous_token_init:
            previous_token_init(model)
    except (AttributeError, TypeError, IndexError) as error:
        raise ValueError(
            f"this recipe initializes the package's own layers, and this model has "
            f"{first_difference(model)}: pass zero_init=False, previous_token_init=False"
        ) from error
    packs = config.batched and isinstance(model, GPT) and _trains_alike(model)
    worker = pack_heads(model) if packs else model
    return worker.to(device.device).train(), generator


def _trains_alike(model: LanguageModel) -> bool:
    """Whether a packed copy trains like the model: no weight is shared and none is frozen."""
    weights = list(model.parameters())
    n_names = sum(1 for _ in model.named_parameters(remove_duplicate=False))
    if not_standard(model) or len(weights) != n_names:
        return False
    if any(module._backward_hooks or module._backward_pre_hooks for module in model.modules()):
        return False
    return all(weight.requires_grad and not weight._backward_hooks for weight in weights)


@contextmanager
def _form_to_train(
    model: LanguageModel, config: TrainConfig, device: Device
) -> Iterator[tuple[LanguageModel, torch.Generator]]:
    """The result of `prepare`, as a context manager; on exit the model has the trained weights."""
    was_training = model.training
    worker, generator = prepare(model, config, device)
    try:
        yield worker, generator
    finally:
        if worker is not model:
            state = unpack_state(worker.state_dict(), model.config)
            model.to(device.device).load_state_dict(state)
        model.train(was_training)


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
        self.first = trainer.first
        self.device = trainer.device.device
        self.fixed: dict[int, list[Batches]] = {}  # for training and validation, by block
        self.history = History()
        self.done = 0  # steps of an earlier part of this run
        self.meter = Meter(trainer.device)

    def train(self) -> None:
        """Run the first evaluation and all remaining steps."""
        steps = self.config.steps
        every = self.config.eval_every
        bar = Progress(steps, "train", initial=self.done, hidden=not self.first)
        with bar as self.bar, deferred_interrupt() as self.interrupts:
            if not self.history.step:
                self.evaluate(0)
            for step in range(self.done, steps):
                self.stop_if_asked(step)
                self.record(step, self.trainer.step(step))
                if (step + 1) % every == 0 or step + 1 == steps:
                    self.evaluate(step + 1)
            self.stop_if_asked(steps)

    def record(self, step: int, loss: Tensor) -> None:
        """Record the loss of a step. Raises FloatingPointError if it is not finite."""
        if self.device.type == "cpu":  # on a GPU this would wait for the queue
            self._check_finite(float(loss), step)
            self.bar.set_postfix_str(f"loss {float(loss):.2f}", refresh=False)
        self.history.add_step(self.config.scale(step), loss)
        block, n = self.trainer.window(step)
        self.meter.tokens += n * block
        self.bar.update()

    def evaluate(self, step: int) -> None:
        """Measure losses at the current block, save, print a line, and call `watch`."""
        self.meter.lap(trained=True)
        if self.first:
            block, _ = self.trainer.window(max(0, step - 1))
            train, val = self.measure(block)
            self._check_finite(train, step)
            self._check_finite(val, step)
            if not self.history.step:
                self.save(step)  # from now on --resume continues this run, not an earlier one
            self.history.add_evaluation(step, train, val, block)
            if step == self.config.steps:
                self.history.full_val = full_loss(self.model, self.val)
            if self.files:
                self.files.save_newest(self.model, self.history, self.meter.summary())
            self.save(step)  # last, so that a run killed earlier writes the same files again
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
        if block not in self.fixed:
            n = self.config.eval_batches
            parts = (self.trainer.data, self.val)
            self.fixed[block] = [fixed_batches(part, block, n, self.device) for part in parts]
        means = [mean_loss(self.model, batches) for batches in self.fixed[block]]
        train, val = torch.stack(means).tolist()  # a single synchronization
        return train, val

    def save(self, step: int) -> None:
        """Save the state that the next step depends on."""
        if self.files and self.first:
            self.files.save_state(step, self.trainer, self.history)

    def stop_if_asked(self, step: int) -> None:
        """If Ctrl-C was pressed, save and raise Stopped, with advice."""
        last = step == self.config.steps
        if self.trainer.stops(bool(self.interrupts), step, last):
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
) -> None:
    """Check the arguments of `train`. Raises TypeError, and ValueError for untrainable weights."""
    check_type("model", model, LanguageModel)
    check_type("corpus", corpus, Corpus)
    check_type("config", config, TrainConfig)
    check_type("device", device, (Device, type(None)))
    check_type("resume", resume, bool)
    check_type("speed", speed, bool)
    if watch is not None and not callable(watch):
        raise TypeError(f"watch={watch!r:.80}: pass a function of a step and a model")
    if model.device.type == "meta":
        raise ValueError("the model is on the meta device, without data: build it on the CPU")
    check_forwards(model)
    if not any(weight.requires_grad for weight in model.parameters()):
        raise ValueError("all weights are frozen: set requires_grad on those to train")
    # Not by its class: the tokenizer of notebook 01 is a class of its own cell.
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
        synchronize(self.device.device)
        before = self.last
        self.last = time.perf_counter()
        if trained:
            self.seconds += self.last - before

    def summary(self) -> dict[str, float | None]:
        """Seconds of training, and characters per second; None before the first step."""
        speed = self.tokens / self.seconds if self.seconds else 0.0
        return {"seconds": round(self.seconds, 3), "chars_per_second": round(speed) or None}
