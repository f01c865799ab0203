"""The form in which a model is trained: initialized by its recipe, packed, on the device."""

from collections.abc import Iterator
from contextlib import contextmanager

import torch

from ..decoder.pack import pack_heads, unpack_state
from ..decoder.standard import first_difference, not_standard
from ..device import Device
from ..model import GPT, LanguageModel
from .first_weights import previous_token_init, zero_init
from .recipes import TrainConfig


def prepare(
    model: LanguageModel, config: TrainConfig, device: Device
) -> tuple[LanguageModel, torch.Generator]:
    """The initialized model, in the form in which it is trained, and the generator of batches."""
    # 1. Initialize, as the recipe says. The weights are sampled before the batches, from the same
    #    generator.
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
    # 2. A list of heads is trained as packed heads: the same function, in about half the time.
    packs = config.batched and isinstance(model, GPT) and _trains_alike(model)
    worker = pack_heads(model) if packs else model
    # 3. On the device, before the optimizers are made: they hold the weights that they update.
    return worker.to(device.device).train(), generator


def _trains_alike(model: LanguageModel) -> bool:
    """Whether a packed copy trains like the model: no weight is shared and none is frozen."""
    # A weight with several names is shared; packing would make two of it.
    weights = list(model.parameters())
    n_names = sum(1 for _ in model.named_parameters(remove_duplicate=False))
    if not_standard(model) or len(weights) != n_names:
        return False
    # A caller's hooks on gradients expect the layers that they were put on.
    if any(module._backward_hooks or module._backward_pre_hooks for module in model.modules()):
        return False
    return all(weight.requires_grad and not weight._backward_hooks for weight in weights)


@contextmanager
def form_to_train(
    model: LanguageModel, config: TrainConfig, device: Device
) -> Iterator[tuple[LanguageModel, torch.Generator]]:
    """The result of `prepare`, as a context manager; on exit the model has the trained weights."""
    was_training = model.training
    worker, generator = prepare(model, config, device)
    try:
        yield worker, generator
    finally:
        # Also after an error or Ctrl-C: the caller's model has what was learned so far.
        if worker is not model:
            state = unpack_state(worker.state_dict(), model.config)
            model.to(device.device).load_state_dict(state)
        model.train(was_training)
