"""Every quantization of GGUF: a model with the numbers to which the gguf package expands it."""

from __future__ import annotations

import copy
from pathlib import Path

import gguf
import numpy as np
import pytest
import torch
from conftest import seeded
from pretrained_fixtures import SCALES, WIDE, V, gguf_tensors, their_model, write_gguf

from nanogpt import SamplingParams, complete, load_pretrained

KINDS = ("F32", "F16", "BF16", "Q8_0", "Q4_0", "Q4_1", "Q5_0", "Q5_1", "TQ1_0", *SCALES)
PROMPT = torch.randint(3, V, (1, 9), generator=seeded(1))
N_NEW = 40


def their_model_of(path: Path):
    """A model of transformers with the numbers of a file, as the gguf package expands them."""
    model = copy.deepcopy(their_model(WIDE))
    names = dict(zip(gguf_tensors(WIDE), model.state_dict(), strict=True))
    state = {}
    for tensor in gguf.GGUFReader(path).tensors:
        values = np.array(gguf.dequantize(tensor.data, tensor.tensor_type), np.float32)
        if tensor.name.endswith(("attn_q.weight", "attn_k.weight")):  # llama.cpp's order of rows
            pairs = values.reshape(-1, model.config.head_dim // 2, 2, values.shape[-1])
            values = pairs.swapaxes(1, 2).reshape(values.shape)
        state[names[tensor.name]] = torch.from_numpy(values)
    model.load_state_dict(state)
    return model


@pytest.mark.parametrize("kind", KINDS)
def test_a_file_of_each_kind_is_computed(kind, tmp_path):
    path = write_gguf(tmp_path / "x.gguf", WIDE, kind)
    found = {tensor.tensor_type.name for tensor in gguf.GGUFReader(path).tensors}
    assert found == {kind, "F32"}
    theirs = their_model_of(path)
    model = load_pretrained(path)[0]
    with torch.no_grad():
        expected = theirs(PROMPT).logits
        found = model(PROMPT)[0]
        text = theirs.generate(PROMPT, max_new_tokens=N_NEW, do_sample=False, eos_token_id=V)
    assert (found - expected).abs().max() < 1e-3 * expected.abs().max()
    assert expected.std() > 0.3
    assert torch.equal(complete(model, PROMPT, N_NEW, SamplingParams(greedy=True)), text)
