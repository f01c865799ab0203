"""verify model on models that other people trained: our decoder with our caches is judged."""

from __future__ import annotations

import json

import pytest
from pretrained_fixtures import kept_folders, write_gguf  # noqa: F401

from nanogpt.cli import main

CALL = ["verify", "model", "--tokens", "0"]


@pytest.fixture
def report(tmp_path, capsys):
    """The command's exit code and report on one model."""

    def call(*words):
        path = tmp_path / "report.json"
        code = main([*CALL, *words, "--json", str(path)])
        return code, json.loads(path.read_text(encoding="utf-8"))[0]

    return call


def test_a_gguf_file_is_judged_in_our_decoder(report, tmp_path):
    code, found = report(str(write_gguf(tmp_path / "x.gguf", "qwen2")))
    assert (code, found["model"]) == (0, "Decoder")
    assert found["verdict"] in ("rounding", "equal")
    assert any("StaticCache" in finding["way"] for finding in found["findings"])


def test_a_file_of_somebody_else_is_not_overwritten(tmp_path, capsys):
    path = tmp_path / "mine.json"
    path.write_text("[1]", encoding="utf-8")
    assert main([*CALL, str(tmp_path), "--json", str(path)]) == 2
    assert "this command did not write it" in capsys.readouterr().err
    assert path.read_text(encoding="utf-8") == "[1]"


@pytest.mark.release
@pytest.mark.parametrize(("words", "subject"), [(["--ours"], "Decoder"), ([], "LlamaForCausalLM")])
def test_a_folder_is_judged_as_transformers_model_or_as_ours(words, subject, report, kept_folders):  # noqa: F811
    code, found = report(str(kept_folders("llama")), *words)
    assert (code, found["model"]) == (0, subject)
