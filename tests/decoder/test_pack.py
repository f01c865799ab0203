"""The lecture's heads in one matrix and apart again: the same function and bits, both ways."""

import subprocess
import sys

import pytest
import torch
from conftest import FORMS, name, seeded, tiny_model, tokens
from shapes import SMALL

from nanogpt.config import GPTConfig
from nanogpt.decoder.config import decoder_config
from nanogpt.decoder.model import Decoder
from nanogpt.decoder.pack import (
    as_decoder,
    build_model,
    pack_heads,
    pack_state,
    unpack_heads,
    unpack_state,
)
from nanogpt.files import ROOT
from nanogpt.model import GPT

SHAPES = [{}, {"n_head": 1}, {"n_layer": 1}, {"n_head": 4, "n_embd": 20}]


@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_both_models_are_one_function_and_packing_loses_no_bit(shape):
    heads = tiny_model(dtype=torch.float64, dropout=0.0, **shape).train()
    packed = pack_heads(heads)
    assert type(packed) is Decoder
    assert packed.config == decoder_config(heads.config)
    close = {"rtol": 0, "atol": 1e-10}
    torch.testing.assert_close(packed(tokens(3, 24))[0], heads(tokens(3, 24))[0], **close)
    for model in (heads, packed):
        model(tokens(2, 9), tokens(2, 9, seed=1))[1].backward()
    grads = {key: p.grad for key, p in packed.named_parameters()}
    apart = unpack_state(grads, packed.config)
    assert apart.keys() == heads.state_dict().keys()
    for key, grad in apart.items():
        torch.testing.assert_close(grad, heads.get_parameter(key).grad, rtol=0, atol=1e-11)
    back = unpack_heads(packed)
    assert type(back) is GPT
    assert back.config == heads.config
    assert list(back.state_dict()) == list(heads.state_dict())
    assert all(torch.equal(t, back.state_dict()[key]) for key, t in heads.state_dict().items())


def test_a_packed_matrix_has_the_queries_of_all_heads_then_the_keys_then_the_values():
    heads = tiny_model(n_head=2)
    packed = pack_heads(heads).state_dict()
    for layer in range(2):
        own = heads.blocks[layer].sa.heads
        parts = [*(h.query for h in own), *(h.key for h in own), *(h.value for h in own)]
        rows = torch.cat([part.weight for part in parts])
        assert torch.equal(packed[f"blocks.{layer}.sa.qkv.weight"], rows)
        for ours, theirs in (("net.0", "up"), ("net.2", "down")):
            for kind in ("weight", "bias"):
                tensor = heads.get_parameter(f"blocks.{layer}.ffwd.{ours}.{kind}")
                assert torch.equal(packed[f"blocks.{layer}.ffwd.{theirs}.{kind}"], tensor)


@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_both_models_draw_the_same_weights_from_a_seed(shape):
    config = GPTConfig(**{**SMALL, **shape})
    for generator in (None, 5):
        made = [
            build_model(kind, generator and seeded(generator))
            for kind in (config, decoder_config(config))
        ]
        assert [type(model) for model in made] == [GPT, Decoder]
        heads, packed = made
        expected = pack_heads(heads).state_dict()
        assert list(expected) == list(packed.state_dict())
        assert all(torch.equal(t, expected[key]) for key, t in packed.state_dict().items())


@pytest.mark.parametrize("per_head", FORMS, ids=name)
@pytest.mark.parametrize("training", [True, False])
def test_a_converted_copy_keeps_dtype_and_mode_and_shares_no_memory(per_head, training):
    model = tiny_model(per_head, torch.float64).train(training)
    before = {key: t.clone() for key, t in model.state_dict().items()}
    twin = pack_heads(model) if per_head else unpack_heads(model)
    assert twin.training is training
    assert twin.lm_head.weight.dtype == torch.float64
    with torch.no_grad():
        for p in twin.parameters():
            p.zero_()
    assert all(torch.equal(t, before[key]) for key, t in model.state_dict().items())


def test_as_decoder_packs_a_list_of_heads_and_leaves_a_decoder():
    packed = tiny_model(per_head=False)
    assert as_decoder(packed) is packed
    assert type(as_decoder(tiny_model())) is Decoder


@pytest.mark.parametrize(
    ("convert", "per_head", "words"),
    [
        (pack_heads, False, "packed already: it is a Decoder"),
        (unpack_heads, True, "a list of heads already: it is a GPT"),
    ],
)
def test_converting_to_the_form_it_has_is_refused(convert, per_head, words):
    with pytest.raises(ValueError, match=words):
        convert(tiny_model(per_head))


def test_a_matrix_taken_apart_shares_no_memory_with_the_whole():
    """So that weights handed to another class are not trained along with ours."""
    model = tiny_model(per_head=False)
    state = unpack_state(model.state_dict(), model.config)
    before = model.blocks[0].sa.qkv.weight.clone()
    for key in state:
        if ".heads." in key:
            state[key].zero_()
    assert torch.equal(model.blocks[0].sa.qkv.weight, before)


def test_heads_of_different_dtypes_are_not_joined():
    model = tiny_model()
    model.blocks[1].sa.heads[0].key.double()
    with pytest.raises(ValueError, match=r"torch.float64 on cpu .other weights are torch.float32"):
        pack_heads(model)
    with pytest.raises(ValueError, match="have different dtypes: cast the whole model"):
        pack_state(model.state_dict(), model.config)


def test_packing_heads_does_not_import_torchs_compiler():
    """It takes 2 seconds to import."""
    script = (
        "import sys\n"
        "from nanogpt import GPT, GPTConfig\nfrom nanogpt.decoder.pack import pack_heads\n"
        "pack_heads(GPT(GPTConfig(n_layer=1)))\n"
        "print('torch._dynamo' in sys.modules)\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, encoding="utf-8", cwd=ROOT
    )
    assert done.stdout == "False\n", done.stderr
