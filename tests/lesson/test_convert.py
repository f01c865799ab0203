"""The two forms of one model: the same function, the same weights to the bit, both ways."""

import subprocess
import sys

import pytest
import torch
from conftest import FORMS, name, tiny_model, tokens

from nanogpt.decoder.pack import convert_state, pack_heads, unpack_heads
from nanogpt.engines.eager import Flat, Static
from nanogpt.files import ROOT
from nanogpt.generation import generate
from nanogpt.model import GPT


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


@pytest.mark.parametrize(("convert", "per_head"), [(pack_heads, False), (unpack_heads, True)])
def test_converting_to_the_form_it_has_is_refused(convert, per_head):
    with pytest.raises(ValueError, match=f"already .config.per_head={per_head}"):
        convert(tiny_model(per_head))


def test_a_matrix_taken_apart_shares_no_memory_with_the_whole():
    """So that weights handed to another class are not trained along with ours."""
    model = tiny_model(per_head=False)
    state = convert_state(model.state_dict(), model.config, per_head=True)
    before = model.blocks[0].sa.qkv.weight.clone()
    for key in state:
        if ".heads." in key:
            state[key].zero_()
    assert torch.equal(model.blocks[0].sa.qkv.weight, before)


@pytest.mark.parametrize("per_head", FORMS, ids=name)
@pytest.mark.parametrize(
    ("change", "words"),
    [
        (
            lambda m: m.blocks[1].ffwd.net.__setitem__(1, torch.nn.GELU()),
            "GELU as .*, where .*ReLU is expected",
        ),
        (lambda m: setattr(m.blocks[0].ln1, "eps", 1.0), "eps=1.0 in place of 1e-05"),
        (lambda m: m.blocks[0].register_forward_hook(lambda *_: None), "a forward hook"),
        (lambda m: setattr(m.ln_f, "forward", torch.relu), "another forward"),
        (lambda m: setattr(m, "__class__", type("Mine", (GPT,), {})), "Mine where"),
        (lambda m: m.blocks.append(m.blocks[0]), "3 modules in place of 2"),
    ],
)
def test_a_model_that_was_changed_is_not_taken_for_ours(per_head, change, words):
    """Its copy in the other form would compute something else, and so would the fast engines."""
    model = tiny_model(per_head)
    change(model)
    with pytest.raises(ValueError, match=words):
        (pack_heads if per_head else unpack_heads)(model)
    for engine in (Static, Flat):
        with pytest.raises(ValueError, match=words):
            generate(model, tokens(1, 3), 2, engine=engine)


@pytest.mark.slow
def test_nothing_slow_is_imported_to_pack_heads_or_to_read_a_notebook():
    """torch's compiler takes 2 seconds to import, jsonschema's grammar of addresses 3.

    The grammar, here another one, is there for other programs, which may check an address.
    """
    script = (
        "import sys, nanogpt.series.nbfile, jsonschema\n"
        "from nanogpt import GPT, GPTConfig\nfrom nanogpt.decoder.pack import pack_heads\n"
        "pack_heads(GPT(GPTConfig(n_layer=1)))\n"
        "print('torch._dynamo' in sys.modules, 'rfc3987_syntax' in sys.modules)\n"
        "from importlib.util import find_spec\nthere = find_spec('rfc3987_syntax') is not None\n"
        "class Never:\n    is_valid_syntax = lambda *x: False\n"
        "sys.modules['rfc3987_syntax'] = Never\n"
        "print(jsonschema.FormatChecker().conforms('a b', 'iri') != there)"
    )
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, encoding="utf-8", cwd=ROOT
    )
    assert done.stdout == "False False\nTrue\n", done.stderr
