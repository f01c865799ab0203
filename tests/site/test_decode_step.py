"""Notebook 00 draws one step of decoding with the weights that its model really computes."""

from types import SimpleNamespace

import pytest
import torch
from notebook_fixtures import NOTEBOOKS, book
from shapes import NO_BIAS, RELU2, RMS, ROPE, model_of

from nanogpt.data import CharTokenizer
from nanogpt.model import GPT
from nanogpt.site import moving

FORMS = {
    "the lecture's": {},
    "newer": {**RMS, **ROPE, "qk_norm": True, **RELU2, **NO_BIAS},
}


@pytest.mark.parametrize("form", FORMS)
@torch.no_grad()
def test_the_weights_in_the_picture_are_those_of_the_head(form):
    tokenizer = CharTokenizer("\nabcdefgh")
    model = model_of(vocab_size=9, n_layer=1, n_head=2, n_embd=16, **FORMS[form]).eval()
    seeded = torch.Generator().manual_seed(0)
    for parameter in model.parameters():  # as large as it takes to tell the weights apart
        torch.nn.init.normal_(parameter, generator=seeded)
    names = {
        "torch": torch,
        "moving": moving,
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
    attention = model.blocks[0].sa
    seen = {}  # what the heads read, and what they give, side by side
    attention.register_forward_pre_hook(lambda module, args: seen.update(read=args[0]))
    attention.proj.register_forward_pre_hook(lambda module, args: seen.update(given=args[0]))
    model(names["tokens"])
    size = model.config.head_size
    if isinstance(model, GPT):
        matrix = attention.heads[0].value.weight
    else:
        matrix = attention.qkv.weight[2 * model.config.n_embd :][:size]
    values = seen["read"][0] @ matrix.T
    mixed = torch.tensor(names["weights"]) @ values
    torch.testing.assert_close(mixed, seen["given"][0, -1, :size], atol=0.01, rtol=0)
