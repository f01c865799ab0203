"""Karpathy's own numbers: data/golden.json was computed by his gpt.py, and ours must agree."""

import pytest
import torch
import torch.nn as nn
import torch.nn.functional as F
from conftest import DESIGNS, FORMS, name, seeded

from nanogpt.config import SIZES, GPTConfig
from nanogpt.decoding.generate import complete
from nanogpt.model.convert import lecture_state_dict, pack_heads
from nanogpt.model.gpt import GPT


@pytest.fixture(params=FORMS, ids=name)
def model(request, golden):
    model = GPT(GPTConfig(**golden["config"])).eval()
    model.load_state_dict({key: torch.tensor(value) for key, value in golden["state_dict"].items()})
    return model if request.param else pack_heads(model)


def test_logits_and_loss_are_those_of_the_lecture(model, golden):
    logits, loss = model(torch.tensor(golden["idx"]), torch.tensor(golden["targets"]))
    torch.testing.assert_close(logits, torch.tensor(golden["logits"]), rtol=0, atol=1e-5)
    assert abs(loss.item() - golden["loss"]) < 1e-5


@pytest.mark.parametrize("design", DESIGNS, ids=name)
def test_seeded_tokens_are_those_of_the_lecture(model, golden, design):
    case = golden["generate"]
    new, prompt = case["max_new_tokens"], torch.tensor(case["prompt"])
    assert (
        complete(model, prompt, new, cache=design, generator=seeded(42)).tolist() == case["tokens"]
    )


@pytest.mark.parametrize("design", DESIGNS, ids=name)
def test_sliding_past_the_block_is_the_cropping_of_the_lecture(model, golden, design):
    case = golden["generate_past_block_size"]
    new, prompt = case["max_new_tokens"], torch.tensor(case["prompt"])
    with pytest.warns(UserWarning, match="the window slides"):
        text = complete(model, prompt, new, cache=design, generator=seeded(42), past_block="slide")
    assert text.tolist() == case["tokens"]


# ------------------------------------------------------------------ weights there and back


class LectureHead(nn.Module):
    def __init__(self, n_embd, size, block_size):
        super().__init__()
        self.key = nn.Linear(n_embd, size, bias=False)
        self.query = nn.Linear(n_embd, size, bias=False)
        self.value = nn.Linear(n_embd, size, bias=False)
        self.register_buffer("tril", torch.tril(torch.ones(block_size, block_size)))

    def forward(self, x):
        T, size = x.shape[1], self.key.out_features
        weights = self.query(x) @ self.key(x).transpose(-2, -1) * size**-0.5
        weights = weights.masked_fill(self.tril[:T, :T] == 0, float("-inf")).softmax(-1)
        return weights @ self.value(x)


class LectureBlock(nn.Module):
    def __init__(self, config):
        super().__init__()
        C = config.n_embd
        heads = [LectureHead(C, config.head_size, config.block_size) for _ in range(config.n_head)]
        self.sa = nn.ModuleDict({"heads": nn.ModuleList(heads), "proj": nn.Linear(C, C)})
        net = nn.Sequential(nn.Linear(C, 4 * C), nn.ReLU(), nn.Linear(4 * C, C))
        self.ffwd = nn.ModuleDict({"net": net})
        self.ln1, self.ln2 = nn.LayerNorm(C), nn.LayerNorm(C)

    def forward(self, x):
        y = self.ln1(x)
        x = x + self.sa["proj"](torch.cat([head(y) for head in self.sa["heads"]], dim=-1))
        return x + self.ffwd["net"](self.ln2(x))


class LectureModel(nn.Module):
    """A stand-in for GPTLanguageModel: its parameter names, its tril buffers, its arithmetic."""

    def __init__(self, config):
        super().__init__()
        self.token_embedding_table = nn.Embedding(config.vocab_size, config.n_embd)
        self.position_embedding_table = nn.Embedding(config.block_size, config.n_embd)
        self.blocks = nn.Sequential(*[LectureBlock(config) for _ in range(config.n_layer)])
        self.ln_f = nn.LayerNorm(config.n_embd)
        self.lm_head = nn.Linear(config.n_embd, config.vocab_size)

    def forward(self, idx):
        places = self.position_embedding_table(torch.arange(idx.shape[1]))
        return self.lm_head(self.ln_f(self.blocks(self.token_embedding_table(idx) + places)))


def test_our_state_dict_loads_strictly_into_his_class(model, golden):
    his = LectureModel(model.config)
    his.load_state_dict(lecture_state_dict(model), strict=True)
    torch.testing.assert_close(
        his(torch.tensor(golden["idx"])), torch.tensor(golden["logits"]), rtol=0, atol=1e-5
    )


def test_his_state_dict_loads_strictly_into_ours_and_is_not_changed(golden):
    config = GPTConfig(**golden["config"])
    torch.manual_seed(3)
    his, ours = LectureModel(config), GPT(config)
    state = his.state_dict()
    names = list(state)
    assert any(key.endswith("heads.1.tril") for key in names)
    ours.load_state_dict(state, strict=True)
    assert list(state) == names, "loading took the tril buffers out of the caller's own dict"
    idx = torch.tensor(golden["idx"])
    torch.testing.assert_close(ours.eval()(idx)[0], his(idx), rtol=0, atol=1e-5)


def test_a_state_dict_with_a_foreign_name_is_still_refused(model):
    state = model.state_dict() | {"blocks.0.sa.heads.0.bias": torch.zeros(2)}
    with pytest.raises(RuntimeError, match="sa.heads.0.bias"):
        model.load_state_dict(state)


@pytest.mark.parametrize("per_head", FORMS, ids=name)
def test_sizes_have_the_parameters_they_are_known_for(per_head):
    article = GPT(GPTConfig(**{**vars(SIZES["article"]), "per_head": per_head}))
    assert article.n_params == 209_729
    assert GPT(SIZES["small"]).n_params == 209_729 + (256 - 32) * 64


def test_loss_is_the_mean_cross_entropy_in_nats(model, golden):
    idx, targets = torch.tensor(golden["idx"]), torch.tensor(golden["targets"])
    logits = model(idx)[0].double()
    expected = F.nll_loss(logits.log_softmax(-1).view(-1, logits.shape[-1]), targets.view(-1))
    assert model(idx, targets)[1].item() == pytest.approx(expected.item(), abs=1e-6)
    assert model(idx)[1] is None
