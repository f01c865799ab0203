"""What every engine promises beside the same tokens, which are tests/test_same_tokens.py."""

import re
import threading
from contextlib import nullcontext
from dataclasses import replace

import pytest
import torch
from conftest import has_cache, seeded, state_of
from decoding_fixtures import decoder
from engine_fixtures import (
    BATCH,
    BLOCK,
    COMPILING,
    SAMPLING,
    FiveSteps,
    Interpreted,
    OneStep,
    assert_refused,
    assert_right_probabilities,
    assert_same_tokens,
    by_itself,
    change_weights,
    close_noise,
    compiling,
    every,
    heard,
    prompt_of,
    shared_model,
    uncached,
)
from shapes import COMBINED, DECODERS, ROPE, SMALL

from nanogpt import (
    Batched,
    Compiled,
    DecoderConfig,
    Flat,
    Graph,
    GraphLoop,
    Native,
    Native8,
    PerHead,
    Uncached,
)
from nanogpt.decoder.config import beyond_lecture
from nanogpt.engines import base
from nanogpt.engines.exact import exact
from nanogpt.engines.generation import complete, generate
from nanogpt.engines.shape import Shape
from nanogpt.engines.toolchain import CannotBuild
from nanogpt.sampling import PLAIN, draw_noise


def ready(kind, model=None):
    """An engine for the shared shape. Compiled ones are kept from test to test."""
    model = model or shared_model()
    return kind.ready(model, BATCH) if kind in COMPILING else kind(model.config, batch=BATCH)


# ------------------------------------------------------------------ what goes in


@pytest.mark.slow
@by_itself
def test_the_probabilities_behind_the_tokens_are_right_to_a_thousandth(kind):
    built = ready(kind)
    for model, T in ((shared_model(), 1), (shared_model(True), 6)):
        assert_right_probabilities(model, built, T, BLOCK + 1 - T)


@every
def test_a_prompt_and_noise_of_any_kind_are_read_and_left_as_they_are(kind):
    model = shared_model()
    noise = draw_noise(8, BATCH, 13, seeded(3))
    prompt = prompt_of(BATCH, 6).T.int()  # columns of a larger table
    assert not prompt.is_contiguous()
    before = prompt.clone()
    expected = complete(model, prompt, 8, cache=None, noise=noise)
    for other in (noise.double(), noise.transpose(0, 2).contiguous().transpose(0, 2)):
        assert torch.equal(complete(model, prompt, 8, engine=ready(kind), noise=other), expected)
    assert torch.equal(prompt, before), "the prompt was written to"


# ------------------------------------------------------------------ every architecture


@pytest.mark.parametrize("row", ["plain", *COMBINED])
@pytest.mark.parametrize("kind", [Interpreted, FiveSteps])
def test_a_step_of_tensors_alone_computes_every_architecture(kind, row):
    """Logits of engines that return them: test_eager.py; fields: tests/test_every_decoder.py."""
    (dtype, margin) = (torch.float32, 1e-3) if kind is Interpreted else (torch.float64, 1e-6)
    model = decoder(dtype, **DECODERS[row])
    built = kind(model.config, batch=2, dtype=dtype)
    block = model.config.block_size
    assert_same_tokens(model, built, prompt_of(9, 2), block - 8, SAMPLING[2])
    assert_right_probabilities(model, built, 7, 9, 2, by=6, margin=margin)


@pytest.mark.release
@pytest.mark.slow
@pytest.mark.parametrize("row", ["GPT-2", "Llama 3", "Gemma 2", "all at once"])
def test_a_compiled_step_decodes_every_architecture(row):
    """A build for each: together they have nearly every field, and the others are in the keeper."""
    model = decoder(torch.float32, **COMBINED[row])
    assert_same_tokens(model, Compiled, prompt_of(5, 1), 36)
    built = Compiled.ready(model, 1)
    assert type(built) is Compiled, "the fallback decoded"
    assert_right_probabilities(model, built, 3, 38, 1, by=4)


# ------------------------------------------------------------------ weights that change


def replaced(model):
    """As by load_state_dict(assign=True): other tensors in the place of the parameters."""
    for module in model.modules():
        for key, parameter in list(module.named_parameters(recurse=False)):
            setattr(module, key, torch.nn.Parameter(parameter.detach().flip(0) - 0.05))


@every
def test_changed_weights_are_the_weights_of_the_next_text(kind):
    built = ready(kind)
    prompt = prompt_of(5)
    before = uncached(shared_model(), prompt, 12)
    for change in (change_weights, replaced):
        model = shared_model()
        assert torch.equal(complete(model, prompt, 12, engine=built, generator=seeded(1)), before)
        change(model)
        after = assert_same_tokens(model, built, prompt, 12)
        assert not torch.equal(before, after), "this change moves no token, so it shows nothing"


@by_itself
def test_no_weight_is_out_of_date(kind):
    """One old tensor among many would be enough for a wrong token."""
    model = shared_model()
    prompt = prompt_of(5)
    text = prompt_of(6, seed=2)
    built = ready(kind, model)
    for parameter in model.parameters():
        with torch.no_grad():
            parameter.copy_(parameter.flip(0) - 0.05)
        noise = close_noise(model, prompt, text)
        assert torch.equal(complete(model, prompt, 6, engine=built, noise=noise)[:, 5:], text)


@every
def test_weights_may_be_shared_and_lie_in_memory_in_any_order(kind):
    model = shared_model()
    for linear in (model.lm_head, model.blocks[0].sa.proj, model.blocks[1].ffwd.up):
        linear.weight = torch.nn.Parameter(linear.weight.detach().T.contiguous().T)
        assert not linear.weight.is_contiguous()
    model.ln_f.weight = torch.nn.Parameter(torch.randn(32, 2, generator=seeded(5))[:, 0])
    assert_same_tokens(model, ready(kind), prompt_of(5), 12)
    model.lm_head.weight = model.token_embedding_table.weight
    model.blocks[1].ffwd = model.blocks[0].ffwd
    assert_same_tokens(model, ready(kind), prompt_of(5), 12)


@every
def test_a_model_full_of_nan_does_not_spoil_the_next_ones_text(kind):
    """What it leaves in buffers is counted 0 times, and 0 times NaN is NaN."""
    good = shared_model()
    bad = shared_model()
    with torch.no_grad():
        bad.position_embedding_table.weight.fill_(float("nan"))
    built = ready(kind)
    native = isinstance(built, Native)  # without a compiler, its fallback decodes
    refused = pytest.raises(ValueError, match="NaN") if native else nullcontext()
    with refused:
        list(generate(bad, prompt_of(BLOCK), 1, engine=built))
    assert_same_tokens(good, built, prompt_of(5), 12)


# ------------------------------------------------------------------ several generations at a time


@every
def test_two_models_and_two_texts_take_turns_on_one_engine(kind):
    first = shared_model(True)
    second = shared_model(dropout=0.0)
    change_weights(second)
    built = ready(kind)
    cases = [(first, prompt_of(3), 1), (second, prompt_of(7, seed=5), 2), (first, prompt_of(2), 3)]
    alone = [uncached(m, p, 9, seed=s)[:, p.shape[1] :] for m, p, s in cases]
    for engine in (built, kind):
        running = [generate(m, p, 9, engine=engine, generator=seeded(s)) for m, p, s in cases]
        for expected, got in zip(alone, zip(*zip(*running, strict=True), strict=True), strict=True):
            assert torch.equal(torch.cat(got, dim=1), expected)


@every
def test_a_text_left_half_way_does_not_disturb_the_next(kind):
    built = ready(kind)
    model = shared_model()
    kept = []
    expected = uncached(model, prompt_of(5), 12)
    for end in ("close", "forget", "keep"):
        running = generate(model, prompt_of(9, seed=3), 5, engine=built, generator=seeded(9))
        next(running), next(running)
        kept.append(running) if end == "keep" else running.close() if end == "close" else None
        del running
        text = complete(model, prompt_of(5), 12, engine=built, generator=seeded(1))
        assert torch.equal(text, expected)


def test_threads_that_generate_at_once_get_their_own_tokens():
    model = shared_model()
    built = OneStep(shared_model().config, batch=BATCH)
    results = {}

    def work(seed):
        how = {"engine": built, "generator": seeded(seed)}
        results[seed] = complete(model, prompt_of(5), 12, **how)

    threads = [threading.Thread(target=work, args=(seed,)) for seed in range(4)]
    [thread.start() for thread in threads]
    [thread.join() for thread in threads]
    for seed, text in results.items():
        assert torch.equal(text, uncached(model, prompt_of(5), 12, seed=seed))
    assert len(results) == 4


# ------------------------------------------------------------------ what comes out and what stays


@every
@pytest.mark.parametrize("sampling", [PLAIN, SAMPLING[1]], ids=["plain", "top_k"])
def test_tokens_are_ordinary_tensors_and_the_callers_to_edit(kind, sampling):
    model = shared_model()
    prompt = prompt_of(5)
    built = ready(kind)
    expected = uncached(model, prompt, 12, sampling)[:, 5:].split(1, dim=1)
    held = list(generate(model, prompt, 12, sampling, engine=built, generator=seeded(1)))
    again = generate(model, prompt, 12, sampling, engine=built, generator=seeded(1))
    for token, old, true in zip(again, held, expected, strict=True):
        assert torch.equal(token, true)
        assert torch.equal(old, true), "the next text was written over it"
        assert (token.dtype, tuple(token.shape)) == (torch.int64, (BATCH, 1))
        token.fill_(5)
    model.train()  # as an index and as a target, both saved for the backward pass
    logits, loss = model(held[0], held[1])
    (loss + logits.gather(2, held[2][..., None]).sum()).backward()


@every
def test_the_model_and_torchs_modes_are_left_as_they_were(kind, ambient_rng):
    for per_head in (True, False):
        model = shared_model(per_head)
        expected = uncached(model, prompt_of(5), 12)[:, 5:]
        weights = {key: value.clone() for key, value in model.state_dict().items()}
        model.train()
        model.blocks[1].eval()
        before = state_of(model)
        new = []
        for token in generate(model, prompt_of(5), 12, engine=ready(kind), generator=seeded(1)):
            new.append(token)
            assert state_of(model) == before
            assert not has_cache(model)
            assert torch.is_grad_enabled()
            assert not torch.is_inference_mode_enabled()
        assert torch.equal(torch.cat(new, dim=1), expected), "dropout was on"
        assert all(torch.equal(value, weights[key]) for key, value in model.state_dict().items())
        assert all(p.grad is None and p.requires_grad for p in model.parameters())
        assert torch.tensor(1e-40) * 1 != 0, "denormal numbers were switched off"


@every
def test_an_engine_first_used_in_inference_mode_works_outside_of_it(kind):
    model = shared_model()
    with torch.inference_mode():
        built = kind(model.config, batch=BATCH)
        complete(model, prompt_of(5), 6, engine=built)
    assert_same_tokens(model, built, prompt_of(5), 12)
    with torch.inference_mode():
        assert_same_tokens(model, built, prompt_of(5), 12)


# ------------------------------------------------------------------ refused at the call


@pytest.mark.parametrize("kind", [Batched, OneStep])
def test_an_engine_built_for_something_else_is_refused(kind):
    built = kind(shared_model().config, batch=BATCH, capacity=10)
    model = shared_model()
    assert_same_tokens(model, built, prompt_of(4), 7)
    how = {"engine": built}
    assert_refused("4 and 8 new tokens exceed capacity 10", model, prompt_of(4), 8, **how)
    assert_refused("a batch of 3.* but got .* a batch of 2", model, prompt_of(5, 2), 3, **how)
    sizes = {"n_layer": 3, "n_head": 2, "n_embd": 36, "block_size": 17, "vocab_size": 14}
    others = [shared_model(**{key: n}) for key, n in sizes.items()]
    others += [shared_model(**fields) for fields in ({"n_kv_head": 2}, {"window": 5}, ROPE)]
    for other in (*others, shared_model(dtype=torch.bfloat16)):
        words = "was built for 2 layers.* but got .*: build another"
        assert_refused(words, other, prompt_of(5), 3, **how)
    built.shape = replace(built.shape, device=torch.device("cuda"))
    assert_refused("float32 on cuda, but got .*float32 on cpu", model, prompt_of(5), 3, **how)


@pytest.mark.parametrize(
    ("one", "other", "same"),
    [("cpu", "cpu", True), ("cuda", "cuda:1", True), ("cuda:0", "cuda:1", False)],
)
def test_a_device_without_a_number_is_the_current_one(one, other, same):
    config = shared_model().config
    shapes = [Shape.of(config, 1, None, torch.float32, device) for device in (one, other)]
    assert shapes[0].decodes(shapes[1]) is same


@pytest.mark.parametrize("size", [{"batch": 0}, {"batch": 1.0}, {"capacity": 0}, {"capacity": 17}])
def test_an_engine_of_impossible_sizes_is_refused(size):
    with pytest.raises(ValueError, match=f"{next(iter(size))}=.*must be an integer"):
        Flat(shared_model().config, **size)


@pytest.mark.parametrize("kind", [Compiled, Native, Native8, Graph])
def test_in_exact_mode_compiled_engines_are_refused(kind, monkeypatch):
    monkeypatch.setattr(kind, "build", lambda self: pytest.fail("it was built"))
    model = shared_model()
    with exact(model):
        assert_refused("use Flat, the fastest engine", model, prompt_of(5), 3, engine=kind)
        assert_same_tokens(model, Flat, prompt_of(5), 3)


@pytest.mark.parametrize("row", ["plain", "n_head=8", *COMBINED])
def test_no_engine_but_that_of_the_lectures_heads_refuses_an_architecture(row, monkeypatch):
    """And that one names the fields, at the call and where it is built."""
    config = DecoderConfig(**SMALL | DECODERS[row])
    others = {Uncached, Batched, Flat, Compiled, Native, Native8, Graph, GraphLoop}
    assert {kind.refuses(config) for kind in others} == {None}
    fields = beyond_lecture(config)
    if not fields:
        assert PerHead.refuses(config) is None
        return
    given = ", ".join(f"{name}={value}" for name, value in fields.items())
    refusal = PerHead.refuses(config)
    assert refusal.reason == f"PerHead decodes the lecture's heads, but this model has {given}"
    assert refusal.instead == "use Batched, or leave engine out"
    monkeypatch.setattr(PerHead, "build", lambda self: pytest.fail("it was built"))
    words = re.escape(str(refusal))
    assert_refused(words, decoder(**DECODERS[row]), prompt_of(5), 3, engine=PerHead)
    with pytest.raises(ValueError, match=words):
        PerHead(config)


# ------------------------------------------------------------------ built, kept, or a fallback


class Counted(Flat):
    fallback = Flat
    broken = False

    def build(self):
        self.tried.append(self.shape.batch)
        if self.broken:
            raise CannotBuild("it is broken")


@pytest.fixture
def counted(forgetful):
    Counted.tried = []
    Counted.broken = False
    Counted.fallback = Flat
    return Counted


def test_the_class_is_built_once_for_a_shape(counted):
    model = shared_model()
    same = shared_model(True, dropout=0.0)
    for which in (model, same, model):
        complete(which, prompt_of(5), 3, engine=counted)
    assert counted.tried == [3], "the form and the dropout do not change the arithmetic"
    complete(model, prompt_of(5, batch=2), 3, engine=counted)
    complete(model.double(), prompt_of(5, batch=2), 3, engine=counted)
    assert counted.tried == [3, 2, 2]


def test_a_failed_build_is_warned_of_once_and_not_tried_again(counted):
    model = shared_model()
    counted.broken = True
    run = lambda batch: complete(model, prompt_of(5, batch), 3, engine=counted)  # noqa: E731
    text, messages = heard(lambda: run(1))
    assert torch.equal(text, complete(model, prompt_of(5, 1), 3))
    words = "Counted cannot be built here, Flat decodes instead: it is broken"
    assert messages == [(words, __file__)], "the warning points at the caller's line"
    assert heard(lambda: run(1))[1] == []
    assert len(heard(lambda: run(2))[1]) == 1, "another shape is tried once"
    assert counted.tried == [1, 2]
    counted.fallback = None
    with pytest.raises(CannotBuild, match="it is broken"):
        run(3)


def test_the_engines_used_last_are_kept(counted, monkeypatch):
    monkeypatch.setattr(base, "KEPT", 2)
    for batch in (1, 2, 1, 3, 1, 2):
        counted.ready(shared_model(), batch)
    assert counted.tried == [1, 2, 3, 2]
    assert len(base._built) == 2


def test_without_a_compiler_an_engine_that_needs_none_decodes(forgetful, monkeypatch):
    monkeypatch.setenv("CXX", "no-such-compiler")
    model = shared_model()
    run = lambda: complete(model, prompt_of(5), 9, engine=Native, generator=seeded(1))  # noqa: E731
    got, messages = heard(run)
    assert torch.equal(got, uncached(model, prompt_of(5), 9))
    first = [message.partition(":")[0] for message, _ in messages]
    assert first == ["Native cannot be built here, Flat decodes instead"]
    assert heard(run)[1] == [], "it was tried again for the next text"


@pytest.mark.parametrize("kind", [Native, Native8, Compiled, GraphLoop])
def test_engines_give_way_where_they_cannot_compute(kind, forgetful):
    where = "needs a CUDA device" if kind is GraphLoop else "not torch.float32 on meta"
    with pytest.raises(CannotBuild, match=where):
        kind(shared_model().config, device="meta")
    model = shared_model(dtype=torch.bfloat16)
    got, messages = heard(lambda: complete(model, prompt_of(5), 9, engine=kind))
    assert torch.equal(got, complete(model, prompt_of(5), 9, engine=Flat))
    assert messages[0][0].startswith(f"{kind.__name__} cannot be built here")
    assert "Flat decodes instead" in messages[-1][0]
    assert all("\n" not in text and file == __file__ for text, file in messages)


@compiling
@pytest.mark.parametrize("part", ["token_embedding_table", "position_embedding_table", "ffwd"])
def test_a_model_of_mixed_dtypes_is_refused_by_what_uses_its_memory(kind, part):
    model = shared_model()
    (model.blocks[1].ffwd if part == "ffwd" else getattr(model, part)).double()
    built = ready(kind)
    with pytest.raises(ValueError, match="cast the whole model|float64 on cpu"):
        list(generate(model, prompt_of(5), 3, engine=built))
    assert_same_tokens(shared_model(), built, prompt_of(5), 3)
