"""golden.json, computed by the lecture's own gpt.py, against this package."""

import pytest
import torch
from conftest import DESIGNS, FORMS, name, seeded

from nanogpt.config import SIZES, GPTConfig
from nanogpt.decoder.pack import pack_heads
from nanogpt.generation import complete
from nanogpt.model import GPT
from nanogpt.pretrained.lecture import lecture_state_dict


@pytest.fixture(params=FORMS, ids=name)
def model(request, golden):
    model = GPT(GPTConfig(**golden["config"])).eval()
    model.load_state_dict({key: torch.tensor(value) for key, value in golden["state_dict"].items()})
    return model if request.param else pack_heads(model)


def test_logits_and_loss_match_the_lecture(model, golden):
    logits, loss = model(torch.tensor(golden["idx"]), torch.tensor(golden["targets"]))
    torch.testing.assert_close(logits, torch.tensor(golden["logits"]), rtol=0, atol=1e-5)
    assert abs(loss.item() - golden["loss"]) < 1e-5
    assert model(torch.tensor(golden["idx"]))[1] is None


@pytest.mark.parametrize("design", DESIGNS, ids=name)
def test_seeded_tokens_match_the_lecture(model, golden, design):
    case = golden["generate"]
    new = case["max_new_tokens"]
    prompt = torch.tensor(case["prompt"])
    assert (
        complete(model, prompt, new, cache=design, generator=seeded(42)).tolist() == case["tokens"]
    )


@pytest.mark.parametrize("design", DESIGNS, ids=name)
def test_sliding_past_the_block_matches_the_lectures_cropping(model, golden, design):
    case = golden["generate_past_block_size"]
    new = case["max_new_tokens"]
    prompt = torch.tensor(case["prompt"])
    text = complete(model, prompt, new, cache=design, generator=seeded(42), past_block="slide")
    assert text.tolist() == case["tokens"]


# ------------------------------------------------------------------ weights there and back


def test_the_lecture_state_dict_matches_and_loads(model, golden):
    """Strictly, with his `tril` buffers, which loading leaves in the caller's own dict."""
    state = lecture_state_dict(model)
    config = GPTConfig(**golden["config"])
    expected = {key: torch.tensor(value) for key, value in golden["state_dict"].items()}
    mask = torch.ones(config.block_size, config.block_size).tril()
    expected |= {f"blocks.{b}.sa.heads.{h}.tril": mask for b in (0, 1) for h in (0, 1)}
    for _ in ("as it was made", "after it was loaded"):
        assert state.keys() == expected.keys()
        assert all(torch.equal(tensor, expected[key]) for key, tensor in state.items())
        GPT(config).load_state_dict(state, strict=True)
    assert not any(key.endswith("tril") for key in model.state_dict())


def test_a_state_dict_with_an_unexpected_name_is_refused(model):
    state = model.state_dict() | {"blocks.0.sa.heads.0.bias": torch.zeros(2)}
    with pytest.raises(RuntimeError, match="sa.heads.0.bias"):
        model.load_state_dict(state)


def test_sizes_have_the_published_parameter_counts():
    known = {"article": 209_729, "small": 371_969, "medium": 841_281}
    for build in (GPT, lambda config: pack_heads(GPT(config))):
        assert {size: build(SIZES[size]).n_params for size in known} == known
