"""Build a Decoder from a file's tensors, after checking every name and shape."""

from __future__ import annotations

import warnings
from dataclasses import replace

import torch

from ..decoder.config import DecoderConfig
from ..decoder.model import Decoder
from ..decoder.skeleton import skeleton
from ..kv_referee.memory import available_memory
from .families import Names
from .needs import PretrainedError, shown
from .parameters import Part, from_file, layout, stored_shapes
from .stored import AGAIN, Stored, Tensors

TIED_HEAD = "lm_head.weight"


def assemble(
    c: DecoderConfig, names: Names, tensors: Tensors, dtype: torch.dtype, where: str
) -> Decoder:
    """Build a Decoder with this config in eval mode, its weights converted to `dtype`.

    A file with a head that differs from the embedding it should be tied to is loaded untied, with a
    warning, as transformers 5.24 does.

    Raises PretrainedError for tensors that are missing, unexpected, integer or of the wrong shape,
    for values that are not finite, and if the model does not fit into the available memory.
    """
    if c.n_layer > len(tensors):
        raise PretrainedError(f"{where}: {c.n_layer:,} layers in {len(tensors):,} tensors: {AGAIN}")
    tensors = _with_prefix(tensors, names)
    sources = _sources(c, names, tensors, where)
    used = {stored.name for _, found in sources for stored in found}
    spare_head = tensors.get(names.modules["lm_head"][0] + ".weight") if c.tied else None
    for name, stored in tensors.items():
        if (
            stored.name not in used
            and stored is not spare_head
            and not name.endswith(names.ignored)
        ):
            raise PretrainedError(
                f"{where} has the tensor {shown(stored.name)}, which is not part of a model of its "
                f"config: only transformers or llama.cpp can run it"
            )
    check_memory(sources, dtype, where)
    if spare_head is not None:
        embedding = tensors[names.modules["token_embedding_table"][0] + ".weight"]
        if not _same_values(spare_head, embedding, dtype):
            warnings.warn(
                f"{where}: {shown(spare_head.name)} differs from the embedding that it should be "
                f"tied to: loaded untied",
                stacklevel=2,
            )
            return assemble(replace(c, tied=False), names, tensors, dtype, where)
    model = skeleton(c)
    state = {
        part.path: from_file(part, (stored.read() for stored in found), names, c, dtype)
        for part, found in sources
    }
    for name, tensor in state.items():
        if not tensor.isfinite().all():
            raise PretrainedError(f"{where}: {name} holds NaN or infinity in {dtype}: {AGAIN}")
    if c.tied:
        state[TIED_HEAD] = state["token_embedding_table.weight"]
    model.load_state_dict(state, assign=True)
    if c.tied:
        model.lm_head.weight = model.token_embedding_table.weight  # one parameter again
    return model.eval()


def check_memory(sources: list[tuple[Part, list[Stored]]], dtype: torch.dtype, where: str) -> None:
    """Raise PretrainedError unless the tensors fit into the available memory.

    Apart from the model, one tensor of the file is in memory at a time; dequantizing one takes
    about three times its size in float32.
    """
    stored = [one for _, found in sources for one in found]
    model = sum(one.numel for one in stored) * dtype.itemsize
    extra = 3 * 4 * max(one.numel for one in stored)
    available = available_memory()
    if available is not None and model + extra > available:
        raise PretrainedError(
            f"{where} needs {_gigabytes(model)} as {dtype} and {_gigabytes(extra)} to load it, and "
            f"{_gigabytes(available)} of memory are available: close other programs, use "
            f"dtype=torch.bfloat16, or load a smaller model"
        )


def _gigabytes(n: int) -> str:
    return f"{n / 1e9:,.2f} GB"


def _with_prefix(tensors: Tensors, names: Names) -> Tensors:
    """The tensors by their usual names: a model saved without its head has no prefix."""
    if not names.prefix or any(name.startswith(names.prefix) for name in tensors):
        return tensors
    heads = names.modules["lm_head"]
    return {
        name if name.rpartition(".")[0] in heads else names.prefix + name: stored
        for name, stored in tensors.items()
    }


def _sources(
    c: DecoderConfig, names: Names, tensors: Tensors, where: str
) -> list[tuple[Part, list[Stored]]]:
    """The tensors of the file that each parameter is made of. Raises PretrainedError."""
    sources = []
    for part in layout(c):
        found = []
        for name, shape in stored_shapes(part, names, tensors):
            stored = tensors.get(name)
            if stored is None:
                raise PretrainedError(
                    f"{where} has no tensor {name}, which its config needs: {AGAIN}"
                )
            if stored.shape != shape:
                raise PretrainedError(
                    f"{where}: {stored.name} has the shape {stored.shape}, and its config needs "
                    f"{shape}: the two do not belong to the same model"
                )
            if not stored.floating:
                raise PretrainedError(
                    f"{where}: {stored.name} is {stored.kind}, and weights must be F32, F16 or "
                    f"BF16: use a file that is not quantized, or a GGUF file"
                )
            found.append(stored)
        sources.append((part, found))
    return sources


def _same_values(one: Stored, other: Stored, dtype: torch.dtype) -> bool:
    """Whether two tensors of a file are equal in that dtype."""
    if one.shape != other.shape:
        return False
    return torch.equal(one.read().to(dtype), other.read().to(dtype))
