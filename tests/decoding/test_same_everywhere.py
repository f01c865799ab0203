"""One seed is one text, on any machine: the tokens of a model whose weights anybody can draw.

tests/data/tokens.json was recorded on a CPU (`python tests/test_same_everywhere.py`). The smallest
margin by which a draw was decided stands beside them: rounding elsewhere is far below it.
"""

import json
from pathlib import Path

import pytest
import torch

from nanogpt.benchmarks.decoding import sharpened
from nanogpt.cache.dynamic import DynamicCache
from nanogpt.cache.static import StaticCache
from nanogpt.config import SIZES
from nanogpt.decoding.generate import complete
from nanogpt.engines.eager import Flat
from nanogpt.model.convert import pack_heads
from nanogpt.model.gpt import GPT
from nanogpt.system.files import write_json
from nanogpt.verify.compare import compare

RECORD = Path(__file__).parents[1] / "data" / "tokens.json"
DEVICES = [
    "cpu",
    pytest.param("cuda", marks=pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU")),
]


def build(per_head=True):
    model = sharpened(GPT(SIZES["small"])).eval()
    return model if per_head else pack_heads(model)


def text(model, device, **ways):
    prompt = torch.tensor([[0, 17, 42]], device=device)
    generator = torch.Generator().manual_seed(42)
    return complete(model.to(device), prompt, 200, generator=generator, **ways)[0].tolist()


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("per_head", [True, False], ids=["heads", "batched"])
@pytest.mark.parametrize(
    "ways",
    [{"cache": None}, {"cache": DynamicCache}, {"cache": StaticCache}, {"engine": Flat}],
    ids=str,
)
def test_the_tokens_are_those_that_were_recorded(device, per_head, ways):
    found = json.loads(RECORD.read_text())
    assert text(build(per_head), device, **ways) == found["tokens"]
    assert found["smallest_margin"] > 1e-4


@pytest.mark.parametrize("device", DEVICES)
def test_two_generations_are_the_same_bits(device):
    model = build()
    assert text(model, device) == text(model, device)


def record():
    prompt = torch.tensor([[0, 17, 42]])
    report = compare(build(), prompt, 200, None, DynamicCache, seed=42)
    write_json(RECORD, {"tokens": text(build(), "cpu"), "smallest_margin": report.min_margin})
    print(report)


if __name__ == "__main__":
    record()
