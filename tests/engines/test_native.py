"""Rung 6: decoder.cpp for every shape, and what surrounds it."""

import ctypes
import gc
import math
import weakref
from copy import deepcopy

import pytest
import torch
from engine_fixtures import (
    BATCH,
    assert_right_probabilities,
    assert_same_tokens,
    prompt_of,
    seeded,
    shared_model,
    uncached,
)
from shapes import ROPE

from nanogpt import DraftModel, Flat, Native, Native8, PromptLookup, SamplingParams
from nanogpt.engines.decoder_library import decoder_library, helpers_library
from nanogpt.engines.generation import complete, generate
from nanogpt.engines.native import NativeGeneration, rounded
from nanogpt.training.recipes import MODERN

pytestmark = pytest.mark.slow
# Beside the shared shape (13 rows of a matrix: 8 and 5 left over; heads of 8 numbers): widths that
# leave numbers over after whole registers, and heads that fill one register or two.
UNEVEN = {"n_embd": 18, "n_head": 3, "vocab_size": 65}
SMALL = {"n_embd": 64, "n_head": 4, "vocab_size": 65}
WIDE = {"n_embd": 64, "n_head": 2, "vocab_size": 13}


@pytest.mark.parametrize(("per_head", "sizes"), [(True, UNEVEN), (False, SMALL), (True, WIDE)])
def test_native_computes_every_width_and_head_size(per_head, sizes):
    model = shared_model(per_head, **sizes, block_size=40)
    vocab = sizes["vocab_size"]
    for batch, T in ((1, 18), (2, 33), (5, 17)):
        assert_same_tokens(model, Native, prompt_of(T, batch, vocab=vocab), 41 - T)
    assert_right_probabilities(model, Native, 3, 38, batch=1, by=vocab // 3)
    assert_right_probabilities(model, Native, 17, 24, batch=2, by=vocab // 3)
    sampling = SamplingParams(temperature=1.3, top_k=11, top_p=0.9)
    assert_same_tokens(model, Native, prompt_of(5, vocab=vocab), 30, sampling)


@pytest.mark.parametrize("cap", [1e5, 1e8])
def test_a_softcap_far_above_the_logits_keeps_their_digits(cap):
    plain = shared_model(**MODERN)
    capped = shared_model(**MODERN, logit_softcap=cap)
    capped.load_state_dict(plain.state_dict())
    prompt = prompt_of(5)
    expected = complete(plain, prompt, 12, engine=Native, generator=seeded(1))
    assert torch.equal(complete(capped, prompt, 12, engine=Native, generator=seeded(1)), expected)


@pytest.mark.parametrize(
    "sampling", [{}, {"temperature": 0.3}, {"top_k": 12}, {"top_p": 0.99}], ids=str
)
def test_a_token_with_a_logit_of_minus_infinity_is_never_sampled(sampling):
    """Nor one whose probability is below float32's smallest: not even with the smallest noise."""
    decoder_library()  # skipped without a compiler
    model = deepcopy(shared_model(False))
    never = [3, 7]
    prompt = prompt_of(5, 1)
    with torch.no_grad():
        model.lm_head.bias[never] = torch.tensor([-math.inf, -1000.0])
    noise = torch.ones(9, len(prompt), model.config.vocab_size)
    noise[..., never] = torch.finfo(torch.float32).tiny  # what draw_noise gives for a uniform 0
    settings = {"noise": noise}
    got = complete(model, prompt, 9, SamplingParams(**sampling), engine=Native, **settings)
    assert torch.equal(got, complete(model, prompt, 9, SamplingParams(**sampling), **settings))
    assert not set(never) & set(got[0, 5:].tolist())


def test_eight_bits_round_the_matrices_of_a_newer_model_too():
    decoder_library()  # skipped without a compiler
    model = shared_model(**MODERN)
    prompt = prompt_of(5)
    whole = uncached(rounded(model), prompt, 12)
    got = complete(model, prompt, 12, engine=Native8, generator=seeded(1))
    assert torch.equal(got, whole)
    tied = shared_model(**MODERN, tied=True)
    embeddings = tied.token_embedding_table.weight.clone()
    whole = uncached(rounded(tied), prompt, 12)
    assert torch.equal(rounded(tied).token_embedding_table.weight, embeddings)
    assert torch.equal(complete(tied, prompt, 12, engine=Native8, generator=seeded(1)), whole)
    draft = DraftModel(model, k=3, engine=Native8)
    got = complete(model, prompt, 12, engine=Native, draft=draft, generator=seeded(1))
    assert torch.equal(got, uncached(model, prompt, 12))


def test_native_reads_large_batches_in_blocks():
    """Up to 64 vectors at once: 16 places of 4 texts, one place of 64, and what is left over."""
    model = shared_model(block_size=24)
    for batch in (4, 5, 21, 32, 63, 64, 65, 70, 129):
        assert_same_tokens(model, Native, prompt_of(18, batch), 4)
        assert_same_tokens(model, Native, prompt_of(1, batch), 3)


def test_native_reads_a_long_prompt_and_writes_a_long_text():
    """`complete` decodes the whole text in one call; prompts come in chunks of 16 positions."""
    model = shared_model(block_size=192, n_layer=1)
    for T in (1, 2, 15, 16, 17, 18, 33, 160, 191, 192):
        assert_same_tokens(model, Native, prompt_of(T, 1), 193 - T)


def test_native_hands_over_1_4_16_and_then_64_tokens_at_a_time(monkeypatch):
    """As they are asked for one by one: the first at once, later ones in longer calls."""
    model = shared_model(block_size=192, n_layer=1)
    calls = []
    decode = NativeGeneration.decode
    record = lambda session, start, end: (calls.append(end), decode(session, start, end))  # noqa: E731
    monkeypatch.setattr(NativeGeneration, "decode", record)
    T = 3
    prompt = prompt_of(T, 1)
    steps = generate(model, prompt, 150, engine=Native, generator=seeded(1))
    text = torch.cat([prompt, *steps], dim=1)
    assert torch.equal(text, uncached(model, prompt, 150))
    ends = [T + n - 1 for n in (1, 5, 21, 85, 149, 150)]
    assert calls == ends


def test_a_default_dtype_changes_nothing():
    """Buffers are float32 by name: of another size they would be written past their end."""
    model = shared_model()
    before = torch.get_default_dtype()
    expected = uncached(model, prompt_of(7), 10)
    try:
        for default in (torch.float64, torch.bfloat16):
            torch.set_default_dtype(default)
            for _ in range(2):
                engine = Native(model.config, batch=BATCH)
                got = complete(model, prompt_of(7), 10, engine=engine, generator=seeded(1))
                assert torch.equal(got, expected)
    finally:
        torch.set_default_dtype(before)


def test_the_limits_are_measured_by_what_does_the_work():
    lib = helpers_library()
    numbers = torch.arange(1024).remainder(7).float()
    for n in (0, 256, 1024):
        assert lib.read_all(numbers.data_ptr(), n, 3) == 3 * float(numbers[:n].sum())
    out = ctypes.c_float(0)
    flop = lib.multiply_adds(1000, ctypes.addressof(out))
    lanes = flop / 12 / 2
    assert lanes in (4, 8, 16)
    assert out.value == pytest.approx(lanes * sum(range(12)), rel=1e-3)


@pytest.mark.parametrize("top_k", [None, 30])
def test_equally_likely_tokens_are_kept_in_the_same_order(top_k):
    """As in a model that has just been made, whose head is zero."""
    model = deepcopy(shared_model(**SMALL, block_size=40))
    with torch.no_grad():
        model.lm_head.weight.zero_()
        model.lm_head.bias.zero_()
    sampling = SamplingParams(top_k=top_k, top_p=0.3)
    assert_same_tokens(model, Native, prompt_of(3, vocab=65), 20, sampling)


def test_a_forgotten_generation_gives_back_no_memory_that_was_freed():
    """The garbage collector frees parts of a cycle before it closes the generator in it."""
    model = shared_model()
    engine = Native(model.config, batch=BATCH)
    steps = generate(model, prompt_of(5), 10, engine=engine, generator=seeded(1))
    next(steps)
    cycle = [steps]
    cycle.append(cycle)
    del steps, cycle
    gc.collect()
    assert all(memory.work.alive for memory in engine.spare)
    assert_same_tokens(model, engine, prompt_of(5), 10)


# ------------------------------------------------------------------ weights stay packed


EDITS = {  # of a model in place, most of them without a new version of the tensor
    "a number through .data": lambda m: m.blocks[1].ffwd.up.weight.data[3, 5].add_(1.0),
    "one bit": lambda m: m.lm_head.weight.data.view(torch.int32)[7, 2].bitwise_xor_(1 << 22),
    "through numpy": lambda m: m.lm_head.weight.detach().numpy().__imul__(-1),
    "a bias": lambda m: m.lm_head.bias.data[3].add_(9.0),
    "two rows change places": lambda m: m.lm_head.weight.data.copy_(m.lm_head.weight.flip(0)),
    "a norm": lambda m: m.ln_f.weight.data.neg_(),
    "an embedding": lambda m: m.token_embedding_table.weight.data.neg_(),
}


@pytest.mark.parametrize("kind", [Native, Native8])
@pytest.mark.parametrize("edit", EDITS)
def test_the_next_generation_sees_every_edit(edit, kind):
    model = deepcopy(shared_model(**SMALL, block_size=40))
    engine = kind(model.config)
    complete(model, prompt_of(3, batch=1, vocab=65), 5, engine=engine)
    EDITS[edit](model)
    given = prompt_of(3, batch=1, vocab=65), 30
    ours = complete(model, *given, engine=engine, generator=seeded(2))
    fresh = complete(model, *given, engine=kind(model.config), generator=seeded(2))
    assert torch.equal(ours, fresh)


def test_equal_weights_are_packed_once_and_nan_and_infinity_are_always_refused(monkeypatch):
    model = deepcopy(shared_model(**SMALL, block_size=40))
    other = deepcopy(model)
    engine = Native(model.config)
    packed = []
    pack = engine.library.pack_matrix
    monkeypatch.setattr(
        engine.library, "pack_matrix", lambda a, threads: packed.append(a) or pack(a, threads)
    )
    prompt = prompt_of(3, batch=1, vocab=65)
    for one, n_packed in [(model, 4 * model.config.n_layer + 1), (model, 0), (other, 0)]:
        packed.clear()
        complete(one, prompt, 5, engine=engine)
        assert len(packed) == n_packed
    for parameter in other.parameters():
        kept = parameter.data.flatten()[-1].item()
        for wrong in (torch.nan, -torch.inf):
            if wrong == -torch.inf and parameter is other.lm_head.bias:
                continue  # a token that is never sampled
            parameter.data.view(-1)[-1] = wrong
            with pytest.raises(ValueError, match="NaN or infinite"):
                complete(other, prompt, 5, engine=engine)
        parameter.data.view(-1)[-1] = kept
    assert torch.equal(
        complete(other, prompt, 5, engine=engine), complete(model, prompt, 5, engine=engine)
    )


@pytest.mark.parametrize("n", [0, 1, 4, 63, 64, 65, 130, 200])
def test_every_bit_changes_the_fingerprint(n):
    data = torch.randint(0, 256, (n,), dtype=torch.uint8, generator=seeded(n))
    lib = decoder_library()
    prints = {lib.fingerprint_of(data.data_ptr(), n, 1)}
    for byte in range(n):
        for bit in range(8):
            data[byte] ^= 1 << bit
            prints.add(lib.fingerprint_of(data.data_ptr(), n, 1))
            data[byte] ^= 1 << bit
    zeros = torch.zeros(256, dtype=torch.uint8)
    prints |= {lib.fingerprint_of(zeros.data_ptr(), length, 1) for length in range(256)}
    assert len(prints) == 8 * n + 1 + 256 - (n == 0)


@pytest.mark.parametrize("n", [1, 3, 8, 13, 16, 65])
def test_numbers_are_told_from_nan_and_infinity_at_every_place(n):
    lib = decoder_library()
    top = torch.finfo(torch.float32).max
    for i in range(n):
        for value, right in [(0.0, 1), (-0.0, 1), (top, 1), (-top, 1), (-torch.inf, 0)] + [
            (torch.inf, 0),
            (torch.nan, 0),
            (-torch.nan, 0),
        ]:
            numbers = torch.ones(n)
            numbers[i] = value
            assert lib.are_numbers(numbers.data_ptr(), n, 1) == right


# ------------------------------------------------------------------ weights that change in a text


def text_with_other_weights_after_the_first_token(fields, **how):
    """The new tokens of a text in whose middle the model gets other weights."""
    model = shared_model(**fields)
    steps = generate(model, prompt_of(3), 12, generator=seeded(1), **how)
    tokens = [next(steps)]
    model.load_state_dict({name: 2 * old.flip(0) for name, old in model.state_dict().items()})
    return torch.cat([*tokens, *steps], dim=1)


@pytest.mark.parametrize("fields", [{}, {**ROPE, "norm": "rms", "tied": True, "head_bias": False}])
def test_weights_that_change_in_the_middle_of_a_text(fields):
    """Native copies them at the start of a text; it once mixed old matrices and new embeddings.

    Flat and the model's own modules read them at every token.
    """
    decoder_library()  # skipped without a compiler
    unchanged = uncached(shared_model(**fields), prompt_of(3), 12)[:, 3:]
    new = text_with_other_weights_after_the_first_token(fields)
    assert not torch.equal(new, unchanged)
    assert torch.equal(text_with_other_weights_after_the_first_token(fields, engine=Flat), new)
    native = text_with_other_weights_after_the_first_token(fields, engine=Native)
    assert torch.equal(native, unchanged)


@pytest.mark.parametrize("engine", [Native, Native8])
def test_a_weight_freed_before_the_first_token_is_refused(engine):
    """The model is checked at the call, and native code reads it when the first token is wanted."""
    decoder_library()  # skipped without a compiler
    model = shared_model()
    steps = generate(model, prompt_of(3), 4, engine=engine)
    model.lm_head.weight.untyped_storage().resize_(0)
    with pytest.raises(ValueError, match="has no numbers in memory: load the weights again"):
        next(steps)


LOOPS = {
    "native": {"engine": Native},
    "stop tokens": {"engine": Native, "stop": [1]},
    "a draft": {"draft": PromptLookup()},
    "a draft in native code": {"engine": Native, "draft": PromptLookup()},
}


@pytest.mark.parametrize("settings", LOOPS.values(), ids=LOOPS)
def test_tokens_that_are_dropped_are_freed_without_the_garbage_collector(settings):
    """A caller who wants only the first token drops the rest, and the next text gets the memory.

    Otherwise each text packs the weights anew: 80,000 page faults and a second for 135M weights.
    """
    decoder_library()  # skipped without a compiler
    gc.disable()
    try:
        steps = generate(shared_model(), prompt_of(7), 9, **settings)
        next(steps)
        alive = weakref.ref(steps)
        del steps
        assert alive() is None
    finally:
        gc.enable()


def test_texts_of_one_shape_are_decoded_in_the_same_memory():
    """A text that was dropped after its first token gives back the packed weights."""
    decoder_library()  # skipped without a compiler
    model = shared_model()
    engine = Native(model.config, batch=BATCH)
    memories = []
    for _ in range(3):
        next(generate(model, prompt_of(7), 9, engine=engine))
        memories.append(engine.spare[0])
    assert memories[0] is memories[1] is memories[2]
