"""The referee reaches what begins late, names what it did not reach, and is fair to noise."""

import json
import math
from types import SimpleNamespace

import pytest
import torch
from conftest import tiny_model
from parts import Paged, Session, Tiny, empty
from rows import quick

from nanogpt import DynamicCache, referee
from nanogpt.cli import main
from nanogpt.kv_referee import NotOffered, assert_sound
from nanogpt.kv_referee.contract import Model, TokenMeter
from nanogpt.kv_referee.programs import Read, Rewind, in_pieces, is_valid, room, run, tokens_read
from nanogpt.kv_referee.report import (
    CODES,
    CacheBug,
    Judgement,
    LogitTurn,
    Report,
    Verdict,
)
from nanogpt.kv_referee.texts import edges_of, lengths_of, text
from nanogpt.kv_referee.ways import fitted, long_ways, short_ways, total
from nanogpt.verify.architectures import small
from nanogpt.verify.ours import Ours


class Long(Tiny):
    longest = 330


def wrong_where(when):
    """A model that halves its keys in a call where when(cache, new keys) is true."""

    class Late(Long):
        def store(self, cache, layer, k, v):
            wrong = cache.kept and when(cache, k)
            k, v = super().store(cache, layer, k, v)
            return (k * 0.5 if wrong else k), v

    return Late()


def wrong_at(n):
    return wrong_where(lambda cache, k: cache.t + k.shape[2] > n)


@pytest.mark.release
@pytest.mark.parametrize("n", [48, 64, 128, 256, 300])
def test_a_bug_that_begins_late_is_convicted(n):
    report = referee(wrong_at(n), tokens=math.inf)
    assert report.verdict == "bug"
    assert all(bug.tokens >= n for bug in report.bugs)


WRONG = {
    "a prompt of 48 tokens": lambda cache, k: cache.t == 0 and k.shape[2] == 48,
    "a prompt of 65 tokens": lambda cache, k: cache.t == 0 and k.shape[2] == 65,
    "a chunk of 8": lambda cache, k: cache.t and k.shape[2] == 8,
    "a chunk of 11 behind 70": lambda cache, k: cache.t > 70 and k.shape[2] == 11,
    "single tokens behind 200": lambda cache, k: cache.t > 200 and k.shape[2] == 1,
    "five texts and more": lambda cache, k: len(k) > 4,
    # Equal rows of a batch may differ by rounding: a processor sums them in different orders.
    "one prompt for all": lambda cache, k: cache.t == 0 and len(k) > 1 and k.allclose(k[:1]),
}


@pytest.mark.parametrize("where", quick(WRONG, "a prompt of 48 tokens", "five texts and more"))
def test_a_bug_in_some_calls_only_is_convicted(where):
    assert referee(wrong_where(WRONG[where]), tokens=math.inf).verdict == "bug"


@pytest.mark.release
def test_a_sound_model_is_read_past_every_edge_and_acquitted():
    report = referee(Long(), tokens=math.inf)
    assert report.verdict in ("equal", "rounding"), report
    assert not report.unreached
    assert any("token by token, to 330" in f.way for f in report.findings)


class Second(Long):
    """The second of two rewinds takes back one token too few."""

    last = None

    def forget(self, cache, n):
        again = self.last == cache.t
        super().forget(cache, n - (again and n > 1))
        self.last = cache.t


class ToNothing(Long):
    """What is taken back to nothing leaves its keys in place."""

    def forget(self, cache, n):
        cache.stale = cache.t == n
        if cache.stale:
            cache.t = 0
            return
        super().forget(cache, n)

    def store(self, cache, layer, k, v):
        if getattr(cache, "stale", False) and layer in cache.k:
            old = cache.k.pop(layer)
            cache.stale = layer == 0
            cache.k[layer] = k + old.mean(2, keepdim=True)
            cache.v[layer] = v
            return cache.k[layer], v
        return super().store(cache, layer, k, v)


class Fours(Long):
    """The fourth text of a batch reads the keys of the first."""

    def store(self, cache, layer, k, v):
        k, v = super().store(cache, layer, k, v)
        if cache.kept and len(k) >= 4:
            k = k.clone()
            k[3] = k[0]
        return k, v


class RoundedUp(Session):
    """A beginning that is known is rounded up to eight tokens."""

    def shared(self, cache, ids):
        n = super().shared(cache, ids)
        return min(-(-n // 8) * 8, cache.t, ids.shape[1]) if n > 8 else n


class Multiples(Long):
    """The last key of a prompt of 32 or 64 tokens is lost."""

    def store(self, cache, layer, k, v):
        found = super().store(cache, layer, k, v)
        if cache.kept and cache.t == 0 and k.shape[2] % 32 == 0:
            cache.k[layer] = cache.k[layer].clone()
            cache.k[layer][:, :, -1] = 0
        return found


class Leaking(Paged):
    """After twenty requests a block is given away twice."""

    longest = 96
    blocks = 300
    count = 0

    def begin(self):
        held = super().begin()
        self.count += 1
        if self.count % 20 == 0:
            self.free[-2] = self.free[-1]
        return held


class Specials(Long):
    """The id 1 counts as a position once more."""

    vocab_size = 61

    def positions(self, cache, ids, mask):
        pos = super().positions(cache, ids, mask)
        return pos + (ids == 1).cumsum(1) if cache.kept and cache.t else pos


class OneRow(Long):
    """In a batch, only the first text forgets its drafts."""

    def forget(self, cache, n):
        gone = cache.k[0][1:, :, -n:]
        super().forget(cache, n)
        if len(gone) and cache.t >= n:
            cache.k[0] = cache.k[0].clone()
            cache.k[0][1:, :, -n:] = gone


class Sorted(Session):
    """A beginning counts as known where it has the same tokens, in any order."""

    def shared(self, cache, ids):
        n = min(cache.ids.shape[1], ids.shape[1])
        rows = (cache.ids[:, :n], ids[:, :n])
        alike = [m for m in range(n + 1) if torch.equal(*(x[:, :m].sort()[0] for x in rows))]
        return alike[-1]


class Leak(Paged):
    """Each request keeps a block for ever."""

    longest = 96
    blocks = 150

    def begin(self):
        held = super().begin()
        self.free = self.free[1:]
        return held


class InFloat32(Long):
    """The cache has 16 bits where the model has 32, as it was given."""

    def __init__(self, seed=0, bug=False):
        super().__init__(seed, bug)
        self.w = {name: w.float() for name, w in self.w.items()}

    def store(self, cache, layer, k, v):
        few = cache.kept and k.dtype == torch.float32
        return super().store(cache, layer, k.bfloat16().to(k.dtype) if few else k, v)


WAYS = [Second, ToNothing, Fours, RoundedUp, Multiples, Leaking, Specials]
WAYS += [OneRow, Sorted, InFloat32]
CONVICTED = {model.__name__: model for model in WAYS}


@pytest.mark.parametrize("name", quick(CONVICTED, "Fours", "RoundedUp", "Specials", "Sorted"))
def test_a_bug_that_one_scenario_alone_meets_is_convicted(name):
    assert referee(CONVICTED[name](), tokens=math.inf).verdict == "bug"


@pytest.mark.release
def test_a_pool_that_keeps_blocks_for_ever_is_noted():
    report = referee(Leak(), tokens=math.inf)
    assert report.verdict != "bug"
    assert "its cache has no room for what it read before" in str(report)


class PadsLate(Long):
    """Padding is seen once more than 64 columns are held."""

    def sees(self, cache, ids, mask):
        late = cache.kept and cache.t and mask.shape[1] > 64
        return super().sees(cache, ids, torch.ones_like(mask) if late else mask)


class PadsOfAll(Long):
    """Padding that all texts have counts as positions."""

    def positions(self, cache, ids, mask):
        pos = super().positions(cache, ids, mask)
        return pos + (mask.sum(0) == 0).sum() if cache.kept and cache.t else pos


@pytest.mark.parametrize("model", [pytest.param(PadsLate, marks=pytest.mark.release), PadsOfAll])
def test_padding_is_read_past_the_edges_and_where_all_texts_have_some(model):
    assert any("left padding" in f.way for f in referee(model(), tokens=math.inf).bugs)


@pytest.mark.release
def test_texts_by_turns_are_read_where_a_model_has_sessions():
    report = referee(tiny_model(block_size=24), caches=[DynamicCache])
    ways = [f.way for f in report.findings]
    assert "DynamicCache, texts interleaved, of 24 tokens" in ways

    class Mixed(Long):
        sessions = None

        def begin(self):
            usual = super().begin()
            self.first = getattr(self, "first", usual)
            usual.k = self.first.k  # all sessions keep their keys in one place
            return usual

    assert "by turns" in str(referee(Mixed(), tokens=0).bugs)


@pytest.mark.release
def test_beams_are_moved_twice():
    class Beams(Long):
        moved = 0  # times that a move is right

        sessions = None

        def start(self, rows):
            held = empty()
            times = iter(range(9))

            def reorder(rows):
                right = next(times) < self.moved
                for kept in (held.k, held.v):
                    kept.update({i: x[rows] for i, x in kept.items() if i or right})

            def read(ids):
                return self.step(held, ids, torch.ones(len(ids), held.t + ids.shape[1], dtype=int))

            return SimpleNamespace(read=read, reorder=reorder)

    model = Beams()
    for moved in (0, 1, 2):
        model.moved = moved
        bugs = referee(model, tokens=0).bugs
        assert any("beams" in f.way for f in bugs) == (moved < 2), bugs


# ------------------------------------------------------------------ what was not reached


def test_scenarios_without_time_are_named():
    report = referee(Long(), seconds=0)
    assert (report.verdict, report.findings) == ("undecided", [])
    assert "not reached: 1 scenario" in str(report)
    assert report.unreached == ["the first comparison"]


# ------------------------------------------------------------------ fairness


class Noisy(Tiny):
    noise = 1e-4

    def step(self, cache, ids, mask):
        logits = super().step(cache, ids, mask)
        return logits + self.noise * torch.randn_like(logits)


def test_noise_is_measured_first_and_named():
    report = referee(Noisy(), tokens=0)
    assert report.verdict != "bug", report
    assert "it varies by itself" in str(report)


class Int8(Tiny):
    def store(self, cache, layer, k, v):
        scale = k.abs().amax(-1, keepdim=True) / 127
        return super().store(cache, layer, (k / scale).round() * scale if cache.kept else k, v)


def test_a_lossy_cache_can_be_declared():
    assert referee(Int8(), tokens=0).verdict == "bug"
    declared = referee(Int8(), tokens=0, expects=0.1)
    assert declared.verdict == "rounding"
    assert "was declared" in str(declared)
    model = Int8()
    model.expects = 1e-5
    assert referee(model, tokens=0).verdict == "bug"


def test_a_difference_that_nothing_explains_is_undecided():
    class Slight(Tiny):
        def store(self, cache, layer, k, v):
            return super().store(cache, layer, k * (1 + 1e-9) if cache.kept else k, v)

    report = referee(Slight(), tokens=0)
    assert (report.verdict, report.code) == ("undecided", 3)
    assert "no float32 inside" in str(report)


def test_float32_inside_is_told_from_that():
    class Inside(Tiny):
        def store(self, cache, layer, k, v):
            return super().store(cache, layer, k.float().to(k.dtype) if cache.kept else k, v)

    report = referee(Inside(), tokens=0)
    assert report.verdict == "rounding"
    assert "something computes in float32" in str(report)


class Half(Tiny):
    """A model that has 16 bits alone."""

    def __init__(self, seed=0, bug=False):
        super().__init__(seed, bug)
        self.w = {name: w.bfloat16() for name, w in self.w.items()}

    def to(self, dtype):
        raise NotOffered("bfloat16 alone")


@pytest.mark.release
def test_a_tie_in_16_bits_is_left_open_and_a_bug_is_not():
    class Tie(Half):
        def step(self, cache, ids, mask):
            logits = super().step(cache, ids, mask)
            at = torch.arange(cache.t - ids.shape[1], cache.t)
            wrong = (cache.kept and ids.shape[1] < 3) * (at == 20)[None, :, None]
            return logits + 9 * wrong * torch.linspace(0, 1, self.vocab_size, dtype=logits.dtype)

    assert referee(Half(), tokens=0).verdict in ("equal", "rounding")
    assert referee(Tie(), tokens=0).verdict == "undecided"

    class Wrong(Half):
        def positions(self, cache, ids, mask):
            return super().positions(cache, ids, mask) * (not cache.kept or cache.t == 0)

    assert referee(Wrong(), tokens=0).verdict == "bug"


def test_a_full_pool_is_no_bug():
    class Few(Paged):
        blocks = 26

    report = referee(Few())
    assert report.verdict in ("equal", "rounding"), report
    assert "no free block is left" in str(report)


@pytest.mark.release
def test_a_model_of_transformers_keeps_its_mode_and_says_that_it_is_bidirectional():
    transformers = pytest.importorskip("transformers")
    sizes = {"vocab_size": 40, "hidden_size": 16, "intermediate_size": 16}
    sizes |= {"num_hidden_layers": 2, "num_attention_heads": 2, "max_position_embeddings": 64}
    config = transformers.LlamaConfig(**sizes)
    model = transformers.AutoModelForCausalLM.from_config(config).train()
    assert referee(model, tokens=0).verdict in ("equal", "rounding")
    assert all(module.training for module in model.modules())
    config = transformers.BertConfig(**sizes)
    with pytest.raises(ValueError, match="is bidirectional"):
        referee(transformers.AutoModelForCausalLM.from_config(config))


class Spiky(Long):
    """A float32 inside: each length of a call rounds otherwise, and in some texts one token far."""

    further = 0.0  # by which a cache is wrong at that token

    def step(self, cache, ids, mask):
        logits = super().step(cache, ids, mask)
        at = torch.arange(cache.t - ids.shape[1], cache.t)
        far = 1e-7 + ((at == 50) & (ids % 3 == 1)) * (5e-3 + self.further * (cache.kept))
        phase = torch.tensor(ids.shape[1] + 7.0 * (logits.dtype == torch.float32))
        spike = far[..., None] * phase.sin() * torch.linspace(0, 1, self.vocab_size)
        return logits + spike.float()


@pytest.mark.release
@pytest.mark.parametrize(("further", "verdict"), [(0.0, "undecided"), (1.0, "bug")])
def test_a_token_that_float32_moves_further_than_others_is_no_bug_of_the_cache(further, verdict):
    model = Spiky()
    model.further = further
    assert referee(model, tokens=20_000).verdict == verdict


class Output(dict):
    """The output of a model of transformers: fields that are items as well."""

    __getattr__ = dict.get


@pytest.mark.release
@pytest.mark.parametrize("name", ["past_key_values", "cache"])
def test_a_cache_is_handed_over_by_the_name_that_the_model_takes(name):
    """transformers 5.24 renamed the argument and the field; models in its style keep theirs."""
    pytest.importorskip("transformers")
    llama = small("llama")
    Llama = type(llama.model)

    class Named(Llama):
        def read(self, ids, use_cache, held):
            out = Llama.forward(self, ids, use_cache=use_cache, **{llama.argument: held})
            return Output(logits=out.logits, **{name: getattr(out, llama.argument)})

        if name == "cache":

            def forward(self, ids, use_cache, cache=None):
                return self.read(ids, use_cache, cache)

        else:

            def forward(self, ids, use_cache, past_key_values=None):
                return self.read(ids, use_cache, past_key_values)

    model = Named(llama.model.config)
    model.load_state_dict(llama.model.state_dict())
    report = referee(model, tokens=0)
    assert report.verdict in ("equal", "rounding"), report
    ways = " ".join(finding.way for finding in report.findings)
    assert "static cache" in ways
    assert "rejected drafts" in ways


@pytest.mark.release
def test_a_static_cache_that_recorded_drafts_serves_no_other_text():
    pytest.importorskip("transformers")
    subject = small("llama")
    usual = subject._allocated(1, 20, anew=False)
    recording = subject._allocated(1, 20, anew=True)
    assert recording is not usual
    assert subject._allocated(1, 20, anew=False) is usual


@pytest.mark.release
def test_a_compiled_model_of_transformers_is_judged_as_it_is():
    """Its forward takes any argument by its signature: a wrong name would be swallowed."""
    pytest.importorskip("transformers")
    report = referee(torch.compile(small("llama").model, backend="eager"), tokens=0)
    assert report.verdict in ("equal", "rounding"), report


@pytest.mark.release
def test_no_tokens_are_taken_back_from_a_stateful_model():
    """transformers refuses to speculate with one."""
    pytest.importorskip("transformers")
    llama = small("llama")
    llama.model._is_stateful = True
    report = referee(llama, tokens=0)
    assert not any("rewind" in finding.way for finding in report.findings)
    assert "stateful" in str(report)


# ------------------------------------------------------------------ for the tests of others


def test_assert_sound_raises_the_report():
    assert assert_sound(Tiny(), tokens=0).verdict in ("equal", "rounding")
    with pytest.raises(CacheBug, match="chunks after a prompt|a prompt of"):
        assert_sound(wrong_at(20))


def test_a_known_failure_is_no_bug_and_never_makes_a_verdict_sound():
    model = wrong_where(lambda cache, k: cache.t and k.shape[2] == 13)
    (bug,) = referee(model, tokens=0).bugs
    report = referee(model, tokens=0, known=[bug.name])
    assert report.verdict is Verdict.KNOWN
    assert (report.verdict.sound, report.code, report.bugs) == (False, 0, [])
    assert "known bug: " + bug.way in str(report)
    report.raise_unless_sound()


def test_a_known_failure_names_a_whole_scenario():
    report = referee(wrong_at(5), tokens=0, known=["its cache", "requests"])
    assert report.verdict is Verdict.BUG
    assert "the known failure 'its cache' did not occur" in str(report)
    assert "'no such way' did not occur" in str(referee(Tiny(), tokens=0, known=["no such way"]))


def test_json_is_strict():
    turn = LogitTurn([1], [2], [math.nan])
    finding = Judgement("a way", Verdict.BUG, "it stops", math.inf, turn=turn)
    report = Report("m", [finding])
    (written,) = json.loads(report.to_json())["findings"]
    assert (written["way"], written["size"], written["mistake"]) == ("a way", "inf", None)
    assert written["turn"] == [[1], [2], ["nan"]]
    assert json.loads(report.to_json())["verdict"] == "bug"
    assert CODES == {"equal": 0, "rounding": 0, "known bugs": 0, "bug": 1, "undecided": 3}


@pytest.mark.release
def test_the_script_of_a_bug_of_transformers_runs_as_it_is(tmp_path, capsys):
    pytest.importorskip("transformers")
    path = tmp_path / "report.json"
    assert main(["verify", "class", "mamba", "--tokens", "0", "--json", str(path)]) == 1
    (report,) = json.loads(path.read_text(encoding="utf-8"))
    code = next(f["code"] for f in report["findings"] if f["code"])
    capsys.readouterr()
    exec(compile(code, "script", "exec"), {})
    assert float(capsys.readouterr().out) > 1e-6


# ------------------------------------------------------------------ the texts


def test_drafts_are_taken_back_in_turns():
    ids = torch.arange(10)[None]
    program = in_pieces(ids, [(2, 2, 1), 3], 50)
    sizes = [len(s.ids[0]) if isinstance(s, Read) else getattr(s, "n", 0) for s in program]
    assert sizes == [0, 5, 1, 2, 3]
    assert [type(step) for step in program[2:4]] == [Rewind, Rewind]
    assert (total([(2, 2, 1), 3]), room(program, "a"), tokens_read(program)) == (5, 5, 8)
    (text_,) = run(Model(Tiny(), TokenMeter()), program, "its cache")
    assert text_.ids.tolist() == [0, 1, 2, 3, 4]
    assert (text_.logits.shape, text_.starts_at(1), text_.starts_at(4)) == ((5, 29), 0, 2)


def test_the_first_pieces_are_joined_for_a_model_whose_prompts_are_long():
    assert fitted([2, 1, 1, 3], 1) == [2, 1, 1, 3]
    assert fitted([2, 1, (1, 4), 3, 1], 4) == [4, 3, 1]
    assert fitted([(0, 3), 2], 1) == [(0, 3), 2]
    assert fitted([(0, 3), 2], 2) == [2]


@pytest.mark.parametrize("n", [16, 17, 40, 96, 330])
@pytest.mark.parametrize("window", [None, 4, 8])
def test_ways_fit_into_the_text(n, window):
    import random

    ways = short_ways(n, window, True, random.Random(0))
    if n >= 40:  # those of shorter texts are never asked for
        ways += long_ways(n, [16, 32, 64, 128, 256], 9**9, random.Random(0))
    ids = text(29, length=n)
    for way in ways:
        program = in_pieces(ids[: way.rows], list(way.lengths), 29)
        assert is_valid(program), way
        assert room(program, "a") <= n, way
        assert total(way.lengths) <= n


def test_edges_are_those_that_a_model_names_and_the_usual_ones():
    named = SimpleNamespace(window=50, capacity=200, config=SimpleNamespace(block_size=77))
    assert edges_of(named) == [16, 32, 50, 64, 77, 128, 200, 256]
    assert lengths_of([16], longest=20, window=None) == [20]
    assert lengths_of([16, 256], longest=None, window=30) == [69, 150, 330]
    assert lengths_of([16, 4096], longest=None, window=None)[-1] == 4136
    assert isinstance(Ours(tiny_model()).longest, int)


@pytest.mark.release
@pytest.mark.parametrize(("longest", "read"), [(330, 330), (700, 700), (2000, 330)])
def test_texts_are_as_long_as_the_model_where_that_is_not_far(longest, read):
    class Far(Tiny):
        pass

    Far.longest = longest
    report = referee(Far(), tokens=math.inf)
    assert report.verdict.sound, report
    assert report.reach.longest == read
    assert f"texts of up to {read} tokens, up to 16 in a batch, 1 to " in str(report)


@pytest.mark.release
def test_a_bug_behind_every_edge_is_convicted_at_the_model_s_own_limit():
    class Late(Tiny):
        longest = 600

        def store(self, cache, layer, k, v):
            wrong = cache.kept and cache.t > 500
            k, v = super().store(cache, layer, k, v)
            return (k * 0.5 if wrong else k), v

    report = referee(Late(), tokens=math.inf)
    assert report.verdict == "bug"
    assert report.bugs[0].position > 500
