"""The folder of an export: whole or not there, and nobody's files in danger."""

import pytest
from checkpoint_fixtures import meta_of
from conftest import tiny_model

from nanogpt import load_checkpoint, save_checkpoint
from nanogpt.cli import main
from nanogpt.export.huggingface import write_folder

FILES = {"README.md", "config.json", "generation_config.json", "model.safetensors"}
FILES |= {"nanogpt.json", "tokenizer.json", "tokenizer_config.json"}


@pytest.fixture
def saved(tmp_path):
    model = tiny_model()
    save_checkpoint(tmp_path / "fox", model, meta_of(model))
    return load_checkpoint(tmp_path / "fox")


def names(path):
    return {file.name for file in path.iterdir()}


def test_an_export_is_replaced_by_the_next(saved, tmp_path):
    write_folder(saved, tmp_path / "out")
    assert names(tmp_path / "out") == FILES
    saved.model.lm_head.bias.data.add_(1.0)
    before = (tmp_path / "out" / "model.safetensors").read_bytes()
    write_folder(saved, tmp_path / "out")
    assert (tmp_path / "out" / "model.safetensors").read_bytes() != before
    assert names(tmp_path) == {"fox.safetensors", "fox.json", "out"}


def test_the_command_writes_it_and_warns_of_small_heads(saved, tmp_path, capsys):
    out = tmp_path / "out"
    assert main(["export", str(tmp_path / "fox"), "--out", str(out)]) == 0
    said = capsys.readouterr().out
    assert "OPTForCausalLM" in said
    assert "heads of 32 numbers or more, and these have 8" in said
    assert names(out) == FILES
