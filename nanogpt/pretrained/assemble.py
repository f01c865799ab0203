"""Build a Decoder from a file's tensors, after checking every name and shape."""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor

from ..decoder.config import DecoderConfig
from ..decoder.model import Decoder
from ..decoder.skeleton import skeleton
from ..kv_referee.memory import available_memory
from .families import Names, Part, layout
from .needs import PretrainedError, shown
from .stored import AGAIN, Stored, Tensors

TIED_HEAD = "lm_head.weight"


def assemble(
    c: DecoderConfig, names: Names, tensors: Tensors, dtype: torch.dtype, where: str
) -> Decoder:
    """Build a Decoder with this config in eval mode, its weights converted to `dtype`.

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
    model = skeleton(c)
    state = {part.path: _filled(part, found, c, names, dtype) for part, found in sources}
    for name, tensor in state.items():
        if not tensor.isfinite().all():
            raise PretrainedError(f"{where}: {name} holds NaN or infinity in {dtype}: {AGAIN}")
    if c.tied:
        tokens = state["token_embedding_table.weight"]
        state[TIED_HEAD] = tokens
        if spare_head is not None and not _is_embedding(spare_head, tokens):
            raise PretrainedError(f"{where}: {spare_head.name} is not the embedding it is tied to")
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
        for name, shape in _wanted(part, names, tensors):
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


def _wanted(part: Part, names: Names, tensors: Tensors) -> Iterator[tuple[str, tuple[int, ...]]]:
    """The name and shape, in the file, of each tensor that makes up a parameter."""
    modules = names.modules[part.module]
    stacked = names.stacked.get(part.module, "")
    if f"{stacked.format(i=part.layer)}.{part.kind}" in tensors:
        modules = (stacked,)
    shapes = part.shapes
    if len(modules) == 1:  # the file also stacks them
        rows = sum(shape[0] for shape in shapes)
        shapes = ((rows, *shapes[0][1:]),)
    for module, shape in zip(modules, shapes, strict=True):
        turned = names.transposed and part.matrix
        yield f"{module.format(i=part.layer)}.{part.kind}", shape[::-1] if turned else shape


def _filled(
    part: Part, found: list[Stored], c: DecoderConfig, names: Names, dtype: torch.dtype
) -> Tensor:
    """One parameter of the Decoder, its parts stacked along the rows."""
    rows = sum(shape[0] for shape in part.shapes)
    filled = torch.empty((rows, *part.shapes[0][1:]), dtype=dtype)
    start = 0
    for stored in found:
        tensor = stored.read()
        if names.transposed and part.matrix:
            tensor = tensor.t()
        filled[start : start + len(tensor)] = tensor
        start += len(tensor)
    if names.permuted and part.module.endswith(".sa.qkv"):
        turned = part.shapes[0][0] + part.shapes[1][0]  # rows of queries and keys
        filled[:turned] = unpermuted(filled[:turned], c.head_size)
    return filled


def unpermuted(rows: Tensor, head_size: int) -> Tensor:
    """Reorder query or key rows from llama.cpp's order.  (heads · hs, …) -> (heads · hs, …)

    llama.cpp rotates neighbours, rows 2 i and 2 i + 1 of a head; a Decoder rotates rows i and
    i + hs / 2, as transformers does.
    """
    pairs = rows.unflatten(0, (-1, head_size // 2, 2))  # (heads, hs / 2, 2, …)
    turned: Tensor = pairs.transpose(1, 2).reshape(rows.shape)
    return turned


def _is_embedding(head: Stored, tokens: Tensor) -> bool:
    """Whether a head stored alongside a tied embedding is that embedding."""
    return head.shape == tuple(tokens.shape) and torch.equal(head.read().to(tokens.dtype), tokens)
