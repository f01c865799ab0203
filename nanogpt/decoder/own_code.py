"""Models of your own classes: do they compute what the package's model of the same config does?"""

from __future__ import annotations

import copy
from dataclasses import replace

import torch
import torch.nn as nn

from ..model import LanguageModel
from .skeleton import class_of, skeleton
from .standard import WEIGHT_CLASSES, class_name, in_memory, inference_config


def computes_as_standard(model: LanguageModel) -> bool:
    """Whether the package's model with this config computes the same with these weights.

    Tested in float64 on randomly perturbed weights, because new weights may be zero and hide what
    they are multiplied by. False for a model whose tensors have other names or shapes.
    """
    if len({weight.dtype for weight in model.parameters()}) > 1:
        return False
    # Copying a weight without memory would crash the process.
    for weight in model.parameters():
        if type(weight) not in WEIGHT_CLASSES or not in_memory(weight):
            return False
    config = model.config
    try:
        # 1. a copy of the model, and the package's model of its config
        theirs = copy.deepcopy(model).to("cpu", torch.float64).eval()
        plain = class_of(config)(replace(config, dropout=0.0)).double().eval()
        idx = torch.arange(min(config.block_size, 48))[None] * 7 % config.vocab_size
        with torch.no_grad():
            # 2. the same weights in both: the model's own, each moved a little
            generator = torch.Generator().manual_seed(1337)
            for weight in theirs.parameters():
                drawn = torch.empty(weight.shape, dtype=torch.float64, device="cpu")
                weight.add_(drawn.normal_(std=0.1, generator=generator))
            plain.load_state_dict(theirs.state_dict())
            # 3. the same logits, but for rounding?
            right = plain(idx)[0]
            logits = theirs(idx)[0]
            if logits.shape != right.shape:
                return False
            apart = (logits - right).abs().max()
    except Exception:  # user code may raise anything
        return False
    return bool(apart <= 1e-9 * (1 + right.abs().max()))


def own_classes(model: LanguageModel) -> list[str]:
    """The module classes that a new model does not have, such as your own Head."""
    known = {type(module) for module in skeleton(inference_config(model.config)).modules()}
    found: list[nn.Module] = [module for module in model.modules() if type(module) not in known]
    return sorted({class_name(type(module)) for module in found})
