"""A model in the form of its family: a config.json and named tensors, as transformers reads them.

The rows of families.py in reverse. A shape's family is found by trial: its config.json, read back,
must give the same shape. The lecture's model is an OPT whose queries, keys and values have zeros
for biases, and whose head's bias moves into the norm before it; the recipe `sprint` and the bundled
model are a nanochat. Nothing here needs transformers.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from ..config import GPTConfig
from ..decoder.config import BIASES, DecoderConfig, beyond_lecture, decoder_config
from ..decoder.pack import pack_state
from ..decoder.standard import check_standard
from ..model import GPT, LanguageModel
from .configs import config_from_hf, fields_of
from .families import FAMILIES, Family
from .needs import PretrainedError
from .parameters import layout, to_file

RESIDUAL = 1e-9  # of a fold that is exact up to rounding, in float64
Exported = tuple[dict[str, Any], dict[str, Tensor]]  # config.json, and the tensors


class ExportError(ValueError):
    """A model or a folder that cannot be used; the message names the obstacle."""


def family_form(model: LanguageModel) -> Exported:
    """config.json and the tensors of a model, in its dtype on the CPU, for the family that fits it.

    A bias that the family requires and the model lacks, as with nanoGPT's bias=False, is zeros.
    Raises ExportError for a shape that fits no family, ValueError for changed modules.
    """
    check_standard(model)
    c = decoder_config(model.config)
    # 1. The family, and the shape of its model.
    family, config, described = _fitting(c, model.dtype)
    # 2. The Decoder's parameters. A bias of the head goes into the last norm.
    state: dict[str, Tensor] = {name: w.detach().cpu() for name, w in model.state_dict().items()}
    if isinstance(model, GPT):
        state = pack_state(state, c)
    if c.head_bias:
        d = fold_head_bias(state["lm_head.weight"], state["lm_head.bias"])
        state["ln_f.bias"] = (state["ln_f.bias"] + d).to(model.dtype)
    # 3. Those tensors under the family's names.
    tensors: dict[str, Tensor] = {}
    for part in layout(described):
        zeros = torch.zeros(sum(shape[0] for shape in part.shapes), dtype=model.dtype)
        tensors |= to_file(part, state.get(part.path, zeros), family.names, described)
    dtype = str(model.dtype).removeprefix("torch.")
    about: dict[str, Any] = {"architectures": [family.architecture], "dtype": dtype}
    about |= dict.fromkeys(["bos_token_id", "eos_token_id", "pad_token_id"])
    return config | about, tensors


def family_for(config: GPTConfig | DecoderConfig) -> Family:
    """The family of a shape. Raises ExportError, naming its fields, if none fits."""
    return _fitting(decoder_config(config), torch.float32)[0]


def _fitting(c: DecoderConfig, dtype: torch.dtype) -> tuple[Family, dict[str, Any], DecoderConfig]:
    """The family of a shape, its config.json, and the shape described by that config.json."""
    # 1. What no config.json says: dropout, a bias that is folded, an epsilon of the dtype.
    wanted = replace(c, dropout=0.0, head_bias=c.head_bias and not c.norm_shifts)
    if c.norm_eps is None:
        wanted = replace(wanted, norm_eps=torch.finfo(dtype).eps)
    filled = []  # families with an additional bias, which may be zeros
    for family in FAMILIES.values():
        config = fields_of(wanted, family)
        try:
            described = config_from_hf(config, "config.json")[1]
        except PretrainedError:
            continue
        # 2. The same shape, or the same but for biases.
        if described == wanted:
            return family, config, described
        more: dict[str, Any] = {name: True for name in BIASES if getattr(described, name)}
        if described == replace(wanted, **more):
            filled.append((family, config, described))
    if filled:
        return filled[0]
    fields = ", ".join(f"{name}={value}" for name, value in beyond_lecture(c).items())
    raise ExportError(
        f"none of the families {', '.join(FAMILIES)} has this shape ({fields}): save it as a "
        f"checkpoint"
    )


def fold_head_bias(weight: Tensor, bias: Tensor) -> Tensor:
    """The vector d that moves the head's bias into the norm before it.  (V, C), (V,) -> (C,)

    OPT has no bias in its head. The head's input is norm(x) · g + b, so adding d to b adds W d to
    the logits. Softmax ignores a constant, so W d = bias + λ1 is enough. That has a solution for
    any bias if V <= C + 1. Raises ExportError if there is no solution up to rounding. float64.
    """
    V, C = weight.shape
    target = bias.double()
    if not target.isfinite().all():  # as of a model that never samples some ids
        raise ExportError("the head's bias is not finite: export the model as it was loaded")
    system = torch.cat([weight.double(), -torch.ones(V, 1, dtype=torch.float64)], dim=1)
    found = torch.linalg.lstsq(system, target[:, None], driver="gelsd")
    solution: Tensor = found.solution[:, 0]
    residual = float((system @ solution - target).abs().max())
    if residual > RESIDUAL * max(1.0, float(solution.abs().max())):
        raise ExportError(
            f"the head's bias cannot be moved into the last norm: logits would be {residual:.2g} "
            f"off; it can with {C + 1} characters at most, not {V}"
        )
    return solution[:C]
