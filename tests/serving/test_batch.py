"""Whoever else is served, a request gets the tokens that it gets alone."""

from collections import Counter

import pytest
import torch
from conftest import has_cache, state_of
from decoding_fixtures import build, text
from serving_fixtures import (
    FORMS,
    Watched,
    alone,
    check_workload,
    generated,
    numbers_that_are_none,
    request,
    run,
    serve_beginnings,
)

from nanogpt.engines.exact import exact
from nanogpt.sampling import SamplingParams
from nanogpt.serving.batch import serve
from nanogpt.serving.modules import ModuleBackend
from nanogpt.serving.sequence import Request


def plain():
    return build(**FORMS["batched"])


WORKLOADS = {"few": range(8), "many": range(8, 50)}  # of each form


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("which", ["few", pytest.param("many", marks=pytest.mark.release)])
def test_tokens_are_those_of_each_request_alone(form, which, ambient_rng):
    """Arrivals, lengths, seeds, settings, budgets, small pools, shared beginnings, aborts."""
    seeds = WORKLOADS[which]
    events = sum((check_workload(form, seed).events for seed in seeds), Counter())
    for event in ("chunks", "mixed", "preempted", "hits", "aborted"):
        assert which == "few" or events[event] >= 10, f"these workloads try too little: {events}"
    assert not has_cache(build(**FORMS[form]))


@pytest.mark.parametrize("seeds", [[], [{}] * 3, [{"seed": 6}, {"seed": 5}, {"seed": 2**40}]])
def test_a_seed_is_honoured_whatever_seeds_the_neighbours_have(seeds):
    prompts = [text(n, seed=5)[0] for n in (9, 4, 9)]  # one like its own, and its beginning
    others = [Request(prompts[i], 12, id=i, **seed) for i, seed in enumerate(seeds)]
    asked = Request(prompts[0], 12, seed=5, id="asked")
    tokens = run(Watched(plain()), {0: [*others[:2], asked, *others[2:]]}, {})
    assert tokens["asked"] == generated(asked)


@torch.no_grad()
def logits_alone(model, asked, tokens):
    """The logits behind each sampled token, from one pass over the whole text."""
    whole = torch.cat([asked.prompt, torch.tensor(tokens[:-1], dtype=torch.long)])
    return model(whole[None])[0][0, len(asked.prompt) - 1 :]


@pytest.mark.parametrize("form", FORMS)
def test_in_exact_mode_logits_are_the_same_bits(form):
    model = build(torch.float32, **FORMS[form])
    with exact(model):
        for kind, rows in check_workload(form, 0, dtype=torch.float32).logits.items():
            want = logits_alone(model, request(kind), alone(form, kind, torch.float32))
            assert torch.equal(torch.stack(rows), want[: len(rows)])


# ------------------------------------------------------------------ what a step reads


def served(*requests, form="batched", **settings):
    """An engine that has served these, one after another or together, and all their tokens."""
    engine = Watched(build(**FORMS[form]), **settings)
    return engine, run(engine, {0: list(requests)}, {})


@pytest.mark.parametrize("length", [16, 17, 23, 24])
def test_a_prompt_that_is_held_leaves_one_token_to_compute(length):
    engine, _ = served(Request(text(length)[0], 1, seed=1, id="first"), block_len=8)
    engine.events.clear()
    held = [cache.k.clone() for cache in engine.backend.caches]
    again = Request(text(length)[0], 3, seed=2, id="again")
    tokens = run(engine, {0: [again]}, {})
    assert engine.events["tokens"] - 2 == (1 if length % 8 == 0 else length % 8)
    assert tokens["again"] == generated(again)
    for cache, before in zip(engine.backend.caches, held, strict=True):
        assert torch.equal(cache.k[: length // 8], before[: length // 8]), "a shared block changed"


def test_texts_that_begin_alike_and_numbers_that_are_none():
    serve_beginnings(Watched(plain(), block_len=4, n_blocks=12, budget=6))
    numbers_that_are_none()


def test_without_reuse_every_prompt_is_read_whole():
    same = [Request(text(16)[0], 1, seed=seed) for seed in range(2)]
    assert served(*same, block_len=8, max_running=1, reuse=False)[0].events["tokens"] == 32
    assert served(*same, block_len=8, max_running=1)[0].events["tokens"] == 17


def test_a_budget_cuts_a_prompt_while_others_decode():
    """Two texts decode in every step, the prompt of 20 gets the other 3 tokens of 5."""
    engine = Watched(plain(), budget=5)
    first = [Request(text(1, seed=i)[0], 20, seed=i, id=i) for i in range(2)]
    for asked in first:
        engine.add(asked)
    engine.step()
    engine.add(Request(text(20)[0], 2, seed=5, id="long"))
    steps = [[output.request.id for output in engine.step()] for _ in range(8)]
    assert steps == [[0, 1]] * 6 + [[0, 1, "long"]] * 2  # 20 / 3: six chunks, and a seventh step


def test_texts_run_in_the_order_of_their_arrival_and_the_youngest_is_preempted():
    engine = Watched(plain(), n_blocks=4, block_len=8)
    asked = [Request(text(8, seed=i)[0], 16, seed=i, id=i) for i in range(3)]
    for one in asked:
        engine.add(one)
    first = [output.request.id for output in engine.step()]
    assert first == [0, 1, 2]
    engine.step()  # three texts want a second block, and one is free
    assert [t.request.id for t in engine.scheduler.running] == [0, 1]
    assert [(t.request.id, t.running) for t in engine.scheduler.waiting] == [(2, False)]
    tokens = run(engine, {}, {}, {0: [0, 0], 1: [0, 0], 2: [0]})
    for one in asked:
        assert tokens[one.id][2:] == generated(one)[2:]


# ------------------------------------------------------------------ the stream


def test_a_stream_gives_tokens_as_they_come_and_leaves_the_model_alone(ambient_rng):
    model = plain()
    model.train()
    before = state_of(model)
    requests = [request(kind) for kind in range(6)]
    stream = serve(model, requests, budget=4)
    tokens = {}
    first = next(stream)
    assert (first.request, first.index) == (requests[0], 0)
    assert state_of(model) == before
    for output in (first, *stream):
        tokens.setdefault(output.request.id, []).append(output.token)
    assert tokens == {kind: alone("batched", kind) for kind in range(6)}
    assert state_of(model) == before
    model.eval()
    assert list(serve(model, [])) == []


def test_requests_are_taken_in_the_order_of_their_arrival():
    late, soon = (Request(text(2)[0], 1, arrival=at, id=at) for at in (2.5, 1.5))
    order = [output.request.id for output in serve(plain(), [late, soon], max_running=1)]
    assert order == [1.5, 2.5]


def test_an_aborted_request_gives_no_more_tokens_and_frees_its_blocks():
    requests = [Request(text(9, seed=i)[0], 8, seed=i, id=i) for i in range(3)]
    engine = Watched(plain(), block_len=4, max_running=2)
    for one in requests:
        engine.add(one)
    engine.step()
    assert engine.abort(1)  # it runs
    assert engine.abort(2)  # it waits
    assert run(engine, {}, {}, {0: [0]})[0][1:] == generated(requests[0])[1:]
    assert not any(engine.abort(name) for name in (0, 1, "nobody"))


@pytest.mark.parametrize("part", ["read", "_draw"])
def test_a_failed_step_can_be_tried_again(part, monkeypatch):
    engine = Watched(plain(), budget=3, block_len=4)
    asked = request(14)
    engine.add(asked)

    def fail(*args):
        raise RuntimeError("out of memory")

    tokens = []
    while engine.busy:
        with monkeypatch.context() as patch:
            patch.setattr(engine if part == "_draw" else engine.backend, part, fail)
            with pytest.raises(RuntimeError, match="out of memory"):
                engine.step()
        engine.audit()
        tokens += [output.token for output in engine.step()]
    assert tokens == alone("batched", 14)


# ------------------------------------------------------------------ bad input


PROMPT = text(4)[0]
BAD = {  # what is asked for beside a prompt and 2 new tokens, and a word of the refusal
    "2-D": ({"prompt": text(4)}, r"\(1, 4\)"),
    "empty": ({"prompt": PROMPT[:0]}, "at least one token"),
    "unknown token": ({"prompt": PROMPT + 11}, "the vocabulary has 0 to 12"),
    "no token": ({"max_new_tokens": 0}, "max_new_tokens=0"),
    "past the table": ({"max_new_tokens": 30}, "exceed block_size 32: ask for at most 29"),
    "past the blocks": ({"max_new_tokens": 20}, "need 6 blocks of 4 .* there are 5: .* n_blocks=6"),
    "top_k": ({"sampling": SamplingParams(top_k=14)}, "top_k=14"),
    "seed": ({"seed": 1.5}, "seed=1.5"),
    "id": ({"id": []}, r"request \[\]: its id"),
    "same id": ({"id": "good"}, "'good' is already being served"),
}


@pytest.mark.parametrize("case", BAD)
def test_a_bad_request_is_refused_and_others_are_untouched(case):
    asked, message = BAD[case]
    engine = Watched(plain(), n_blocks=5, block_len=4)
    good = Request(PROMPT, 6, seed=3, id="good")
    engine.add(good)
    engine.step()
    with pytest.raises(ValueError, match=message):
        engine.add(Request(**{"prompt": PROMPT, "max_new_tokens": 2, **asked}))
    assert list(engine.alive) == ["good"]
    assert run(engine, {}, {}, {"good": [0]})["good"][1:] == generated(good)[1:]


# Each setting once, and a number beyond every memory.
BAD_SETTINGS = [{name: 0} for name in ("budget", "n_blocks", "block_len", "max_running")]
BAD_SETTINGS += [{name: None} for name in ("model", "backend", "scheduler")]
BAD_SETTINGS += [{"n_blocks": 2**40}, {"reuse": 1}, {"requests": [3]}]


@pytest.mark.parametrize("wrong", BAD_SETTINGS, ids=str)
def test_wrong_settings_are_refused_by_name(wrong):
    (name, value) = next(iter(wrong.items()))
    what = {"requests": "equest", "model": "model must be a LanguageModel"}
    with pytest.raises((ValueError, TypeError), match=what.get(name, f"{name}.*{value}")):
        serve(**{"model": plain(), "requests": [Request(PROMPT, 2)]} | wrong)


def test_a_model_that_cannot_be_served_is_refused():
    class Narrow(ModuleBackend):
        @classmethod
        def refuses_model(cls, model):
            return f"this backend computes a width of 8, not {model.config.n_embd}"

    with pytest.raises(ValueError, match="a width of 8, not 32"):
        serve(plain(), [Request(PROMPT, 2)], backend=Narrow)
