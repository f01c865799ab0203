"""Steps in native code: the tokens of `generate`, and the same bits of logits in any batch."""

import random

import pytest
import torch
from decoding_fixtures import V, build, text
from serving_fixtures import FORMS, Watched, alone, check_workload, request, run

from nanogpt.engines.native import Native
from nanogpt.engines.toolchain import CannotBuild
from nanogpt.model.exact import exact
from nanogpt.serving.batch import BatchEngine, serve
from nanogpt.serving.native import NativeBackend, library
from nanogpt.serving.step import StepInput

try:
    library(32, 4, V)
except CannotBuild as error:
    pytest.skip(str(error), allow_module_level=True)

BLOCK_LEN, PER_TEXT = 5, 7  # 35 slots hold a text of 32


def numbers(values):
    return torch.tensor(values, dtype=torch.int64)


def logits_of(model, texts, draw):
    """The logits behind every token of some texts, read in random steps of random chunks."""
    backend, done, found = NativeBackend(model, PER_TEXT * len(texts), BLOCK_LEN), {}, {}
    while alive := [i for i, one in enumerate(texts) if done.get(i, 0) < len(one)]:
        chosen = sorted(draw.sample(alive, draw.randint(1, len(alive))))
        rows = []
        for row, i in enumerate(chosen):
            start = done.get(i, 0)
            done[i] = min(len(texts[i]), start + draw.choice([1, 1, 2, 9, 32]))
            rows += [(i, row, p) for p in range(start, done[i])]
        tables = numbers([[PER_TEXT * i + b for b in range(PER_TEXT)] for i in chosen])
        of, row, positions = (numbers(column) for column in zip(*rows, strict=True))
        slots = PER_TEXT * BLOCK_LEN * of + positions
        tokens = numbers([texts[i][p] for i, _, p in rows])
        wanted = torch.arange(len(rows))
        logits = backend.read(StepInput(tokens, row, positions, slots, tables, wanted))
        found |= {(i, p): logits[n] for n, (i, _, p) in enumerate(rows)}
    return [torch.stack([found[i, p] for p in range(len(t))]) for i, t in enumerate(texts)]


@pytest.mark.parametrize("n_head", [4, 2])  # heads narrower than a register, and as wide
@torch.no_grad()
def test_the_logits_of_a_text_are_the_same_bits_in_any_batch_and_any_chunks(n_head):
    model = build(torch.float32, n_head=n_head)
    texts = [text(length, seed=length)[0].tolist() for length in (32, 1, 16, 17, 5, 31, 30, 29)]
    alone = [logits_of(model, [one], random.Random(0))[0] for one in texts]
    for own, one in zip(alone, texts, strict=True):
        want = model(torch.tensor(one)[None])[0][0]
        torch.testing.assert_close(own, want, rtol=1e-4, atol=1e-4)
    for seed in range(4):
        together = logits_of(model, texts, random.Random(seed))
        assert all(torch.equal(a, b) for a, b in zip(alone, together, strict=True)), seed


@pytest.mark.slow
@pytest.mark.parametrize("form", ["heads", "batched"])
def test_tokens_are_those_of_each_request_alone_and_logits_are_the_same_bits(form):
    model = build(torch.float32, **FORMS[form])
    for seed in range(6):
        served = check_workload(form, seed, NativeBackend, torch.float32, Native)
        for kind, rows in served.logits.items():
            engine = Watched(model, backend=NativeBackend, block_len=served.block_len)
            run(engine, {0: [request(kind)]}, {})
            own = engine.logits[kind]
            assert all(torch.equal(a, b) for a, b in zip(rows, own, strict=False))


def test_what_native_code_cannot_read_is_refused_in_a_line():
    for model, why in (
        (build(torch.float64), "float32 on the CPU"),
        (build(torch.float32, rope=True), "rope=True"),
    ):
        with pytest.raises(ValueError, match=why):
            BatchEngine(model, backend=NativeBackend)
    model = build(torch.float32)
    with exact(model), pytest.raises(ValueError, match="exact"):
        BatchEngine(model, backend=NativeBackend)


def test_a_stream_of_several_steps_in_a_call_comes_token_by_token():
    model, requests = build(torch.float32), [request(kind) for kind in (2, 5, 14, 20)]
    tokens = {one.id: [] for one in requests}
    for output in serve(model, requests, backend=NativeBackend, block_len=4):
        assert output.index == len(tokens[output.request.id]), "out of order"
        tokens[output.request.id].append(output.token)
    assert tokens == {kind: alone("batched", kind, torch.float32, Native) for kind in tokens}


def test_a_failed_call_of_several_steps_can_be_tried_again(monkeypatch):
    engine = Watched(build(torch.float32), backend=NativeBackend, block_len=4)
    engine.add(request(14))
    tokens = [output.token for output in engine.step()]
    with monkeypatch.context() as patch:
        patch.setattr(engine.backend, "compute", lambda *_: 1 / 0)
        with pytest.raises(ZeroDivisionError):
            engine.step()
    engine.audit()
    while engine.busy:
        tokens += [output.token for output in engine.step()]
    assert tokens == alone("batched", 14, torch.float32, Native)
    assert engine.events["several"], "each call took one step"
