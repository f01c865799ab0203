"""Rung 6 on the CPU: what is built, kept and loaded. Its generations are in test_base."""

import pytest
import torch
from engine_fixtures import BATCH, assert_same_tokens, prompt_of, shared_model

from nanogpt import Compiled, GPTConfig
from nanogpt.engines import compiled, toolchain
from nanogpt.engines.toolchain import CannotBuild


def test_a_compiled_step_is_kept_for_its_source_its_shape_and_the_threads(monkeypatch):
    asked, config = [], shared_model().config

    def stop(*parts):
        asked.append(str(parts[:3]))
        raise CannotBuild("stop")

    def ask(changes=(), **sizes):
        with pytest.raises(CannotBuild, match="stop"):
            Compiled(GPTConfig(**(vars(config) | dict(changes))), **sizes)

    monkeypatch.setattr(toolchain, "kept", stop)
    ask(), ask({"dropout": 0.0}), ask({"per_head": True}), ask(capacity=16)
    assert len(set(asked)) == 1, "what leaves the arithmetic the same builds nothing new"
    for key in ("vocab_size", "block_size", "n_layer", "n_head", "n_embd"):
        ask({key: 2 * getattr(config, key)})
    ask(batch=2), ask(capacity=9)
    monkeypatch.setattr(compiled.torch, "get_num_threads", lambda: 7)
    ask()
    monkeypatch.setattr(compiled.inspect, "getsource", lambda module: "another source")
    ask()
    assert len(set(asked)) == 10


@pytest.mark.slow
def test_a_build_that_cannot_be_loaded_is_described_in_one_line(forgetful, monkeypatch):
    model = shared_model()
    assert_same_tokens(model, Compiled, prompt_of(5), 12)

    def refuse(*args, **kwargs):
        raise RuntimeError("wrong ELF class\nraised from somewhere")

    monkeypatch.setattr(torch._C._aoti, "AOTIModelPackageLoader", refuse)
    with pytest.raises(CannotBuild, match="cannot load .*wrong ELF class$"):
        Compiled(model.config, batch=BATCH)


@pytest.mark.parametrize("small", [{"vocab_size": 8}, {"n_embd": 8}, {"block_size": 8}])
def test_what_torch_would_write_into_the_code_is_refused_before_a_build(monkeypatch, small):
    monkeypatch.setattr(toolchain, "kept", None)
    with pytest.raises(CannotBuild, match="of 8 or less becomes part of the code"):
        Compiled(GPTConfig(**(vars(shared_model().config) | small)))
