"""Every stage of a forward pass, as numbers: for the figure that follows one token through a model.

`trace` records them with hooks from PyTorch's own pass; live_model.js computes the same stages of
the bundled model in a browser. `token` packs a short text of a model for figures/token.js.
"""

from __future__ import annotations

import base64
from collections.abc import Iterator

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from .. import attention
from ..decoder.checkpoint import Checkpoint
from ..decoder.config import Activation, DecoderConfig, Norm
from ..decoder.model import CausalSelfAttention
from ..decoder.pack import as_decoder
from ..generation import complete
from ..model import LanguageModel, replica
from ..sampling import SamplingParams, draw_noise
from .moving import Json, Recording, rounded

# The stages of a layer that are one vector a token, in the order of the forward pass.
LAYER = (
    *("ln1", "query", "key", "value", "mix", "proj", "attended"),
    *("ln2", "hidden", "down", "output"),
)
# Modules with the stages that they read and that they put out; "" keeps none.
OF_LAYER = {
    "ln1": ("", "ln1"),
    "sa.proj": ("mix", "proj"),
    "ln2": ("attended", "ln2"),
    "ffwd.down": ("hidden", "down"),
    "": ("", "output"),
}
OF_MODEL = {
    "token_embedding_table": ("", "table"),
    "position_embedding_table": ("", "position"),
    "blocks.0": ("embedding", ""),
    "ln_f": ("", "lnf"),
    "lm_head": ("", "logits"),
}
LARGEST = 2**15 - 1  # of a packed number
SHOWN = 16  # cells of a column in the still
Column = tuple[str, list[list[float]], bool]


@torch.no_grad()
def trace(model: LanguageModel, tokens: Tensor) -> Json:
    """Every stage of one pass over a text.  (1, T) -> tensors of a row for each token

    `table` and `position` are rows of the embedding tables (None if positions are rotary),
    `embedding` what enters the first block. `layers[l]` has the stages of LAYER, (T, n), and
    `weights`, (H, T, T). `lnf` and `logits` follow the last block.
    """
    copied = replica(as_decoder(model))
    found: Json = {"position": None, "layers": []}
    attentions = [module for module in copied.modules() if isinstance(module, CausalSelfAttention)]
    for layer, module in enumerate(attentions):
        module.__class__ = Recording  # the same weights
        found["layers"].append({})
        _watch(copied.get_submodule(f"blocks.{layer}"), OF_LAYER, found["layers"][-1])
    names = {name for name, _ in copied.named_modules()}
    _watch(copied, {name: kept for name, kept in OF_MODEL.items() if name in names}, found)
    copied(tokens)
    pos = torch.arange(tokens.shape[1], device=tokens.device)
    for place, module in zip(found["layers"], attentions, strict=True):
        assert isinstance(module, Recording)
        q, k, v = module.seen
        for name, heads in (("query", q), ("key", k), ("value", v)):
            place[name] = heads[0].transpose(0, 1).flatten(1)  # (T, C): heads side by side
        place["weights"] = attention.attention_weights(q, k, attention.visible(pos, pos))[0]
    return found


def _watch(module: nn.Module, parts: dict[str, tuple[str, str]], place: Json) -> None:
    """Put what these parts of a module read and put out into `place`, at its next pass."""
    for name, stages in parts.items():

        def keep(
            _: nn.Module,
            given: tuple[Tensor, ...],
            result: Tensor,
            stages: tuple[str, str] = stages,
        ) -> None:
            for stage, rows in zip(stages, (given[0], result), strict=True):
                if stage:
                    place[stage] = rows[0] if rows.ndim == 3 else rows

        module.get_submodule(name).register_forward_hook(keep)


def token(trained: Checkpoint, prompt: Tensor, n_new: int, temperature: float, seed: int) -> Json:
    """A short text as its model writes it, with every stage of each row that it reads.  (1, T)

    `packed` holds the vectors of each row in the order of `vectors`, as integers of 16 bits, and
    `scales` the number that each vector's integers are multiplied by. `noise` is what each new
    token was drawn with.
    """
    model = as_decoder(trained.model)
    noise = draw_noise(n_new, 1, len(trained.tokenizer), torch.Generator().manual_seed(seed))
    text = complete(model, prompt, n_new, SamplingParams(temperature), noise=noise)
    numbers = []
    scales = []
    for vector in vectors(trace(model, text[:, :-1])):
        scale = vector.abs().max().item() / LARGEST or 1.0
        numbers.append((vector / scale).round().cpu().numpy().astype("<i2"))
        scales.append(float(f"{scale:.6g}"))
    return {
        "form": form(model.config),
        "vocabulary": list(trained.tokenizer.chars),
        "tokens": text[0].tolist(),
        "prompt": prompt.shape[1],
        "temperature": temperature,
        "seed": seed,
        "noise": rounded(noise[:, 0].tolist(), 6),
        "packed": base64.b64encode(np.concatenate(numbers).tobytes()).decode("ascii"),
        "scales": scales,
    }


def still(trained: Checkpoint, data: Json) -> tuple[list[str], list[Column]]:
    """The characters that the last step of `token`'s text has read, and its columns in layer 0.

    A column is a name, a row of SHOWN strengths from 0 to 1 for each token, and whether it is kept
    in the cache.
    """
    device = next(trained.model.parameters()).device
    found = trace(trained.model, torch.tensor([data["tokens"][:-1]], device=device))
    layer = found["layers"][0]
    weights = layer["weights"].mean(0).sqrt()  # of all heads: (T, T)
    stages = {
        "embedding": found["embedding"],
        **{name: layer[name] for name in ("query", "key", "value")},
        "attention weights": weights,
        "residual stream": layer["attended"],
        "hidden layer": layer["hidden"],
        "logits": found["logits"],
    }
    columns = []
    for name, rows in stages.items():
        columns.append((name, _strengths(rows), name in ("key", "value")))
    return [data["vocabulary"][token] for token in data["tokens"][:-1]], columns


def _strengths(rows: Tensor) -> list[list[float]]:
    """Rows of SHOWN numbers from 0 to 1: of each few neighbours the mean.  (T, n)"""
    shown = F.adaptive_avg_pool1d(rows[None].float(), min(SHOWN, rows.shape[1]))[0]
    low, high = shown.min(), shown.max()
    strengths = (shown - low) / (high - low).clamp(min=1e-9)
    return [rounded(row, 3) for row in strengths.tolist()]


def vectors(found: Json) -> Iterator[Tensor]:
    """The vectors of a trace, token by token: those of LAYER and all heads' weights, each layer."""
    for t in range(len(found["embedding"])):
        for name in ("table", "position", "embedding"):
            if found[name] is not None:
                yield found[name][t]
        for layer in found["layers"]:
            yield from (layer[name][t] for name in LAYER)
            yield layer["weights"][:, t, : t + 1].flatten()  # no token sees a later one
        yield found["lnf"][t]
        yield found["logits"][t]


def form(config: DecoderConfig) -> Json:
    """The shape of a model, and in which form it has each stage: the lecture's, or a newer one."""
    return {
        "layers": config.n_layer,
        "heads": config.n_head,
        "width": config.n_embd,
        "hidden": config.hidden,
        "norm": "RMSNorm" if config.norm is Norm.RMS else "LayerNorm",
        "rotary": config.rotary,
        "normed": config.qk_norm,
        "activation": "ReLU²" if config.activation is Activation.RELU2 else "ReLU",
    }
