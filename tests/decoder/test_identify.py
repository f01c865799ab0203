"""What a file is that is no checkpoint: a row for each kind that people have named."""

import zipfile

import pytest
import torch

from nanogpt.decoder.identify import identify

POINTER = b"version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 9\n"


def torch_file(path, **how):
    torch.save({"weight": torch.ones(3)}, path, **how)


def truncated(path):
    torch_file(path)
    path.write_bytes(path.read_bytes()[:200])


def zip_archive(path):
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("a.txt", "text")


def folder(*names):
    def make(path):
        path.mkdir()
        for name in names:
            (path / name).write_text("{}", encoding="utf-8")

    return make


def content(data):
    return lambda path: path.write_bytes(data)


KINDS = {  # what makes it, what it is, and part of the advice
    "torch.save": (torch_file, "a PyTorch file (torch.save)", "weights_only=True"),
    "an old torch.save": (
        lambda path: torch_file(path, _use_new_zipfile_serialization=False),
        "a pickle, such as an old torch.save",
        "weights_only=True",
    ),
    "a truncated torch.save": (truncated, "a truncated or damaged zip archive", "again"),
    "another zip archive": (zip_archive, "a zip archive", "a checkpoint that this project wrote"),
    "GGUF": (content(b"GGUF\x03\0\0\0"), "a GGUF file", "load_pretrained"),
    "a Git LFS pointer": (content(POINTER), "a Git LFS pointer", "git lfs pull"),
    "a web page": (content(b"\n<!DOCTYPE html>"), "a web page or XML", "a page about it"),
    "JSON": (content(b'{"a": 1}'), "JSON", ".safetensors file beside it"),
    "an empty file": (content(b""), "an empty file", "again"),
    "a text": (content(b"To be"), "", "a checkpoint that this project wrote"),
    "a folder of transformers": (folder("config.json"), "a Hugging Face", "load_pretrained"),
    "a folder of checkpoints": (folder("a.safetensors"), "a folder", "such as a.safetensors"),
    "another folder": (folder("a.txt"), "a folder without checkpoints", "train"),
    "a link to nothing": (
        lambda path: path.symlink_to("/nowhere/x"),
        "a link to /nowhere/x, which does not exist",
        "fix the link",
    ),
}


@pytest.mark.parametrize("kind", KINDS)
def test_a_foreign_file_is_named_with_advice(tmp_path, kind):
    make, expected, advice = KINDS[kind]
    make(tmp_path / "file")
    what, cure = identify(tmp_path / "file")
    assert what.startswith(expected)
    assert bool(what) == bool(expected)
    assert advice in cure


def test_a_missing_file_has_no_description(tmp_path):
    assert identify(tmp_path / "file")[0] == ""
