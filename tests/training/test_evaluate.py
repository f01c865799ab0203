"""Evaluation losses: over all characters, in eval mode, leaving the model unchanged."""

import pytest
from conftest import tiny_model, tokens

from nanogpt.training.evaluation import full_loss, mean_loss


@pytest.mark.parametrize("mode", [True, False])
def test_mean_loss_is_without_dropout_and_restores_the_mode(mode):
    model = tiny_model().train(mode)
    batches = [(tokens(4, 9), tokens(4, 9, seed=1))]
    assert mean_loss(model, batches) == mean_loss(model, batches), "dropout was on"
    assert model.training is mode
    assert all(p.grad is None for p in model.parameters())
    with pytest.raises(ValueError, match="block_size"):
        mean_loss(model, [(tokens(1, 25), tokens(1, 25))])
    assert model.training is mode


@pytest.mark.parametrize("n", [26, 49, 50, 72, 73, 500])
def test_the_full_loss_covers_every_window_once(n):
    model = tiny_model()
    data = tokens(n, seed=4)
    total = 0.0
    count = 0
    for start in range(0, n, 24):
        row = data[start : start + 25]
        if len(row) == 25:
            logits = model(row[None, :-1])[0][0].detach().double().log_softmax(-1)
            total -= sum(float(logits[t, row[t + 1]]) for t in range(24))
            count += 24
    assert full_loss(model, data) == pytest.approx(total / count, abs=1e-5)
