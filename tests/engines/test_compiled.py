"""Rung 6 on the CPU: what is built, kept and loaded. Its generations are in test_base."""

import pytest
import torch
from engine_fixtures import BATCH, assert_same_tokens, prompt_of, shared_model

from nanogpt import Compiled, GPTConfig
from nanogpt.engines import toolchain
from nanogpt.engines.toolchain import CannotBuild


@pytest.mark.slow
def test_a_build_that_cannot_be_loaded_is_described_in_one_line(forgetful, monkeypatch):
    model = shared_model()
    assert_same_tokens(model, Compiled, prompt_of(5), 12)

    def refuse(*args, **kwargs):
        raise RuntimeError("wrong ELF class\nraised from somewhere")

    monkeypatch.setattr(torch._C._aoti, "AOTIModelPackageLoader", refuse)
    with pytest.raises(
        CannotBuild, match="cannot load .*wrong ELF class.*delete it to build it again$"
    ):
        Compiled(model.config, batch=BATCH)


@pytest.mark.parametrize("small", [{"vocab_size": 8}, {"n_embd": 8}, {"block_size": 8}])
def test_what_torch_would_write_into_the_code_is_refused_before_a_build(monkeypatch, small):
    monkeypatch.setattr(toolchain, "kept", None)
    with pytest.raises(CannotBuild, match="of 8 or less becomes part of the code"):
        Compiled(GPTConfig(**(vars(shared_model().config) | small)))
