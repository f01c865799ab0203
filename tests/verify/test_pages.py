"""What the page on testing a cache of one's own shows works when it is pasted."""

import html
import re

import pytest
import torch
from other_library import Net, Store
from torch import nn

from nanogpt.files import ROOT
from nanogpt.kv_referee import Report

PAGE = ROOT / "nanogpt" / "site" / "templates" / "your_cache.html.j2"


def block(name):
    """The code of a block of the page, by its id."""
    (found,) = re.findall(
        f'id="{name}".*?<code>(.*?)</code>', PAGE.read_text(encoding="utf-8"), re.S
    )
    return html.unescape(found)


def run(code, scope, capsys):
    exec(compile(code, "page", "exec"), scope)
    return capsys.readouterr().out


@pytest.mark.release
def test_five_lines_judge_a_model_of_transformers(capsys):
    pytest.importorskip("transformers")
    code = block("try")
    assert len(code.splitlines()) == 5
    said = run(code.replace("referee(model)", "referee(model, tokens=0)"), {}, capsys)
    assert re.match(r"GPT2LMHeadModel: (equal|rounding)\n", said), said
    assert "faults that the referee planted" in said


class Functional(nn.Module):
    """A model that takes its cache and gives it back; without one it begins anew."""

    def __init__(self):
        super().__init__()
        self.net = Net()

    def forward(self, ids, cache=None, **_):
        cache = cache or Store()
        logits = self.net(ids, cache)
        return logits, cache


def test_the_adapter_of_the_page_judges_a_model_that_hands_its_cache_back(capsys):
    import nanogpt

    scope = {"nanogpt": nanogpt, "model": Functional()}
    code = block("contract").replace(
        "nanogpt.referee(Adapter(model))", "nanogpt.referee(Adapter(model), tokens=0)"
    )
    said = run(code, scope, capsys)
    assert re.match(r"Functional: (equal|rounding)\n", said), said
    assert "6 of 6 faults that the referee planted were found" in said
    assert isinstance(nanogpt.referee(scope["Adapter"](Functional()), seconds=1), Report)
    assert torch.is_tensor(scope["Session"](Functional()).read(torch.tensor([[1, 2]])))
