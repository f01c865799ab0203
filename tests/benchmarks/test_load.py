"""Load: arrivals that are data, measures checked by hand, the same tokens under every scheme."""

import json
from collections import Counter
from math import inf

import pytest
import torch
from decoding_fixtures import build

from nanogpt.benchmarks import roofline
from nanogpt.benchmarks.arrivals import (
    LATENCIES,
    Reply,
    VirtualClock,
    Workload,
    drive,
    measures,
)
from nanogpt.benchmarks.load import SCHEMES, counted, fit, load, schemes
from nanogpt.benchmarks.roofline import Limits
from nanogpt.cli.bench_load import main
from nanogpt.serving.batch import BatchEngine
from nanogpt.serving.request import Request


def test_arrivals_are_drawn_from_a_seed_and_only_they_depend_on_the_rate():
    slow, fast, all_at_once = (Workload(400).requests(13, 64, rate) for rate in (2.0, 8.0, inf))
    for a, b, c in zip(slow, fast, all_at_once, strict=True):
        assert a.arrival == pytest.approx(4 * b.arrival)
        assert c.arrival == 0
        assert torch.equal(a.prompt, b.prompt)
        assert (a.max_new_tokens, a.seed) == (b.max_new_tokens, b.seed)
        assert len(a.prompt) + a.max_new_tokens - 1 <= 64
    assert slow[-1].arrival / 400 == pytest.approx(1 / 2, rel=0.1)
    beginnings = Counter(tuple(r.prompt[:4].tolist()) for r in slow)
    assert 160 < beginnings.most_common(1)[0][1] < 240, "about half begin alike"


def test_measures_are_those_of_the_definitions():
    requests = [Request(torch.zeros(1, dtype=torch.long), n, arrival=n, id=n) for n in (1, 3)]
    replies = {1: Reply([0], [1.5]), 3: Reply([0, 0, 0], [4.0, 4.5, 6.0])}
    got = measures(requests, replies, {"ttft": 0.5, "tpot": 2.0})
    assert got["tokens_per_second"] == 4 / 6
    assert got["goodput"] == 1 / 6  # the second waited for 1 s
    assert got["tpot_p50"] == got["tpot_p95"] == 1.0  # one token has none
    assert (got["itl_p50"], got["e2el_p50"]) == (1.0, (0.5 + 3.0) / 2)
    assert got["ttft_p95"] == pytest.approx(0.5 + 0.95 * 0.5)
    one = measures(requests[:1], {1: Reply([0], [1.5])}, {"tpot": 1.0})
    assert (one["goodput"], one["tpot_p50"], one["itl_p95"]) == (1 / 1.5, None, None)
    five = {3: Reply(list("abcde"), [4.0, 6.0])}  # several tokens in one event count as tokens
    got = measures(requests[1:], five, {})
    assert (got["tokens_per_second"], got["tpot_p50"], got["itl_p50"]) == (5 / 6, 0.5, 2.0)


class StepClock(VirtualClock):
    """A clock on which a step takes one second, and nothing else takes any."""

    def run(self, work):
        self.seconds += getattr(work, "__name__", "") == "step"
        return work()


def moments(static_batch, lengths, arrivals):
    requests = [
        Request(torch.tensor([i]), n, arrival=at, id=i)
        for i, (n, at) in enumerate(zip(lengths, arrivals, strict=True))
    ]
    engine = BatchEngine(build(), max_running=2)
    replies = drive(engine, requests, StepClock(), static_batch)
    engine.audit()
    return [own for _, own in replies.values()]


def test_a_free_place_is_taken_at_once_or_when_the_batch_has_ended():
    lengths, arrivals = [1, 4, 2], [0.0, 0.0, 0.5]
    assert moments(None, lengths, arrivals) == [[1], [1, 2, 3, 4], [2, 3]]
    assert moments(2, lengths, arrivals) == [[1], [1, 2, 3, 4], [5, 6]]


def test_a_virtual_clock_skips_the_time_in_which_nothing_is_asked():
    assert moments(None, [2, 1], [0.0, 1000.0]) == [[1, 2], [1001]]


def test_steps_that_lie_on_a_line_are_fitted_and_replayed_to_the_second():
    line = {"start": 2.0, "decode": 0.25, "prefill": 0.5}
    texts = [torch.tensor(text) for text in ([0], [0, 1, 2], [0, 1, 1], [0, 0, 0, 0])]
    rows = [(1.0, *counted(text)) for text in texts]
    assert rows == [(1, 1, 0), (1, 3, 0), (1, 1, 2), (1, 0, 4)]
    taken = [sum(a * b for a, b in zip(row, line.values(), strict=True)) for row in rows]
    steps = torch.tensor([(*row, t) for row, t in zip(rows, taken, strict=True)]).double()
    assert fit([steps[:2], steps[2:]]) == pytest.approx(line)
    cheap = torch.tensor([(1, 1, 0, 2.0), (1, 2, 0, 1.0)]).double()  # two texts for less than one
    assert fit([cheap]) == pytest.approx({"start": 1.5, "decode": 0.0, "prefill": 0.0})
    asked = [Request(torch.tensor([1, 2]), n, arrival=0.0, seed=0, id=n) for n in (1, 3)]
    replies = schemes(build())["continuous"](asked, line)
    first = 2 + 4 * 0.5  # two prompts of two tokens
    assert replies[1].moments == [first]
    assert replies[3].moments == [first, first + 2.25, first + 4.5]


@pytest.fixture
def machine(monkeypatch):
    """Limits of the machine that take no time to measure: 1 GB/s and 1 TFLOP/s."""
    monkeypatch.setattr(roofline, "read_bandwidth", lambda *_, **__: {"median": 1e9})
    monkeypatch.setattr(roofline, "peak_arithmetic", lambda **_: {"median": 1e12})


def test_every_scheme_gives_the_same_tokens():
    workload = Workload(n=4, seed=3)
    systems = schemes(build(), running=4, budget=8)
    sizes = {"vocab_size": 13, "block_size": 32}
    result = load(systems, [500.0, inf], workload=workload, repeats=1, **sizes)
    rows = result["rows"]
    assert [row["scheme"] for row in rows] == 2 * list(SCHEMES)
    assert [row["rate"] for row in rows] == 5 * [500.0] + 5 * [None]
    assert all(row["differ"] == 0 and row["ratio"]["n"] == 1 for row in rows)
    assert all(row[f"{key}_p95"]["median"] > 0 for row in rows for key in LATENCIES)
    replayed = [(row["rate"], row["scheme"]) for row in result["simulated"]]
    assert replayed == [(row["rate"], row["scheme"]) for row in rows]


def test_the_bound_is_that_of_the_tokens_read_and_of_the_keys_and_values_before_each(machine):
    model, workload = build(), Workload(n=4, seed=3)
    sizes = {"vocab_size": 13, "block_size": 32, "workload": workload, "repeats": 1}
    result = load(schemes(model, running=4, budget=8), [inf], machine=Limits(model), **sizes)
    asked, c = workload.requests(13, 32, inf), model.config
    drawn = sum(r.max_new_tokens for r in asked)
    read = sum(len(r.prompt) + r.max_new_tokens - 1 for r in asked)
    kv = sum(len(r.prompt) + i for r in asked for i in range(1, r.max_new_tokens)) * c.cache_bytes(
        1
    )
    rows = {row["scheme"]: row for row in result["bounds"]["rows"]}
    assert list(rows) == list(SCHEMES)
    least = (2 * c.matrix_weights * read / 1e12 + kv / 1e9) / drawn
    for name in ("one at a time", "continuous", "chunked prefill"):
        assert rows[name]["read"] == pytest.approx(read / drawn)
        assert rows[name]["least"] == pytest.approx(least)
    assert rows["prefix reuse"]["read"] <= read / drawn <= rows["static batches"]["read"]
    assert all(row["taken"] > 0 for row in rows.values())


def test_the_command_writes_what_it_prints(tmp_path, capsys, machine):
    path = tmp_path / "load.json"
    words = "--size article --rates inf --requests 1 --repeats 1 --backend modules"
    assert main([*words.split(), "--json", str(path)]) == 0
    printed, written = capsys.readouterr().out, json.loads(path.read_text())
    for said in ("1 request,", "block 32", "modules, float32", "timed once", "1 thread", "bound"):
        assert said in printed
    assert written["limits"] == {"ttft": 0.5, "tpot": 0.05}
    assert all(row["scheme"] in printed for row in written["rows"])
    assert list(tmp_path.iterdir()) == [path]


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ("--url http://127.0.0.1:1", "no server answers at http://127.0.0.1:1"),
        ("--url 127.0.0.1", "'http://'"),
        ("--url http://127.0.0.1:x", "Invalid port"),
        ("--url http://127.0.0.1:1 --backend native", "leave --backend out"),
    ],
)
def test_bad_options_are_refused_before_the_measuring(words, said, capsys, tmp_path):
    path = tmp_path / "load.json"
    assert main([*words.split(), "--size", "article", "--json", str(path)]) == 2
    assert said in capsys.readouterr().err
    assert not path.exists()
