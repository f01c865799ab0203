"""Load: arrivals that are data, measures checked by hand, the same tokens under every scheme."""

import json
import time
from collections import Counter
from math import inf

import pytest
import torch
from decoding_fixtures import build
from shapes import label

from nanogpt.bench import under_load
from nanogpt.bench.arrivals import poisson
from nanogpt.bench.load import load
from nanogpt.bench.replies import LATENCIES, Reply, measures
from nanogpt.bench.schemes import SCHEMES, bound, drive, schemes
from nanogpt.cli import main
from nanogpt.serving.batch import BatchEngine
from nanogpt.serving.sequence import Request


def test_arrivals_are_drawn_from_a_seed_and_only_they_depend_on_the_rate():
    slow, fast, all_at_once = (poisson(400, rate, 13, 64) for rate in (2.0, 8.0, inf))
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


def moments(monkeypatch, static_batch, lengths, arrivals):
    """On a clock on which a step takes one second, and nothing else takes any."""
    requests = [
        Request(torch.tensor([i]), n, arrival=at, id=i)
        for i, (n, at) in enumerate(zip(lengths, arrivals, strict=True))
    ]
    engine = BatchEngine(build(), max_running=2)
    steps = []
    step = engine.step
    monkeypatch.setattr(engine, "step", lambda: steps.append(1) or step())
    monkeypatch.setattr(time, "perf_counter", lambda: len(steps))
    replies = drive(engine, requests, static_batch)
    engine.audit()
    return [reply.moments for reply in replies.values()]


def test_a_free_place_is_taken_at_once_or_when_the_batch_has_ended(monkeypatch):
    lengths = [1, 4, 2]
    arrivals = [0.0, 0.0, 0.5]
    assert moments(monkeypatch, None, lengths, arrivals) == [[1], [1, 2, 3, 4], [2, 3]]
    assert moments(monkeypatch, 2, lengths, arrivals) == [[1], [1, 2, 3, 4], [5, 6]]


def test_a_virtual_clock_skips_the_time_in_which_nothing_is_asked(monkeypatch):
    assert moments(monkeypatch, None, [2, 1], [0.0, 1000.0]) == [[1, 2], [1001]]


def test_every_scheme_gives_the_same_tokens():
    systems = schemes(build(), running=4)
    rows = load(systems, [500.0, inf], n=4, vocab_size=13, block_size=32, repeats=1)
    assert [row["scheme"] for row in rows] == 2 * list(SCHEMES)
    assert [row["rate"] for row in rows] == 5 * [500.0] + 5 * [None]
    assert all(row["differ"] == 0 and row["ratio"]["n"] == 1 for row in rows)
    assert all(row[f"{key}_p95"]["median"] > 0 for row in rows for key in LATENCIES)


@pytest.mark.parametrize("fields", [{}, {"n_kv_head": 1}, {"window": 5, "sinks": 2}], ids=label)
def test_the_bound_counts_tokens_read_and_the_keys_and_values_that_each_sees(fields):
    config = build(**fields).config
    requests = poisson(4, inf, 13, 32)
    read = sum(len(r.prompt) + r.max_new_tokens - 1 for r in requests)
    lengths = [len(r.prompt) + i for r in requests for i in range(1, r.max_new_tokens)]
    seen = sum(min(n, 7) if fields.get("window") else n for n in lengths)
    seconds = 2 * config.matrix_weights * read / 1e12 + seen * config.cache_bytes(1) / 1e9
    drawn = sum(r.max_new_tokens for r in requests)
    assert bound(config, requests, 1e12, 1e9) == pytest.approx(drawn / seconds)


def test_the_command_writes_what_it_prints(tmp_path, capsys, monkeypatch):
    monkeypatch.setattr(under_load, "choose_backend", lambda model: ("modules", ""))
    path = tmp_path / "load.json"
    words = "--size article --rates inf --requests 1 --repeats 1"
    assert main(["bench", "load", *words.split(), "--json", str(path)]) == 0
    printed = capsys.readouterr().out
    written = json.loads(path.read_text(encoding="utf-8"))
    for said in (
        "1 request ",
        "up to 32 tokens",
        "modules",
        "timed once",
        "1 thread",
        "all at once",
    ):
        assert said in printed
    assert written["limits"] == {"ttft": 0.5, "tpot": 0.05}
    assert all(row["scheme"] in printed for row in written["rows"])
    assert list(tmp_path.iterdir()) == [path]


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ("--url http://127.0.0.1:1", "no server answers at http://127.0.0.1:1"),
        ("--rates 5 0", "--rates 0.0: must be a number"),
        ("--url http://127.0.0.1:x", "nonnumeric port: 'x'"),
    ],
)
def test_bad_options_are_refused_before_the_measuring(words, said, capsys, tmp_path):
    path = tmp_path / "load.json"
    assert main(["bench", "load", *words.split(), "--size", "article", "--json", str(path)]) == 2
    assert said in capsys.readouterr().err
    assert not path.exists()
