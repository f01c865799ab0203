"""The layout of parameters: for every decoder, the names and shapes that the module really has."""

import pytest
import torch
from shapes import DECODERS, SMALL

from nanogpt.decoder.config import DecoderConfig
from nanogpt.decoder.layout import PartKind, all_parameters, all_parts, block_parts, outer_parts
from nanogpt.decoder.model import Decoder
from nanogpt.decoder.pack import flatten
from nanogpt.decoder.step import Layer, Weights, named_tensors

every_decoder = pytest.mark.parametrize("row", DECODERS)


@every_decoder
def test_the_layout_has_the_names_and_shapes_of_the_state_dict(row):
    config = DecoderConfig(**SMALL | DECODERS[row])
    with torch.device("meta"):
        state = Decoder(config).state_dict()
    listed = {parameter.path: parameter.shape for parameter in all_parameters(config)}
    assert len(listed) == len(all_parameters(config))
    assert listed == {path: tuple(tensor.shape) for path, tensor in state.items()}


@every_decoder
def test_the_layout_has_the_names_and_shapes_of_a_step(row):
    config = DecoderConfig(**SMALL | DECODERS[row])
    named = named_tensors(flatten(Decoder(config)))
    if config.rotary:
        assert named.pop("positions").shape == (config.block_size, 2 * config.head_size)
    listed = {parameter.name: parameter.shape for parameter in all_parameters(config)}
    assert listed == {name: tuple(tensor.shape) for name, tensor in named.items()}


def test_the_parts_are_the_fields_of_a_step_in_the_same_order():
    config = DecoderConfig()
    assert tuple(part.name for part in block_parts(config)) == Layer._fields
    outer = [name for name in Weights._fields if name != "layers"]
    assert [part.name for part in outer_parts(config)] == outer


@every_decoder
def test_matrices_are_the_linear_layers(row):
    config = DecoderConfig(**SMALL | DECODERS[row])
    with torch.device("meta"):
        modules = dict(Decoder(config).named_modules())
    linear = {path for path, module in modules.items() if isinstance(module, torch.nn.Linear)}
    assert {part.path for part in all_parts(config) if part.kind is PartKind.MATRIX} == linear
