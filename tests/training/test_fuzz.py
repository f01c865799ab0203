"""Anything at all: the right result, or our own error that names what was wrong."""

import hypothesis.strategies as st
import torch
from fuzz_fixtures import CORPUS, CPU, RECIPE, SHAPE, attempt, damages, equal, examples, mend
from hypothesis import given

from nanogpt.config import GPTConfig
from nanogpt.model.gpt import GPT
from nanogpt.training.loop import train
from nanogpt.training.state import state_path


def resume(saved, write_state) -> dict | None:
    """Resume from a state: the weights in the end, or None after our error."""
    out = saved.place / "again"
    write_state(state_path(out))
    model, random = GPT(GPTConfig(**SHAPE)).eval(), torch.random.get_rng_state()
    # Of ValueErrors there is, beside the CheckpointError, the one for other settings.
    _, said = attempt(
        lambda: train(model, CORPUS, RECIPE, out=out, device=CPU, resume=True), ValueError
    )
    assert said is None or str(state_path(out)) in said
    assert not model.training
    assert torch.equal(torch.random.get_rng_state(), random)
    return model.state_dict() if said is None else None


@given(damage=damages(), mended=st.booleans())
@examples(60)
def test_a_damaged_state_gives_the_very_weights_or_our_error(saved, damage, mended):
    data = damage(saved.state)
    found = resume(saved, lambda path: path.write_bytes(mend(data) if mended else data))
    assert found is None or equal(found, saved.weights)
