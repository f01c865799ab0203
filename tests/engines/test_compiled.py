"""The compiled step as torch.compile traces it, without a compiler; its builds: test_base.py."""

from functools import partial

import pytest
import torch
from decoding_fixtures import decoder
from engine_fixtures import assert_same_tokens, heard, prompt_of, shared_model
from shapes import DECODERS

from nanogpt import Compiled
from nanogpt.engines import toolchain
from nanogpt.engines.generation import complete
from nanogpt.engines.toolchain import CannotBuild


@pytest.fixture
def traced(forgetful, monkeypatch):
    """torch.compile without Inductor: what was traced is run by PyTorch."""
    real = torch.compile

    def compile(function, *, options, **how):
        kept = {"guard_filter_fn": options["guard_filter_fn"]}
        return real(function, **how, options=kept, backend="eager")

    monkeypatch.setattr(torch, "compile", compile)
    monkeypatch.setattr(toolchain, "machine", dict)


def test_engines_of_one_shape_and_other_arithmetic_have_their_own_code(traced):
    """No guard would tell them apart."""
    rows = "plain", "activation=relu2", "logit_softcap=1.0"
    models = [decoder(torch.float32, **DECODERS[row]) for row in rows]
    built = [Compiled(model.config, batch=2) for model in models]
    for model, engine in [*zip(models, built, strict=True)] * 2:
        assert_same_tokens(model, engine, prompt_of(5, 2), 9)


def test_a_traced_step_reads_the_weights_of_each_text(traced):
    first = shared_model()
    engine = Compiled(first.config, batch=3)
    for model in (first, shared_model(True), shared_model(n_head=4)):
        assert_same_tokens(model, engine, prompt_of(4), 9)


def test_a_compiler_that_fails_is_quoted_in_one_line_and_flat_decodes(forgetful, monkeypatch):
    def fail(*_):
        raise RuntimeError("CppCompileError: boom\nand more")

    monkeypatch.setattr(torch, "compile", lambda *_, **__: fail)
    monkeypatch.setattr(toolchain, "machine", dict)
    model = shared_model()
    words = "the step cannot be compiled: RuntimeError: CppCompileError: boom"
    with pytest.raises(CannotBuild) as error:
        Compiled(model.config)
    assert str(error.value) == words
    run = partial(complete, model, prompt_of(5), 9, engine=Compiled)
    got, messages = heard(run)
    assert torch.equal(got, complete(model, prompt_of(5), 9))
    assert messages[0][0] == f"Compiled cannot be built here, Flat decodes instead: {words}"
