"""Texts end at their stop tokens, and up to there they are those of a generation without stops."""

import pytest
import torch
from engine_fixtures import BLOCK, OneStep, every, prompt_of, shared_model

import nanogpt
from nanogpt import complete, generate
from nanogpt.engines import native
from nanogpt.engines.native import NativeGeneration

N_NEW = 9
T = 4
STOPS = [(0,), (1, 2), (3, 4, 5, 6), tuple(range(13)), (12, 12)]


def ended(text: torch.Tensor, stop: tuple[int, ...]) -> torch.Tensor:
    """What is expected: each row up to its stop, which is then repeated.  (B, T + n) -> (B, …)"""
    rows = []
    longest = 0
    for row in text.tolist():
        places = [i for i, token in enumerate(row) if i >= T and token in stop]
        end = places[0] + 1 if places else len(row)
        rows.append(row[:end] + row[end - 1 : end] * (len(row) - end))
        longest = max(longest, end)
    return torch.tensor(rows)[:, :longest]


def check(how: dict, batch: int = 3, model=None) -> set[int]:
    """The lengths of the texts of all STOPS."""
    model = model or shared_model()
    prompt = prompt_of(T, batch)
    whole = complete(model, prompt, N_NEW, cache=None)
    lengths = set()
    for stop in STOPS:
        want = ended(whole, stop)
        assert torch.equal(complete(model, prompt, N_NEW, stop=stop, **how), want)
        steps = list(generate(model, prompt, N_NEW, stop=list(stop), **how))
        assert torch.equal(torch.cat([prompt, *steps], dim=1), want)
        lengths.add(len(steps))
    return lengths


@every
def test_every_engine_ends(kind):
    assert check({"engine": kind}) > {1}


@pytest.mark.slow
@pytest.mark.parametrize("batch", [1, 3])
@pytest.mark.parametrize("draft", [None, "look-up", "model"])
def test_native_code_ends(draft, batch):
    model = shared_model()
    drafts = {"look-up": nanogpt.PromptLookup(2), "model": nanogpt.DraftModel(model)}
    check({"engine": nanogpt.Native, "draft": drafts.get(draft)}, batch=batch, model=model)


@pytest.mark.slow
@pytest.mark.parametrize("batch", [1, 3])
def test_a_call_of_a_large_model_is_short_so_little_is_decoded_behind_the_end(batch, monkeypatch):
    model = shared_model()
    prompt = prompt_of(T, batch)
    size = nanogpt.Native(model.config, batch=batch).config.matrix_weights * batch
    whole = complete(model, prompt, N_NEW)
    stop = tuple(whole[:, T + 2].tolist())
    end = ended(whole, stop).shape[1]
    assert end - T in (2, 3)
    real = NativeGeneration.decode
    places = []  # of the last token that each call writes

    def spy(session, start, last):
        places.append(last)
        real(session, start, last)

    monkeypatch.setattr(NativeGeneration, "decode", spy)
    for most in (1, 2, 5):
        monkeypatch.setattr(native, "WORK", most * size)
        assert complete(model, prompt, N_NEW, engine=nanogpt.Native, stop=stop).shape[1] == end
        assert end <= places[-1] + 1 < end + most


@pytest.mark.parametrize("batch", [1, 3])
@pytest.mark.parametrize("cache", [None, nanogpt.DynamicCache, nanogpt.PagedCache])
def test_every_cache_ends(cache, batch):
    assert check({"cache": cache}, batch=batch) > {1}


@pytest.mark.parametrize("batch", [1, 3])
def test_a_draft_changes_nothing_and_its_passes_are_counted(batch):
    model = shared_model()
    check({"draft": nanogpt.DraftModel(model, k=3)}, batch=batch, model=model)
    draft = nanogpt.DraftModel(model, k=3)
    steps = generate(model, prompt_of(T), N_NEW, draft=draft, stop=STOPS[3])
    assert len(list(steps)) == 1
    assert steps.stats.passes == 1


def test_a_sliding_window_ends():
    model = shared_model()
    prompt = prompt_of(BLOCK - 2, 1)
    whole = complete(model, prompt, 9, past_block="slide")[0].tolist()
    stop = whole[BLOCK + 1]
    text = complete(model, prompt, 9, past_block="slide", stop=(stop,))
    end = BLOCK - 1 + whole[BLOCK - 2 :].index(stop)
    assert text[0].tolist() == whole[:end]


def test_nothing_is_read_behind_the_end():
    model = shared_model()
    passes = []
    model.register_forward_hook(lambda *_: passes.append(1))
    steps = generate(model, prompt_of(T, 1), N_NEW, stop=STOPS[3])
    assert (len(list(steps)), passes) == (1, [1])
    assert next(steps, None) is None


def test_the_caller_may_write_into_a_token():
    model = shared_model()
    want = complete(model, prompt_of(T), N_NEW, stop=STOPS[2])
    found = []
    for token in generate(model, prompt_of(T), N_NEW, stop=STOPS[2]):
        found.append(token.clone())
        token.fill_(0)
    assert torch.equal(torch.cat([prompt_of(T), *found], dim=1), want)


def test_an_engine_is_free_after_the_end_and_after_close():
    """The buffers of a compiled engine serve one generation at a time."""
    model = shared_model()
    engine = OneStep(model.config, batch=3)
    for end in (list, next):
        steps = generate(model, prompt_of(T), N_NEW, engine=engine, stop=STOPS[3])
        end(steps)
        steps.close()
        assert not engine.in_use.locked()


@pytest.mark.parametrize("stop", [2, None, "ab", {2}, (13,), (-1,), (1.5,), (True,), ("a",)])
def test_stop_tokens_outside_the_vocabulary_are_refused_at_the_call(stop):
    with pytest.raises(ValueError, match="stop="):
        generate(shared_model(), prompt_of(T), N_NEW, stop=stop)
