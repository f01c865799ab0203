"""Anything at all, for every door: strategies, damage to files, and a tiny run to be damaged.

FUZZ=10 pytest tests/data/test_fuzz.py draws ten times as many examples, others at each run.
"""

import json
import os
import struct
from types import SimpleNamespace

import hypothesis.strategies as st
import pytest
import torch
from hypothesis import settings as example_settings

from nanogpt.config import GPTConfig, TrainConfig
from nanogpt.model.checkpoint import load_checkpoint, read_tensors
from nanogpt.model.gpt import GPT
from nanogpt.system.device import Device
from nanogpt.training.loop import train
from nanogpt.training.state import state_path

TIMES = int(os.environ.get("FUZZ", "1"))


CPU = Device(torch.device("cpu"), torch.float32, "tests")


def examples(n: int, **more):
    """n examples, the same at each run; with FUZZ, that many times more, and others each time."""
    return example_settings(max_examples=n * TIMES, derandomize=TIMES == 1, deadline=None, **more)


def attempt(call, *errors) -> tuple:
    """What the call gives, and None; or None, and what the error that it may raise says."""
    try:
        return call(), None
    except errors as error:
        return None, str(error)


def equal(one: dict, other: dict) -> bool:
    """Whether both hold the same tensors: names, types, shapes and bits."""
    return one.keys() == other.keys() and all(
        t.dtype == other[key].dtype and t.shape == other[key].shape and t.equal(other[key])
        for key, t in one.items()
    )


huge = st.sampled_from([2**31, 2**63, 2**64, -(2**70), 10**30, 10**400])


anything = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-3, 40),
    huge,
    st.floats(),
    st.text(max_size=5),
    st.binary(max_size=3),
    st.complex_numbers(),
    st.lists(st.integers(), max_size=2),
    st.just({}),
)


def is_number(value) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool)


def is_whole(value) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


TEXT = "the quick brown fox jumps over the lazy dog.\n" * 10


CORPUS = SimpleNamespace(text=TEXT, name="fox", sha256="0" * 64)


RECIPE = TrainConfig(steps=2, batch_size=2, eval_every=2, eval_batches=1, warmup=1)


SHAPE = {
    "vocab_size": len(set(TEXT)),
    "block_size": 8,
    "n_layer": 1,
    "n_head": 2,
    "n_embd": 4,
    "dropout": 0.1,
}


ALIKE = [
    b"0123456789",
    b"abcdefghijklmnopqrstuvwxyz",
    b"FIUBC",
    b"[]{}",
    b",:",
]  # still JSON, perhaps


@st.composite
def damages(draw):
    """A function that damages bytes in up to three places: changed, cut, inserted or doubled.

    Half of the places lie in the header, which is where a file says what it is.
    """
    steps = draw(
        st.lists(
            st.tuples(
                st.sampled_from(
                    ["alike", "alike", "alike", "change", "flip", "cut", "end", "insert", "double"]
                ),
                st.booleans(),
                st.integers(0, 9999),
                st.integers(1, 8),
                st.binary(min_size=1, max_size=4)
                | st.sampled_from([b"0", b"9", b'"', b"}", b"[", b"\\", b" "]),
            ),
            min_size=1,
            max_size=3,
        )
    )

    def damage(data: bytes) -> bytes:
        header = 8 + struct.unpack("<Q", data[:8])[0]
        for what, early, place, n, new in steps:
            at = min(header if early else len(data), len(data)) * place // 10_000
            if what == "alike" and (
                kind := next((c for c in ALIKE if data[at : at + 1] in c), None)
            ):
                data = data[:at] + kind[n % len(kind) :][:1] + data[at + 1 :]
            elif what == "change":
                data = data[:at] + new + data[at + len(new) :]
            elif what in ("flip", "alike") and at < len(data):
                data = data[:at] + bytes([data[at] ^ (1 << (n - 1))]) + data[at + 1 :]
            elif what == "cut":
                data = data[:at] + data[at + n :]
            elif what == "end":
                data = data[:at]
            elif what == "insert":
                data = data[:at] + new + data[at:]
            elif what == "double":
                data = data[: at + n] + data[at:]
        return data

    return damage


def mend(data: bytes) -> bytes:
    """The same with the right length for its header, so that reading does not stop there."""
    try:
        text = data[8:].decode("latin-1")
        end = json.JSONDecoder().raw_decode(text)[1]
    except ValueError:
        return data
    return struct.pack("<Q", len(text) - len(text[end:].lstrip(" "))) + data[8:]


@pytest.fixture(scope="session")
def saved(tmp_path_factory):
    """A checkpoint, and the state of a run of two steps: their bytes, and what is in them."""
    place = tmp_path_factory.mktemp("weights")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("TQDM_DISABLE", "1")
        model = GPT(GPTConfig(**SHAPE))
        train(model, CORPUS, RECIPE, out=place / "run", device=CPU)
        state = state_path(place / "run")
        whole = SimpleNamespace(
            place=place,
            weights={key: t.clone() for key, t in model.state_dict().items()},
            checkpoint=(place / "run-last.safetensors").read_bytes(),
            state=state.read_bytes(),
            tensors=read_tensors(state),
            meta=load_checkpoint(place / "run-last").meta,
        )
        yield whole


leaves = st.none() | st.booleans() | st.integers(-3, 40) | huge | st.floats() | st.text(max_size=4)


json_values = st.one_of(
    leaves,
    st.lists(leaves, max_size=2),
    st.dictionaries(st.text(max_size=4), leaves, max_size=2),
    st.just([[]]),
)
