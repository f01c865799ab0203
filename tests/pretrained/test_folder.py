"""The folder of an export, by the command; whole or not there is tests/test_files.py."""

from checkpoint_fixtures import meta_of
from conftest import tiny_model

from nanogpt import save_checkpoint
from nanogpt.cli import main

FILES = {"README.md", "config.json", "generation_config.json", "model.safetensors"}
FILES |= {"nanogpt.json", "tokenizer.json", "tokenizer_config.json"}


def test_the_command_writes_it_and_warns_of_small_heads(tmp_path, capsys):
    model = tiny_model()
    out = tmp_path / "out"
    save_checkpoint(tmp_path / "fox", model, meta_of(model))
    assert main(["export", str(tmp_path / "fox"), "--out", str(out)]) == 0
    said = capsys.readouterr().out
    assert "OPTForCausalLM" in said
    assert "needs a head size of at least 32, and this model's is 8" in said
    assert {file.name for file in out.iterdir()} == FILES
