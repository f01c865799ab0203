"""Read what torch.save wrote, with weights_only=True: no code in a file runs."""

from __future__ import annotations

import zipfile
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from ..console import first_line
from ..decoder.identify import identify
from .needs import PretrainedError, shown, shown_value
from .stored import AGAIN, Stored, Tensors, without_wrappers

LARGEST_PICKLE = 16 * 2**20  # bytes of names and shapes in a PyTorch file
# Classes of configs in the checkpoints of build-nanogpt, whose script may also be imported.
_CONFIG_CLASSES = ("__main__.GPTConfig", "train_gpt2.GPTConfig")


class PickledConfig:
    """Stands for the class of a config in a pickle: an object with its fields, without its code."""


def contents_of_pt(path: Path) -> dict[str, Any]:
    """Read a file written by torch.save, if it holds plain data and tensors.

    It is read with weights_only=True, so no code in it runs, and its tensors stay in the file until
    they are needed. A compressed archive is refused, because it may expand without bound. Raises
    PretrainedError.
    """
    try:
        with zipfile.ZipFile(path) as archive:
            for entry in archive.infolist():
                pickled = entry.filename.endswith(".pkl") and entry.file_size > LARGEST_PICKLE
                if entry.compress_type != zipfile.ZIP_STORED or pickled:
                    raise PretrainedError(
                        f"{path}: {shown(entry.filename)} is compressed or has "
                        f"{entry.file_size:,} bytes, which torch.save does not write: {AGAIN}"
                    )
    except (zipfile.BadZipFile, OSError, ValueError, NotImplementedError) as error:
        if isinstance(error, PretrainedError):
            raise
        what = identify(path)[0] or f"damaged ({first_line(error)})"
        raise PretrainedError(
            f"{path} is {what}, not a file written by torch.save of version 1.6 or later: {AGAIN}"
        ) from error
    try:
        # A config of a class that we know becomes an object of ours; no other class is allowed.
        known: list[Any] = [(PickledConfig, name) for name in _CONFIG_CLASSES]
        with torch.serialization.safe_globals(known):
            data = torch.load(path, map_location="cpu", weights_only=True, mmap=True)
    except Exception as error:  # a malicious file can make the unpickler raise anything
        raise PretrainedError(_why_not_unpickled(path)) from error
    if not isinstance(data, dict):
        raise PretrainedError(f"{path} holds a {type(data).__name__}, not a dictionary: {AGAIN}")
    return data


def _why_not_unpickled(path: Path) -> str:
    """The message for a file that PyTorch does not read with weights_only=True."""
    try:
        classes = torch.serialization.get_unsafe_globals_in_checkpoint(path)
    except Exception:  # as above
        classes = []
    if not classes:
        return f"{path} is damaged: copy or {AGAIN}"
    # Of a whole model, the program's own class says more than that of a layer.
    named = next((name for name in classes if not name.startswith("torch.")), classes[0])
    if named.startswith(("numpy.", "pathlib.")):
        # A number or a path in the config of a checkpoint, such as nanoGPT's.
        return (
            f"{path} needs the code of {shown(named)}: if you trust the file, run "
            f"c = torch.load(PATH, weights_only=False), torch.save({{'model': c['model'], "
            f"'model_args': c['model_args']}}, NEW), and name NEW"
        )
    return (
        f"{path} needs the code of {shown(named)}, and no code in a file is run: in the program "
        f"that wrote it, run torch.save(model.state_dict(), PATH), and name that file"
    )


def tensors_of_state(state: dict[str, Any], where: str) -> Tensors:
    """The tensors of a state_dict. Raises PretrainedError."""
    tensors: Tensors = {}
    for key, tensor in state.items():
        if not isinstance(key, str):
            raise PretrainedError(f"{where} has the key {shown_value(key)}, not a tensor's name")
        if type(tensor) not in (Tensor, torch.nn.Parameter):
            raise PretrainedError(
                f"{where}: {shown_value(key)} is a {type(tensor).__name__}, not a tensor"
            )
        if tensor.layout is not torch.strided or tensor.is_quantized or tensor.is_meta:
            raise PretrainedError(f"{where}: {shown(key)} is not a plain tensor: save it as one")
        kind = str(tensor.dtype).removeprefix("torch.")
        floating = tensor.is_floating_point() and tensor.dtype.itemsize > 1
        read = partial(tensor.detach)
        tensors[key] = Stored(key, tuple(tensor.shape), kind, floating, read)
    return without_wrappers(tensors, where)
