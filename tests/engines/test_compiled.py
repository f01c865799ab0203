"""Rung 6 on the CPU: what is built, kept and loaded. Its generations are in test_base."""

import os

import pytest
import torch
from engine_fixtures import BATCH, assert_same_tokens, prompt_of, shared_model

from nanogpt import Compiled, GPTConfig
from nanogpt.engines import compiled, toolchain
from nanogpt.engines.toolchain import CannotBuild


class Stop(CannotBuild):
    pass


@pytest.fixture
def key_of(monkeypatch):
    """The (name, key, suffix) under which a build is looked for."""

    def ask(changes=(), **sizes):
        asked = []

        def stop(name, key, suffix, make):
            asked.append((name, key, suffix))
            raise Stop

        monkeypatch.setattr(toolchain, "kept", stop)
        with pytest.raises(Stop):
            Compiled(GPTConfig(**(vars(shared_model().config) | dict(changes))), **sizes)
        return asked[0]

    return ask


def test_a_compiled_step_is_kept_for_its_source_its_shape_and_the_threads(key_of, monkeypatch):
    config = shared_model().config
    same = [key_of(), key_of({"dropout": 0.0}), key_of({"per_head": True}), key_of(capacity=16)]
    assert len(set(same)) == 1, "what leaves the arithmetic the same builds nothing new"
    assert same[0][0::2] == ("compiled", ".pt2")
    sizes = ("vocab_size", "block_size", "n_layer", "n_head", "n_embd")
    other = [key_of({key: 2 * getattr(config, key)}) for key in sizes]
    other += [key_of(batch=2), key_of(capacity=9)]
    monkeypatch.setattr(compiled.torch, "get_num_threads", lambda: 7)
    other.append(key_of())
    monkeypatch.setattr(compiled.inspect, "getsource", lambda module: "another source")
    other.append(key_of())
    assert len({same[0], *other}) == 10


def test_a_build_writes_nowhere_else_and_leaves_the_environment_alone(monkeypatch, tmp_path):
    name, folders = "TORCHINDUCTOR_CACHE_DIR", []
    for before in (None, str(tmp_path)):
        monkeypatch.delenv(name, raising=False)
        if before:
            monkeypatch.setenv(name, before)
        with compiled._scratch_folder():
            folders.append(os.environ[name])
            assert os.path.isdir(folders[-1])
        assert os.environ.get(name) == before
    assert not any(map(os.path.exists, folders))
    assert str(tmp_path) not in folders


@pytest.mark.slow
def test_a_build_that_cannot_be_loaded_is_described_in_one_line(forgetful, monkeypatch):
    model = shared_model()
    assert_same_tokens(model, Compiled, prompt_of(5), 12)

    def refuse(*args, **kwargs):
        raise RuntimeError("wrong ELF class\nraised from somewhere")

    monkeypatch.setattr(torch._C._aoti, "AOTIModelPackageLoader", refuse)
    with pytest.raises(CannotBuild, match="cannot load .*wrong ELF class") as error:
        Compiled(model.config, batch=BATCH)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize("small", [{"vocab_size": 8}, {"n_embd": 8}, {"block_size": 8}])
def test_what_torch_would_write_into_the_code_is_refused_before_a_build(monkeypatch, small):
    monkeypatch.setattr(toolchain, "kept", None)
    with pytest.raises(CannotBuild, match="of 8 or less becomes part of the code"):
        Compiled(GPTConfig(**(vars(shared_model().config) | small)))
