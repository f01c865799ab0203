"""Every stage of a forward pass, as numbers: for the figure that follows one token through a model.

`trace` records them with hooks from PyTorch's own pass; live_model.js computes the same stages of
the bundled model in a browser. `token` packs a short text of a model for figures/token.js.
"""

from __future__ import annotations

import base64
from collections.abc import Iterator

import numpy as np
import torch
from torch import Tensor, nn

from .. import attention
from ..decoder.checkpoint import Checkpoint
from ..decoder.config import Activation, DecoderConfig, Norm
from ..decoder.model import Decoder
from ..decoder.pack import as_decoder
from ..generation import complete
from ..model import GPT, replica
from ..sampling import SamplingParams, draw_noise
from .moving import Json, Recording, rounded

# The stages of a layer that are one vector a token, in the order of the forward pass.
LAYER = ("ln1", "query", "key", "value", "mix", "proj", "attended", "ln2", "hidden", "down")
LAYER += ("output",)
LARGEST = 2**15 - 1  # of a packed number


@torch.no_grad()
def trace(model: GPT | Decoder, tokens: Tensor) -> Json:
    """Every stage of one pass over a text.  (1, T) -> tensors of a row for each token

    `table` and `position` are rows of the embedding tables (None if positions are rotary),
    `embedding` what enters the first block. `layers[l]` has the stages of LAYER, (T, n), and
    `weights`, (H, T, T). `lnf` and `logits` follow the last block.
    """
    copied = replica(as_decoder(model))
    found: Json = {"position": None, "layers": [{} for _ in copied.blocks]}

    def keep(place: Json, **stages: Tensor) -> None:
        place.update({name: rows[0] if rows.ndim == 3 else rows for name, rows in stages.items()})

    def kept(module: nn.Module, place: Json, after: str | None, before: str | None = None) -> None:
        def hook(_: nn.Module, given: tuple[Tensor, ...], result: Tensor) -> None:
            keep(place, **({before: given[0]} if before else {}))
            keep(place, **({after: result} if after else {}))

        module.register_forward_hook(hook)

    kept(copied.token_embedding_table, found, "table")
    if copied.position_embedding_table is not None:
        kept(copied.position_embedding_table, found, "position")
    kept(copied.blocks[0], found, None, before="embedding")
    for place, block in zip(found["layers"], copied.blocks, strict=True):
        block.sa.__class__ = Recording  # the same weights
        kept(block.ln1, place, "ln1")
        kept(block.sa.proj, place, "proj", before="mix")
        kept(block.ln2, place, "ln2", before="attended")
        kept(block.ffwd.down, place, "down", before="hidden")
        kept(block, place, "output")
    kept(copied.ln_f, found, "lnf")
    kept(copied.lm_head, found, "logits")
    copied(tokens)
    pos = torch.arange(tokens.shape[1], device=tokens.device)
    for place, block in zip(found["layers"], copied.blocks, strict=True):
        q, k, v = block.sa.seen
        for name, heads in (("query", q), ("key", k), ("value", v)):
            place[name] = heads[0].transpose(0, 1).flatten(1)  # (T, C): heads side by side
        place["weights"] = attention.attention_weights(q, k, attention.visible(pos, pos))[0]
    return found


def token(
    trained: Checkpoint, prompt: Tensor, n_new: int, temperature: float, seed: int
) -> Json:
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
