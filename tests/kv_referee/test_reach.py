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
from nanogpt.kv_referee import assert_sound
from nanogpt.kv_referee.report import (
    CODES,
    CacheBug,
    Judgement,
    LogitTurn,
    Report,
    Scenario,
    Verdict,
)
from nanogpt.kv_referee.scripts import script
from nanogpt.kv_referee.subjects import NotOffered, through
from nanogpt.kv_referee.texts import cut, edges_of, high_water, lengths_of, text, total
from nanogpt.kv_referee.ways import long_ways, short_ways
from nanogpt.kv_referee.yardstick import Yardstick
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
    report = referee(wrong_at(n), seconds=math.inf)
    assert report.verdict == "bug"
    assert all(f.how is None or f.how.length >= n for f in report.bugs)


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
    assert referee(wrong_where(WRONG[where]), seconds=math.inf).verdict == "bug"


@pytest.mark.release
def test_a_sound_model_is_read_past_every_edge_and_acquitted():
    report = referee(Long(), seconds=math.inf)
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

    def start(self):
        held = super().start()
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

    def start(self):
        held = super().start()
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
    assert referee(CONVICTED[name](), seconds=math.inf).verdict == "bug"


@pytest.mark.release
def test_a_pool_that_keeps_blocks_for_ever_is_noted():
    report = referee(Leak(), seconds=math.inf)
    assert report.verdict != "bug"
    assert "Tiny's cache has no room for what it read before" in str(report)


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
    assert any("left padding" in f.way for f in referee(model(), seconds=math.inf).bugs)


@pytest.mark.release
def test_texts_by_turns_are_read_where_a_model_has_sessions():
    report = referee(tiny_model(block_size=24), caches=[DynamicCache])
    ways = [f.way for f in report.findings]
    assert "DynamicCache, texts interleaved, of 24 tokens" in ways

    class Mixed(Long):
        def session(self, cache=None, rows=1):
            held = self.held = getattr(self, "held", empty())
            return SimpleNamespace(
                read=lambda ids: self.step(
                    held, ids, torch.ones(len(ids), held.t + ids.shape[1], dtype=int)
                )
            )

    assert "texts interleaved" in str(referee(Mixed(), length=40).bugs)


@pytest.mark.release
def test_beams_are_moved_twice():
    class Beams(Long):
        moved = 0  # times that a move is right

        def session(self, cache=None, rows=1):
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
    for moved in (1, 2, 9):  # one of the first is a trial
        model.moved = moved
        bugs = referee(model, length=40).bugs
        assert any("beams" in f.way for f in bugs) == (moved < 2), bugs


# ------------------------------------------------------------------ what was not reached


def test_scenarios_without_time_are_named():
    report = referee(Long(), seconds=0)
    assert (report.verdict, report.findings) == ("undecided", [])
    assert "out of time for 1 scenario" in str(report)
    assert report.unreached == ["the first comparison"]


def test_length_limits_the_texts():
    report = referee(Long(), length=60, seconds=math.inf)
    assert "to 60" in " ".join(f.way for f in report.findings)
    assert "a fault at 64, 128, 256 would not show" in str(report)


# ------------------------------------------------------------------ fairness


class Noisy(Tiny):
    noise = 1e-4

    def step(self, cache, ids, mask):
        logits = super().step(cache, ids, mask)
        return logits + self.noise * torch.randn_like(logits)


def test_noise_is_measured_first_and_named():
    report = referee(Noisy(), length=40)
    assert report.verdict != "bug", report
    assert "it varies by itself" in str(report)


class Int8(Tiny):
    def store(self, cache, layer, k, v):
        scale = k.abs().amax(-1, keepdim=True) / 127
        return super().store(cache, layer, (k / scale).round() * scale if cache.kept else k, v)


def test_a_lossy_cache_can_be_declared():
    assert referee(Int8(), length=24).verdict == "bug"
    declared = referee(Int8(), length=24, expects=0.02)
    assert declared.verdict == "rounding"
    assert "was declared" in str(declared)
    model = Int8()
    model.expects = 1e-5
    assert referee(model, length=24).verdict == "bug"


def test_a_difference_that_nothing_explains_is_undecided():
    class Slight(Tiny):
        def store(self, cache, layer, k, v):
            return super().store(cache, layer, k * (1 + 1e-9) if cache.kept else k, v)

    report = referee(Slight(), length=20)
    assert (report.verdict, report.code) == ("undecided", 3)
    assert "no float32 inside" in str(report)


def test_float32_inside_is_told_from_that():
    class Inside(Tiny):
        def store(self, cache, layer, k, v):
            return super().store(cache, layer, k.float().to(k.dtype) if cache.kept else k, v)

    report = referee(Inside(), length=20)
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

    assert referee(Half(), length=40).verdict in ("equal", "rounding")
    assert referee(Tie(), length=40).verdict == "undecided"

    class Wrong(Half):
        def positions(self, cache, ids, mask):
            return super().positions(cache, ids, mask) * (not cache.kept or cache.t == 0)

    assert referee(Wrong(), length=40).verdict == "bug"


def test_a_full_pool_is_no_bug():
    class Few(Paged):
        blocks = 26

    report = referee(Few())
    assert report.verdict in ("equal", "rounding"), report
    assert "pop from empty list" in str(report)


@pytest.mark.release
def test_a_model_of_transformers_keeps_its_mode_and_says_that_it_is_bidirectional():
    transformers = pytest.importorskip("transformers")
    sizes = {"vocab_size": 40, "hidden_size": 16, "intermediate_size": 16}
    sizes |= {"num_hidden_layers": 2, "num_attention_heads": 2, "max_position_embeddings": 64}
    config = transformers.LlamaConfig(**sizes)
    model = transformers.AutoModelForCausalLM.from_config(config).train()
    assert referee(model, length=20).verdict in ("equal", "rounding")
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
    assert referee(model, length=60, requests=8).verdict == verdict


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
    report = referee(model, length=28, requests=2)
    assert report.verdict in ("equal", "rounding"), report
    ways = " ".join(finding.way for finding in report.findings)
    assert "static cache" in ways
    assert "rewind" in ways


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
    report = referee(torch.compile(small("llama").model, backend="eager"), length=24, requests=2)
    assert report.verdict in ("equal", "rounding"), report


@pytest.mark.release
def test_no_tokens_are_taken_back_from_a_stateful_model():
    """transformers refuses to speculate with one."""
    pytest.importorskip("transformers")
    llama = small("llama")
    llama.model._is_stateful = True
    report = referee(llama, length=28, requests=2)
    assert not any("rewind" in finding.way for finding in report.findings)
    assert "stateful" in str(report)


# ------------------------------------------------------------------ for the tests of others


def test_assert_sound_raises_the_report():
    assert assert_sound(Tiny(), length=40).verdict in ("equal", "rounding")
    with pytest.raises(CacheBug, match="chunks after a prompt|a prompt of"):
        assert_sound(wrong_at(20))


def test_known_failures_are_no_bugs_and_are_missed_once_they_are_gone():
    model = wrong_at(38)
    report = referee(model, length=40, known=["texts", "requests", "Tiny's cache", "padding"])
    assert report.verdict in ("equal", "rounding"), report
    assert "known bug" in str(report)
    assert "'no such way' did not occur" in str(referee(Tiny(), length=40, known=["no such way"]))


def test_json_is_strict():
    turn = LogitTurn([1], [2], [math.nan])
    finding = Judgement(Scenario("a way"), Verdict.BUG, "it stops", math.inf, turn=turn)
    report = Report("m", [finding])
    (written,) = json.loads(report.to_json())["findings"]
    assert (written["way"], written["size"], written["how"]) == ("a way", "inf", {})
    assert written["turn"] == [[1], [2], ["nan"]]
    assert json.loads(report.to_json())["verdict"] == "bug"
    assert CODES == {"equal": 0, "rounding": 0, "bug": 1, "undecided": 3}


@pytest.mark.release
def test_the_script_of_a_bug_of_transformers_runs_as_it_is(tmp_path, capsys):
    pytest.importorskip("transformers")
    path = tmp_path / "report.json"
    assert main(["verify", "class", "mamba", "--length", "24", "--json", str(path)]) == 1
    (report,) = json.loads(path.read_text(encoding="utf-8"))
    code = next(f["code"] for f in report["findings"] if f["code"])
    capsys.readouterr()
    exec(compile(code, "script", "exec"), {})
    assert "tensor(" in capsys.readouterr().out


@pytest.mark.release
def test_a_script_takes_drafts_back_as_generation_does(capsys):
    pytest.importorskip("transformers")
    subject = small("gemma3_text")  # its window is 12: what is pushed out must be recorded
    ids = text(subject, 1, length=28)
    yard = Yardstick(torch.float64, None, None)
    code = script(subject, "drafts", "", ids, (14, (2, 3), (0, 2), 5), "its cache", yard)
    assert "activate_past_recording" in code
    assert "nanogpt" not in code
    scope = {}
    exec(code, scope)
    moved = scope["moved"].abs().amax((0, 2))
    assert len(moved) == 21
    assert float(moved.max()) < 1e-6


# ------------------------------------------------------------------ the texts


def test_drafts_are_taken_back_in_turns():
    ids = torch.arange(10)[None]
    pieces = cut(ids, [(2, 2, 1), 3], 50)
    assert [p if isinstance(p, int) else p.shape[1] for p in pieces] == [5, 1, 2, 3]
    assert (total([(2, 2, 1), 3]), high_water(pieces)) == (5, 5)

    def read(piece):
        return piece[..., None].float()

    assert through(read, lambda n: None, pieces)[0, :, 0].tolist() == [0, 1, 2, 3, 4]


@pytest.mark.parametrize("n", [16, 17, 40, 96, 330])
@pytest.mark.parametrize("window", [None, 4, 8])
def test_ways_fit_into_the_text(n, window):
    import random

    ways = short_ways(n, window, True, random.Random(0))
    if n >= 40:  # those of shorter texts are never asked for
        ways += long_ways(n, [16, 32, 64, 128, 256], 9**9, random.Random(0))
    ids = text(Long(), length=n)
    for way in ways:
        pieces = cut(ids[: way.rows], list(way.lengths), 29)
        assert all(isinstance(p, int) or p.shape[1] for p in pieces), way
        assert high_water(pieces) <= n, way
        assert total(way.lengths) <= n


def test_edges_are_those_that_a_model_names_and_the_usual_ones():
    named = SimpleNamespace(window=50, capacity=200, config=SimpleNamespace(block_size=77))
    assert edges_of(named) == [16, 32, 50, 64, 77, 128, 200, 256]
    short = SimpleNamespace(longest=20, window=None)
    assert lengths_of(short) == [20]
    assert isinstance(Ours(tiny_model()).longest, int)


@pytest.mark.release
@pytest.mark.parametrize(("longest", "read"), [(330, 330), (700, 700), (2000, 330)])
def test_texts_are_as_long_as_the_model_where_that_is_not_far(longest, read):
    class Far(Tiny):
        pass

    Far.longest = longest
    report = referee(Far(), seconds=math.inf, requests=1)
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

    report = referee(Late(), seconds=math.inf, requests=1)
    assert report.verdict == "bug"
    assert report.bugs[0].position > 500
