"""Generated tokens match recorded ones, on every machine."""

import json
from pathlib import Path

import pytest
import torch

from nanogpt.bench.ladder import sharpened
from nanogpt.cache import DynamicCache
from nanogpt.comparison import compare
from nanogpt.config import GPTConfig
from nanogpt.decoder.pack import pack_heads
from nanogpt.engines.eager import Flat
from nanogpt.engines.generation import complete
from nanogpt.files import write_json
from nanogpt.model import GPT

RECORD = Path(__file__).with_name("tokens.json")
DEVICES = ["cpu", pytest.param("cuda", marks=pytest.mark.gpu)]


def recorded_model(per_head=True) -> GPT:
    """A model whose weights are drawn from a seed."""
    model = sharpened(GPT(GPTConfig())).eval()
    return model if per_head else pack_heads(model)


def recorded_text(model, device, **ways):
    prompt = torch.tensor([[0, 17, 42]], device=device)
    generator = torch.Generator().manual_seed(42)
    return complete(model.to(device), prompt, 200, generator=generator, **ways)[0].tolist()


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize(
    ("per_head", "ways"),
    [(True, {}), (False, {"engine": Flat})],
    ids=["heads", "flat"],
)
def test_generated_tokens_match_the_recorded_ones(device, per_head, ways):
    """On a CPU, by `python tests/lesson/test_logits.py`; rounding is far below the margins."""
    if device == "cuda" and not torch.cuda.is_available():
        pytest.skip("no GPU")
    found = json.loads(RECORD.read_text(encoding="utf-8"))
    assert recorded_text(recorded_model(per_head), device, **ways) == found["tokens"]
    assert found["smallest_margin"] > 1e-4


def record():
    prompt = torch.tensor([[0, 17, 42]])
    report = compare(recorded_model(), prompt, 200, None, DynamicCache, seed=42)
    tokens = recorded_text(recorded_model(), "cpu")
    write_json(RECORD, {"tokens": tokens, "smallest_margin": report.min_margin})
    print(report)


if __name__ == "__main__":
    record()
