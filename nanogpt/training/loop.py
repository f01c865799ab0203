"""The training loop: `train` and the model that it trains."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import contextmanager, nullcontext
from pathlib import Path

import torch

from ..config.training import TrainConfig
from ..data.batches import split
from ..data.corpus import Corpus
from ..data.tokenizer import CharTokenizer
from ..model.convert import convert_state, not_standard, pack_heads
from ..model.gpt import GPT
from ..system.device import Device, forked_random_state, pick_device
from .distributed import ranks
from .files import RunFiles
from .optimizers import zero_init
from .run import TrainingRun
from .trainer import Trainer, memory_advice


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

    A per-Head model is trained in its batched form, which computes the same function in about half
    the time, and gets its weights back at the end. With `out`, RunFiles writes checkpoints, a log
    and the state of the run. With `resume`, a run that was stopped continues from its last saved
    state, and ends with the same bits as a run that was never stopped. Ctrl-C finishes the step,
    saves, and is raised. Each evaluation prints a line (with `speed`, the throughput too) and calls
    `watch(step, model)`. Where torchrun has started several processes they share each batch; the
    first one alone evaluates, prints and writes.

    Raises ValueError for a vocabulary or corpus that does not fit, a state of other settings or an
    `out` that another run is writing to; CheckpointError for a damaged state; MemoryError, with
    advice; and FloatingPointError when the loss is not finite.
    """
    device, tokenizer = device or pick_device(), tokenizer or CharTokenizer(corpus.text)
    _check_vocabulary(model, tokenizer)
    data, val = split(tokenizer.encode(corpus.text), model.config.block_size)
    files = RunFiles(out, model, corpus, config, tokenizer) if out else None
    if resume:
        _check_resumable(files)
    ranks().agree("a text of sha256", corpus.sha256[:12])
    held = files.held() if files and ranks().first else nullcontext()
    with held, _form_to_train(model, config, device) as (worker, generator), memory_advice(config):
        with forked_random_state(device):
            torch.manual_seed(config.seed)  # of dropout, which takes no generator
            trainer = Trainer(worker, data, config, generator, device)
            run = TrainingRun(trainer, val, files, speed=speed, watch=watch)
            if resume:
                run.resume()
            _loop(run)
        return run.result()


def _loop(run: TrainingRun) -> None:
    config = run.config
    with run.begun():
        for step in range(run.done, config.steps):
            run.stop_if_asked(step)
            loss = run.trainer.step(step)  # a batch, its loss, its gradients, an update
            run.record(step, loss)
            if (step + 1) % config.eval_every == 0 or step + 1 == config.steps:
                run.evaluate(step + 1)
                run.save(step + 1)
        run.stop_if_asked(config.steps)


def prepare(model: GPT, config: TrainConfig, device: Device) -> tuple[GPT, torch.Generator]:
    """The model in the form that is trained, at its first weights; the generator of batches."""
    generator = torch.Generator().manual_seed(config.seed)
    if config.zero_init:
        zero_init(model, generator)
    worker = _batched(model) if config.batched else model
    return worker.to(device.device).train(), generator


def _batched(model: GPT) -> GPT:
    """A batched copy of a per-Head model; a model that has no other form, itself."""
    if not model.config.per_head or not_standard(model):
        return model
    return pack_heads(model)


@contextmanager
def _form_to_train(model: GPT, config: TrainConfig, device: Device):
    """Gives what `prepare` does; in the end, however it comes, the model has the weights."""
    was_training = model.training
    worker, generator = prepare(model, config, device)
    try:
        yield worker, generator
    finally:
        if worker is not model:
            state = convert_state(worker.state_dict(), worker.config, per_head=True)
            model.to(device.device).load_state_dict(state)
        model.train(was_training)


def _check_vocabulary(model: GPT, tokenizer: CharTokenizer) -> None:
    if len(tokenizer) != model.config.vocab_size:
        raise ValueError(
            f"the model has {model.config.vocab_size} characters, the vocabulary {len(tokenizer)}: "
            f"build the model with GPTConfig(vocab_size={len(tokenizer)})"
        )


def _check_resumable(files: RunFiles | None) -> None:
    """Raises ValueError for a run that cannot be resumed, before anything has been changed."""
    if not files:
        raise ValueError("resume=True, but no `out` says where the run was saved")
    files.check_state()
