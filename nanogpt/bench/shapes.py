"""Models with random weights, by the name of their shape: what a model has learned does not change
its speed.
"""

from __future__ import annotations

from dataclasses import replace

from ..config import SIZES
from ..decoder.config import Activation, DecoderConfig, Norm, Positions, decoder_config
from ..decoder.model import Decoder
from ..device import Device

# SmolLM2-135M's architecture: grouped keys, gates, RMSNorm, rotary positions, a tied head.
SMOLLM2_SHAPE = DecoderConfig(
    vocab_size=49_152,
    block_size=8192,
    n_layer=30,
    n_head=9,
    n_kv_head=3,
    n_embd=576,
    ffn_dim=1536,
    positions=Positions.ROTARY,
    rope_base=100_000.0,
    norm=Norm.RMS,
    activation=Activation.SILU,
    gated=True,
    proj_bias=False,
    ffn_bias=False,
    head_bias=False,
    tied=True,
)
RANDOM_SHAPES = {name: decoder_config(config) for name, config in SIZES.items()}
RANDOM_SHAPES["smollm2"] = SMOLLM2_SHAPE
RANDOM_SHAPES["smollm2-1.7b"] = replace(
    SMOLLM2_SHAPE, n_layer=24, n_head=32, n_kv_head=32, n_embd=2048, ffn_dim=8192
)


def random_model(shape: str, device: Device) -> Decoder:
    """A model of one of RANDOM_SHAPES, for inference."""
    return Decoder(RANDOM_SHAPES[shape]).to(device.device).eval()
