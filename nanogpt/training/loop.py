"""The training loop and its evaluation."""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from pathlib import Path

import torch
from tqdm import tqdm

from ..config.training import TrainConfig
from ..data.batches import split
from ..data.corpus import Corpus
from ..data.tokenizer import CharTokenizer
from ..model.checkpoint import FORMAT, save_checkpoint, stem
from ..model.convert import convert_state, pack_heads
from ..model.gpt import GPT
from ..system.console import headless
from ..system.device import Device, pick_device
from ..system.files import atomic_path
from .distributed import ranks
from .evaluate import estimate_loss, fixed_batches, full_loss
from .log import _lines, log_path, write_log
from .optimizers import zero_init
from .state import check_state, deferred_interrupt, load_state, save_state, state_path
from .throughput import Meter
from .trainer import Trainer


def train(
    model: GPT,
    corpus: Corpus,
    config: TrainConfig,
    *,
    tokenizer: CharTokenizer | None = None,
    out: str | Path | None = None,
    device: Device | None = None,
    resume: bool = False,
    speed: bool = False,
    watch: Callable[[int, GPT], None] | None = None,
) -> dict:
    """Train the model in place and return its history as plain data, ready to plot.

    A per-Head model of our own Heads is trained in its batched form, which computes the same
    function about twice as fast, and gets its weights back at the end. With `out`, the best
    checkpoint by validation loss goes to `<out>.safetensors` and the newest to
    `<out>-last.safetensors`, each with a JSON beside it; a line for each evaluation to
    `<out>.jsonl`, to be followed with tail -f; the state of the run to `<out>-last.state.safetensors`.
    With `resume`, a run that was stopped, however, goes on from there, to the very weights that it
    would have had. Ctrl-C ends the step, saves, and is raised. At each evaluation a line is printed,
    with `speed` the throughput too, and `watch(step, model)` is called. Where torchrun has started
    several processes they share each batch, and the first alone evaluates and writes.

    Raises ValueError for a vocabulary or corpus that does not fit or a state of other settings,
    CheckpointError for one that is damaged, and FloatingPointError when the loss is no number.
    """
    device, out = device or pick_device(), stem(out) if out else None
    tokenizer = tokenizer or CharTokenizer(corpus.text)
    if len(tokenizer) != model.config.vocab_size:
        raise ValueError(
            f"the model has {model.config.vocab_size} characters, the vocabulary {len(tokenizer)}: build "
            f"the model with GPTConfig(vocab_size={len(tokenizer)})"
        )
    T = model.config.block_size
    data, val = split(tokenizer.encode(corpus.text), T)
    fixed = {
        "train": fixed_batches(data, T, config.eval_batches, device.device),
        "val": fixed_batches(val, T, config.eval_batches, device.device),
    }
    group = ranks()
    saved = Saved(
        out, _meta(model, corpus, config, tokenizer), resume, str(model.lm_head.weight.dtype)
    )
    saved.check()
    group.agree("a text of sha256", corpus.sha256[:12])
    was_training = model.training
    worker, generator = prepare(model, config, device)
    history = {"step": [], "train": [], "val": [], "lr_scale": [], "batch_loss": []}
    meter = Meter(model.config, device, group.size)
    mine = (
        [device.device] if device.device.type == "cuda" else None
    )  # not those of the other processes

    def evaluate(step, bar):
        meter.lap("train")
        if group.first:
            losses = {name: estimate_loss(worker, batches) for name, batches in fixed.items()}
            keep(step, losses)
            line = f"step {step:5d} of {config.steps} | train {losses['train']:.4f} | val {losses['val']:.4f}"
            report(f"{line} | {meter}" if speed else line, bar)
            if watch:
                with torch.random.fork_rng(
                    devices=mine
                ):  # whatever it does, the training stays the same
                    watch(step, worker)
                worker.train()
        meter.lap("evaluate")
        bar.set_postfix_str(str(meter), refresh=False)

    def keep(step, losses):
        for loss in losses.values():
            check_finite(loss, step, config, history, out)
        best = not history["val"] or losses["val"] < min(history["val"])
        for name, value in {"step": step, **losses}.items():
            history[name].append(value)
        if out:
            for path in [out] * best + [out.with_name(out.name + "-last")]:
                save_checkpoint(path, worker, {**saved.meta, "step": step, "losses": losses})
            write_log(out, history, meter.reading())

    with torch.random.fork_rng(devices=mine):
        torch.manual_seed(config.seed)  # dropout has no generator of its own
        try:
            trainer = Trainer(worker, data, config, generator, device)
            _loop(trainer, history, evaluate, saved, meter)
        finally:
            if worker is not model:
                model.to(device.device)
                model.load_state_dict(
                    convert_state(worker.state_dict(), worker.config, per_head=True)
                )
            model.train(was_training)
    history["full_val"] = full_loss(worker, val) if group.first else None
    history["block_size"] = T
    return history


def _meta(model: GPT, corpus: Corpus, config: TrainConfig, tokenizer: CharTokenizer) -> dict:
    return {
        "format": FORMAT,
        "config": asdict(replace(model.config, per_head=model.config.has_heads)),
        "vocabulary": tokenizer.chars,
        "corpus": {"name": corpus.name, "sha256": corpus.sha256},
        "train": asdict(config),
        "versions": {"torch": torch.__version__},
    }


def prepare(model: GPT, config: TrainConfig, device: Device) -> tuple[GPT, torch.Generator]:
    """The model as the recipe starts it, in the form that is trained, and the generator of its batches."""
    generator = torch.Generator().manual_seed(config.seed)
    if config.zero_init:
        zero_init(model, generator)
    worker = _batched(model) if config.batched else model
    return worker.to(device.device).train(), generator


def _batched(model: GPT) -> GPT:
    """A batched copy of a per-Head model; a model that is batched, or that has parts of its own, itself."""
    try:
        return pack_heads(model) if model.config.per_head else model
    except ValueError:  # a Head of the reader's own: only its own code knows what it computes
        return model


def _loop(trainer: Trainer, history: dict, evaluate, saved: Saved, meter: Meter) -> None:
    config, ranks, quiet = trainer.config, trainer.ranks, headless() or not trainer.ranks.first
    done = saved.load(trainer, history, meter)
    ranks.agree("saved steps:", done)
    if not ranks.first:  # dropout has no generator of its own, and should differ from rank to rank
        torch.manual_seed(config.seed + 1_000_003 * ranks.rank + done)
    bar = tqdm(total=config.steps, initial=done, desc="train", disable=quiet, mininterval=0.5)
    with bar, deferred_interrupt() as stop:
        if not history["step"]:
            saved.begin()
            evaluate(0, bar)
        for step in range(done, config.steps):
            if _asked_to_stop(stop, step, trainer):
                raise KeyboardInterrupt(saved.stop(step, trainer, history))
            loss = trainer.step(step)
            if (
                trainer.device.device.type == "cpu"
            ):  # on a GPU looking would stop the queue: evaluate() does
                check_finite(float(loss), step, config, history, saved.out)
            history["lr_scale"].append(config.scale(step))
            history["batch_loss"].append(loss)
            meter.tokens += config.batch_size * trainer.model.config.block_size
            bar.update()
            if (step + 1) % config.eval_every == 0 or step + 1 == config.steps:
                evaluate(step + 1, bar)
                saved.save(step + 1, trainer, history)
        if stop:
            raise KeyboardInterrupt(saved.stop(config.steps, trainer, history))
    history["batch_loss"] = torch.stack(history["batch_loss"]).tolist()  # one transfer, at the end


def _asked_to_stop(stop: list, step: int, trainer: Trainer) -> bool:
    """Whether Ctrl-C was pressed. Several processes agree on it, to stop at the same step."""
    if trainer.ranks.size == 1:
        return bool(stop)
    if step % 10 and trainer.device.device.type == "cuda":  # asking waits for the queue
        return False
    flag = torch.tensor(float(bool(stop)), device=trainer.device.device)
    return bool(trainer.ranks.mean(flag) > 0)


@dataclass
class Saved:
    """Where a run's state is kept, if anywhere, and whether to go on from there."""

    out: Path | None
    meta: dict
    resume: bool
    dtype: str

    def check(self) -> None:
        """Raises ValueError for a run that cannot be gone on with, before anything has been changed."""
        if self.resume and not self.out:
            raise ValueError("resume=True, but no `out` says where the run was saved")
        if self.resume:
            check_state(self.out, self._about())

    def load(self, trainer: Trainer, history: dict, meter: Meter) -> int:
        done = load_state(self.out, self._about(), trainer, history) if self.resume else 0
        told = [json.loads(line) for line in _lines(log_path(self.out))] if done else []
        if told and "seconds" in told[-1] and told[-1]["step"] <= done:
            per_step = trainer.config.batch_size * trainer.model.config.block_size
            meter.go_on(told[-1], told[-1]["step"] * per_step)
        return done

    def begin(self) -> None:
        """A run starts anew here: the state of an earlier one must not be taken for its own."""
        if self.out and ranks().first:
            probe = self.out.with_name(f".{self.out.name}.writable")
            with atomic_path(
                probe
            ):  # a folder that is closed is an error that says so, and nothing is lost
                pass
            probe.unlink(missing_ok=True)
            state_path(self.out).unlink(missing_ok=True)

    def save(self, step: int, trainer: Trainer, history: dict) -> None:
        if self.out and trainer.ranks.first:
            save_state(self.out, self._about(), step, trainer, history)

    def stop(self, step: int, trainer: Trainer, history: dict) -> str:
        self.save(step, trainer, history)
        if not self.out:
            return f"stopped after {step} steps; nothing was saved, as no `out` was given"
        return f"stopped after {step} steps and saved: the same call with resume=True goes on from here"

    def _about(self) -> dict:
        vocabulary = {"characters": self.meta["vocabulary"]}
        corpus = {"sha256": self.meta["corpus"]["sha256"]}
        form = {key: dict(self.meta[key]) for key in ("config", "train")}
        for how in ("accumulate", "compile"):  # the same run, computed in another way
            form["train"].pop(how)
        return {
            **form,
            "corpus": corpus,
            "vocabulary": vocabulary,
            "weights": {"dtype": self.dtype},
        }


def check_finite(
    loss: float, step: int, config: TrainConfig, history: dict, out: Path | None
) -> None:
    """Raises FloatingPointError, with what to try, for a loss that is infinite or no number."""
    if math.isfinite(loss):
        return
    kept = f"; the best model until then, of step {best_step(history)}, is in {out}.safetensors"
    raise FloatingPointError(
        f"the loss is {loss} at step {step}: try half the learning rate (lr={config.lr / 2:g}"
        f"{f', muon_lr={config.muon_lr / 2:g}' if config.muon_lr else ''}) or a longer warm-up "
        f"(warmup={max(10, 2 * config.warmup)}){kept if out and history['val'] else ''}"
    )


def best_step(history: dict) -> int:
    """The step whose weights `<out>.safetensors` holds: the first of the lowest validation loss."""
    return history["step"][history["val"].index(min(history["val"]))]


def report(line: str, bar: tqdm) -> None:
    """One line for each evaluation, above the bar where there is one."""
    print(line, flush=True) if bar.disable else bar.write(line)
