"""python -m nanogpt export: weights under the lecture's names."""

import pytest
import torch
from checkpoint_fixtures import meta_of
from conftest import tiny_model
from safetensors.torch import load_file
from shapes import ROPE

from nanogpt.cli import main
from nanogpt.decoder.checkpoint import save_checkpoint
from nanogpt.pretrained.lecture import lecture_state_dict


def saved(tmp_path, **changes):
    model = tiny_model(**changes)
    save_checkpoint(tmp_path / "fox", model, meta_of(model))
    return model


def test_the_file_holds_the_lectures_state_dict(tmp_path, capsys):
    model = saved(tmp_path)
    out = tmp_path / "lecture.safetensors"
    assert main(["export", str(tmp_path / "fox"), "--form", "lecture", "--out", str(out)]) == 0
    expected = lecture_state_dict(model)
    found = load_file(out)
    assert found.keys() == expected.keys()
    assert all(torch.equal(found[name], expected[name]) for name in expected)
    assert "n_layer=2, n_head=2, n_embd=16, block_size=24" in capsys.readouterr().out


@pytest.mark.parametrize("form", ["auto", "lecture"])
def test_an_export_without_a_matching_format_names_the_cause_and_writes_nothing(
    tmp_path, capsys, form
):
    saved(tmp_path, **ROPE)
    out = tmp_path / "out"
    assert main(["export", str(tmp_path / "fox"), "--form", form, "--out", str(out)]) == 2
    assert "positions=rotary" in capsys.readouterr().err
    assert not out.exists()
