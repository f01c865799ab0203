"""The environment card: what a result depends on."""

import json
import sys

import pytest
import torch

from nanogpt.bench.environment import environment
from nanogpt.device import pick_device


def test_the_card_is_plain_data():
    card = environment(pick_device("cpu"))
    assert json.loads(json.dumps(card)) == card
    assert card["torch"] == torch.__version__
    assert card["python"].startswith(".".join(map(str, sys.version_info[:3])))
    assert (card["device"], card["threads"]) == ("cpu", torch.get_num_threads())


@pytest.mark.parametrize("missing", ["git", "repository"])
def test_the_card_without_git_has_no_commit(missing, tmp_path, monkeypatch):
    if missing == "git":
        monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setattr("nanogpt.bench.environment.ROOT", tmp_path)
    card = environment(pick_device("cpu"))
    assert (card["commit"], card["dirty"]) == (None, None)
