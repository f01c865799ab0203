"""Notebook 00 draws one step of decoding with the weights that its model really computes."""

from types import SimpleNamespace

import pytest
import torch
from notebook_fixtures import NOTEBOOKS, book

from nanogpt import attention
from nanogpt.config import GPTConfig
from nanogpt.data import CharTokenizer
from nanogpt.model import GPT

FORMS = {
    "the lecture's": {},
    "newer": {"rms_norm": True, "rope": True, "qk_norm": True, "relu2": True, "bias": False},
}


@pytest.mark.parametrize("form", FORMS)
def test_the_weights_in_the_picture_are_those_of_the_head(form):
    tokenizer = CharTokenizer("\nabcdefgh")
    config = GPTConfig(vocab_size=9, n_layer=1, n_head=2, n_embd=16, **FORMS[form])
    model = GPT(config).eval()
    seeded = torch.Generator().manual_seed(0)
    for parameter in model.parameters():  # as large as it takes to tell the weights apart
        torch.nn.init.normal_(parameter, generator=seeded)
    names = {
        "torch": torch,
        **vars(attention),
        "model": model,
        "tokenizer": tokenizer,
        "prompt": "\n",
        "written": [None, tokenizer.encode("abchgfedcbaabch")[:, None]],
        "plots": SimpleNamespace(decode_step=lambda *_: None),
        "run": SimpleNamespace(
            device=SimpleNamespace(device=torch.device("cpu")), figure=lambda *_, **__: None
        ),
    }
    exec(next(cell.source for cell in book(NOTEBOOKS[0]).cells if cell.id == "kept"), names)
    head = names["head"]
    x = names["x"]
    pos = names["pos"]
    with torch.no_grad():
        mixed = torch.tensor(names["weights"]) @ head.value(x)[0]
        torch.testing.assert_close(mixed, head(x, pos)[0, -1])
