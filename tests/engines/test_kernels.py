"""The C++ forward pass for every field of a DecoderConfig, against `decoder.step` in float64."""

import pytest
import torch
from decoder_fixtures import map_weights, random_weights, reference_logits
from native_fixtures import Runner, logits_in_three_ways, text_of
from shapes import DECODERS

from nanogpt.decoder.config import DecoderConfig
from nanogpt.engines.decoder_library import Packed

pytestmark = pytest.mark.slow
SHAPE = {"vocab_size": 37, "block_size": 160, "n_layer": 2, "n_head": 4, "n_embd": 32}
# Sizes at which the kernels' loops begin, end and leave numbers over, beside those in shapes.py.
SIZES = {
    "gated, odd hidden": {"gated": True, "ffn_dim": 27, "activation": "gelu_tanh"},
    "groups of 9": {"n_head": 9, "n_kv_head": 1, "head_dim": 8},
    "wide heads": {"head_dim": 48, "n_kv_head": 2},
    "narrow heads": {"head_dim": 6, "positions": "rotary"},
    "odd sizes": {"n_embd": 27, "n_head": 3, "vocab_size": 41, "ffn_dim": 50},
    "one head": {"n_head": 1, "n_embd": 19},
    "larger than a group of 8-bit weights": {"n_embd": 136, "n_head": 2, "vocab_size": 300},
    "window of one": {"window": 1},
    "window past the first tile": {"window": 9, "sinks": 2, "n_kv_head": 2},
}
# A field that is added to shapes.py is tested here too. A shorter block has no room for the text.
FIELDS = {row: fields for row, fields in DECODERS.items() if "block_size" not in fields}
ROWS = FIELDS | SIZES


def close_to(got, want, rtol=1e-4):
    assert (got - want).abs().max() <= rtol * want.abs().max()


@pytest.mark.parametrize("row", ROWS)
def test_every_field_of_a_config(row):
    c = DecoderConfig(**(SHAPE | ROWS[row]))
    weights = random_weights(c)
    text = text_of(c, 150)
    packed = Packed(c)
    packed.pack(weights)
    alone, prefill, mixed = logits_in_three_ways(packed, text.tolist(), text_of(c, 21, 2).tolist())
    close_to(alone, reference_logits(weights, c, text))
    assert torch.equal(alone, prefill)
    assert torch.equal(alone, mixed)


@pytest.mark.parametrize("block_len", [1, 5, 12, 160])
def test_blocks_of_any_length(block_len):
    c = DecoderConfig(**(SHAPE | {"n_kv_head": 2, "window": 30, "sinks": 2, "full_every": 2}))
    weights = random_weights(c)
    text = text_of(c, 150)
    packed = Packed(c)
    packed.pack(weights)
    runner = Runner(packed, block_len, 600)
    one, whole = runner.add(text.tolist()), runner.add(text.tolist())
    alone = torch.cat([runner.read((one, i, i + 1))[0] for i in range(150)])
    close_to(alone, reference_logits(weights, c, text))
    assert torch.equal(alone, runner.read((whole, 0, 150))[0])
    runner.close()


def dequantized(weights):
    """The weights with every matrix rounded to 8 bits and back."""

    def rounded(w):
        scale = w.abs().amax(-1, keepdim=True) / 127
        return (w / scale.clamp(min=1e-30)).round() * scale

    def matrices(affine):
        return affine._replace(weight=rounded(affine.weight))

    layers = [
        layer._replace(**{m: matrices(getattr(layer, m)) for m in ("qkv", "proj", "up", "down")})
        for layer in weights.layers
    ]
    return weights._replace(layers=layers, head=matrices(weights.head))


EIGHT_BITS = ["plain", "odd sizes", "larger than a group of 8-bit weights", "Qwen 3", "tied"]


@pytest.mark.parametrize("row", EIGHT_BITS)
def test_eight_bits_are_the_dequantized_model(row):
    c = DecoderConfig(**(SHAPE | ROWS[row]))
    weights = random_weights(c)
    text = text_of(c, 60)
    packed = Packed(c, 8)
    packed.pack(weights)
    alone, prefill, mixed = logits_in_three_ways(packed, text.tolist(), text_of(c, 21, 2).tolist())
    close_to(alone, reference_logits(dequantized(weights), c, text), 1e-3)
    assert torch.equal(alone, prefill)
    assert torch.equal(alone, mixed)


def test_packing_reads_any_layout_and_packs_again():
    c = DecoderConfig(**SHAPE)
    packed = Packed(c)
    text = text_of(c, 20)
    for seed in (0, 1):
        weights = random_weights(c, seed)
        packed.pack(map_weights(lambda w: w.t().contiguous().t() if w.ndim == 2 else w, weights))
        runner = Runner(packed)
        got = runner.read((runner.add(text.tolist()), 0, 20))[0]
        close_to(got, reference_logits(weights, c, text))
        runner.close()
