"""Anything at all: the right result, or our own error that names what was wrong."""

import json
import math
import struct

import hypothesis.strategies as st
import pytest
from fuzz_fixtures import SHAPE, attempt, damages, equal, examples, is_whole, json_values, mend
from hypothesis import assume, example, given
from safetensors.torch import save_file

from nanogpt.model.checkpoint import FORMAT, CheckpointError, load_checkpoint, read_tensors


def check_checkpoint(saved, data: bytes) -> None:
    path = saved.place / "any.safetensors"
    path.write_bytes(data)
    found, said = attempt(lambda: load_checkpoint(path), CheckpointError)
    if said is not None:
        assert str(path) in said
        return
    # Whoever damages the word "digest" as well as a weight goes unnoticed: see below.
    assert "digest" not in found.meta
    if set(found.meta) == set(saved.meta):
        assert equal(found.model.state_dict(), saved.weights)
    str(found)


@given(
    content=st.binary(max_size=60)
    | st.binary(max_size=60).map(lambda b: struct.pack("<Q", len(b)) + b)
)
@examples(100)
@example(content=b"\2\0\0\0\0\0\0\0{}")
@example(content=b"\xff" * 8)
def test_any_bytes_are_no_checkpoint(saved, content):
    path = saved.place / "bytes.safetensors"
    path.write_bytes(content)
    for read in (load_checkpoint, read_tensors):
        with pytest.raises(CheckpointError) as error:
            read(path)
        assert str(path) in str(error.value)


@given(damage=damages(), mended=st.booleans())
@examples(150)
def test_a_damaged_checkpoint_gives_the_very_weights_or_our_error(saved, damage, mended):
    data = damage(saved.checkpoint)
    check_checkpoint(saved, mend(data) if mended else data)


def test_two_damaged_bytes_are_noticed_even_if_one_is_in_the_word_digest(saved):
    data = bytearray(saved.checkpoint.replace(b"digest", b"digesu"))
    data[-5] ^= 4
    path = saved.place / "two.safetensors"
    path.write_bytes(data)
    with pytest.raises(CheckpointError, match="digest"):
        load_checkpoint(path)


@given(damage=damages(), mended=st.booleans())
@examples(120)
def test_a_damaged_file_of_tensors_gives_the_very_tensors_or_our_error(saved, damage, mended):
    path, data = saved.place / "tensors.safetensors", damage(saved.state)
    path.write_bytes(mend(data) if mended else data)
    found, said = attempt(lambda: read_tensors(path), CheckpointError)
    if said is not None:
        assert str(path) in said
        return
    assert equal(found[0], saved.tensors[0])
    assert found[1] == saved.tensors[1]


@st.composite
def swaps(draw):
    """A function that puts another JSON value into one place of nested dicts, or takes one out."""
    choices, new, gone = (
        draw(st.lists(st.integers(0, 30), min_size=3, max_size=3)),
        draw(json_values),
        draw(st.integers(0, 5)),
    )

    def swap(tree, choices=choices):
        key = sorted(tree)[choices[0] % len(tree)]
        if isinstance(tree[key], dict) and tree[key] and len(choices) > 1 and choices[0] < 28:
            return tree | {key: swap(tree[key], choices[1:])}
        return {k: v for k, v in tree.items() if k != key} if gone == 0 else tree | {key: new}

    return swap


@given(swap=swaps())
@examples(120)
def test_metadata_that_says_anything_gives_the_very_weights_or_our_error(saved, swap):
    meta = swap(saved.meta)
    losses = meta.get("losses")
    # A loss beyond all floats: see below.
    assume(
        not (
            isinstance(losses, dict) and is_whole(losses.get("val")) and abs(losses["val"]) > 1e300
        )
    )
    path = saved.place / "meta.safetensors"
    save_file(saved.weights, path, metadata={"nanogpt": json.dumps(meta)})
    found, said = attempt(lambda: load_checkpoint(path), CheckpointError)
    if said is not None:
        assert str(path) in said
        return
    assert equal(found.model.state_dict(), saved.weights)
    assert len(found.tokenizer) == SHAPE["vocab_size"]
    str(found)


def test_a_loss_beyond_all_floats_ends_in_our_error(saved):
    path = saved.place / "loss.safetensors"
    meta = saved.meta | {"losses": {"val": 10**400}}
    save_file(saved.weights, path, metadata={"nanogpt": json.dumps(meta)})
    with pytest.raises(CheckpointError, match="not our metadata"):
        load_checkpoint(path)


BYTES = {
    1: "BOOL U8 I8 F8_E5M2 F8_E4M3 F8_E8M0 ?",
    2: "I16 U16 F16 BF16",
    4: "I32 U32 F32",
    8: "F64 I64 U64 C64",
}


DTYPES = {name: size for size, names in BYTES.items() for name in names.split()}


@given(
    tensors=st.lists(
        st.tuples(
            st.text(max_size=4),
            st.sampled_from(list(DTYPES)),
            st.lists(st.integers(0, 3), max_size=3),
            st.integers(-1, 1),
        ),
        max_size=3,
    ),
    meta=st.none()
    | json_values
    | json_values.map(lambda value: {"format": FORMAT, "digest": value}),
)
@examples(100)
def test_a_file_of_any_tensors_is_read_or_refused(saved, tensors, meta):
    header = {} if meta is None else {"__metadata__": {"nanogpt": json.dumps(meta)}}
    end = 0
    for name, dtype, shape, wrong in tensors:
        size = math.prod(shape) * DTYPES[dtype] + (wrong if name == "" else 0)
        header[name], end = (
            {"dtype": dtype, "shape": shape, "data_offsets": [end, end + size]},
            end + size,
        )
    text = json.dumps(header).encode()
    path = saved.place / "any-tensors.safetensors"
    path.write_bytes(struct.pack("<Q", len(text)) + text + bytes(range(256))[: max(end, 0)])
    for read in (load_checkpoint, read_tensors):
        with pytest.raises(CheckpointError) as error:
            read(path)
        assert str(path) in str(error.value)
