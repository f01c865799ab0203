"""What a file is that is no checkpoint of ours, and what to do about it.

A row is here because people have named such a file: weights of another format, or something that
was saved in the place of weights. Nothing is unpickled; only the first bytes are read.
"""

import os
import zipfile
from pathlib import Path

OURS_ONLY = "name a checkpoint that this project wrote, for example with `python -m nanogpt train`"
PRETRAINED = "load_pretrained and `generate --model` read it"
UNPICKLED = (
    "nothing is unpickled here; read it with torch.load(PATH, weights_only=True), put its tensors "
    "into a GPT with load_state_dict, and call save_checkpoint"
)
_AGAIN = "copy or fetch it again"
SIGNATURES = [  # first bytes of a file, what it is, what to do, and who has named such a file
    # torch.save before PyTorch 1.6, and pickle.dump of a state_dict.
    (b"\x80", "a pickle, such as an old torch.save", UNPICKLED),
    # The models that people have on disk for llama.cpp.
    (b"GGUF", "a GGUF file, llama.cpp's format", f"{PRETRAINED}, elsewhere {OURS_ONLY}"),
    # A clone of a hub repository without git-lfs has these in the place of the weights.
    (b"version https://git-lfs", "a Git LFS pointer", "fetch the file itself with `git lfs pull`"),
    # The address of the hub's page about a file, given to curl or wget, saves the page.
    (b"<", "a web page or XML", "fetch the file itself: the download saved a page about it"),
    # The index of shards, and the metadata that our training writes beside the weights.
    (b"{", "JSON", "name the .safetensors file beside it"),
]


def identify(path: Path) -> tuple[str, str]:
    """What `path` is, and what to do if a checkpoint was expected.

    The first string is empty for a missing file, an unknown kind, or a .safetensors header.
    """
    # 1. What is not a file: nothing, a broken link, a folder, a pipe. A pipe must not be opened,
    #    because that would wait for its writer.
    if not os.path.lexists(path):
        return "", OURS_ONLY
    if not path.exists():
        return f"a link to {os.readlink(path)}, which does not exist", "fix the link"
    if path.is_dir():
        return _identify_folder(path)
    if not path.is_file():
        return "a pipe or a device", OURS_ONLY
    # 2. The first bytes of a file.
    try:
        with open(path, "rb") as file:
            start = file.read(64)
    except OSError as error:
        return f"a file that cannot be read ({error.strerror})", "ask its owner, or name another"
    if not start:  # a download or a copy that broke off at once
        return "an empty file", _AGAIN
    if start[8:9] == b"{":  # safetensors: 8 bytes of length, then JSON
        return "", OURS_ONLY
    if start.startswith(b"PK\x03\x04"):
        return _identify_zip(path)
    # 3. A page may begin with a byte order mark or blank lines.
    for signature, what, cure in SIGNATURES:
        if start.lstrip(b" \t\r\n\xef\xbb\xbf").startswith(signature):
            return what, cure
    return "", OURS_ONLY


def _identify_folder(path: Path) -> tuple[str, str]:
    names = sorted(found.name for found in path.glob("*.safetensors"))
    checkpoints = [name for name in names if not name.endswith(".state.safetensors")]
    if (path / "config.json").is_file():
        return "a Hugging Face transformers folder", (
            f"{PRETRAINED}, `verify model` checks it; elsewhere name a checkpoint that this "
            f"project wrote"
        )
    if checkpoints:
        return "a folder", f"name a file in it, such as {', '.join(checkpoints[:3])}"
    return "a folder without checkpoints", OURS_ONLY


def _identify_zip(path: Path) -> tuple[str, str]:
    """torch.save writes a zip archive, such as nanoGPT's ckpt.pt or a pytorch_model.bin."""
    try:
        with zipfile.ZipFile(path) as archive:
            names = archive.namelist()
    except (zipfile.BadZipFile, OSError, ValueError, NotImplementedError):
        return "a truncated or damaged zip archive, such as torch.save writes", _AGAIN
    if any(name.endswith("data.pkl") for name in names):
        return "a PyTorch file (torch.save)", UNPICKLED
    return "a zip archive", OURS_ONLY
