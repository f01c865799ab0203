"""Log-probabilities of drawn and of prompt tokens: the model's own, however they are served."""

from dataclasses import replace

import pytest
import torch
from decoding_fixtures import V, build
from serving_fixtures import FORMS, request

from nanogpt.engines.decoder_library import decoder_library
from nanogpt.engines.toolchain import CannotBuild
from nanogpt.serving.batch import serve
from nanogpt.serving.modules import ModuleBackend
from nanogpt.serving.native_steps import NativeBackend
from nanogpt.serving.sequence import Request

WAYS = [{}, {"budget": 1}, {"budget": 3, "reuse": False}, {"n_blocks": 9}, {"max_running": 1}]


def asked(kind: int) -> Request:
    """Some want them of all tokens, some of what is drawn, some of none; many begin alike."""
    logprobs = (None, 0, 2, V + 9)[kind % 4]
    return replace(request(kind), logprobs=logprobs, echo=kind % 3 > 0 and logprobs is not None)


def served(model, backend, **how) -> dict:
    """The tokens of each request, and what was said of them."""
    found = {kind: ([], []) for kind in range(16)}
    for output in serve(model, map(asked, found), backend=backend, block_len=4, **how):
        tokens, shown = found[output.request.id]
        first = len(output.request.prompt) if output.request.echo and not tokens else 1
        assert len(output.logprobs) == first * (output.request.logprobs is not None)
        tokens.append(output.token)
        shown += output.logprobs
    return found


@torch.no_grad()
def check(model, found, **tolerance):
    for kind, (tokens, shown) in found.items():
        one = asked(kind)
        text = [*one.prompt.tolist(), *tokens]
        if one.logprobs is None:
            assert not shown
            continue
        behind = 1 if one.echo else len(one.prompt)
        rows = model(torch.tensor(text)[None])[0][0].double().log_softmax(-1)[behind - 1 : -1]
        assert [p.token for p in shown] == text[behind:]
        own = rows[torch.arange(len(rows)), text[behind:]]
        got = torch.tensor([p.value for p in shown], dtype=torch.float64)
        torch.testing.assert_close(got, own, **tolerance)
        for p, row in zip(shown, rows, strict=True):
            best = row.sort(descending=True).values[: one.logprobs]
            assert len(p.top) == min(one.logprobs, V)
            got = torch.tensor([*p.top.values()], dtype=torch.float64)
            torch.testing.assert_close(got, best, **tolerance)


@pytest.mark.parametrize("form", FORMS)
def test_log_probabilities_are_those_of_the_models_plain_pass(form):
    """Of every form in chunks of a small budget; of one in every way to serve."""
    model = build(torch.float64, **FORMS[form])
    for how in WAYS if form == "batched" else WAYS[2:3]:
        check(model, served(model, ModuleBackend, **how), rtol=0, atol=1e-12)


def test_log_probabilities_of_native_code_are_the_same_bits_in_any_batch():
    try:
        decoder_library()
    except CannotBuild as error:
        pytest.skip(str(error))
    model = build(torch.float32)
    first = served(model, NativeBackend)
    check(model, first, rtol=1e-4, atol=1e-4)
    for how in WAYS[1:]:
        assert served(model, NativeBackend, **how) == first, how
    plain = serve(model, map(request, first), backend=NativeBackend, block_len=4)
    tokens = {kind: [] for kind in first}
    for output in plain:
        tokens[output.request.id].append(output.token)
    assert tokens == {kind: own for kind, (own, _) in first.items()}
