"""The parts of a training step: they are what a step does, and the command prints them."""

import pytest
import torch
from conftest import seeded
from training_fixtures import CPU, fresh, weights

from nanogpt.bench.step import PARTS, step_parts, step_rows
from nanogpt.bench.throughput import flops_per_token
from nanogpt.config import SIZES, GPTConfig
from nanogpt.data import split
from nanogpt.training.recipes import TrainConfig
from nanogpt.training.trainer import Trainer


def test_the_parts_of_a_step_move_the_weights_as_steps_do(corpus, tokenizer):
    data, _ = split(tokenizer.encode(corpus.text), 8)
    config = TrainConfig(steps=8, batch_size=4, warmup=0, decay=False)
    trainers = [Trainer(fresh(corpus, False), data, config, seeded(1), CPU) for _ in range(2)]
    for trainer in trainers:
        trainer.model.train()
    torch.manual_seed(1)  # of dropout
    parts = step_parts(trainers[0], 0, repeats=1)
    torch.manual_seed(1)
    for _ in range(3):
        trainers[1].step(0)
    assert torch.equal(*(weights(trainer.model) for trainer in trainers))
    assert set(parts) == set(PARTS)
    assert min(parts.values()) >= 0


def test_each_stage_of_a_recipe_has_a_row(corpus, monkeypatch):
    monkeypatch.setitem(SIZES, "small", GPTConfig(block_size=8, n_layer=1, n_head=1, n_embd=8))
    rows = step_rows("fast", corpus, CPU)
    assert [row["windows"] for row in rows] == ["384 × 2", "192 × 4", "96 × 8"]


def test_attention_of_a_short_window_costs_less():
    config = GPTConfig(block_size=256)
    whole, quarter = (flops_per_token(config, block) for block in (256, 64))
    assert whole == flops_per_token(config)
    assert whole - quarter == pytest.approx(12 * config.n_layer * config.n_embd * 192)
