"""What speculation buys: rows that add up, refusals before the measuring, figures that ship."""

import json

import pytest
import torch
from checkpoint_fixtures import meta_of
from conftest import seeded
from decoding_fixtures import V, build, text
from draft_fixtures import Wrong
from shapes import model_of

from nanogpt.bench import speculation
from nanogpt.bench.reports import losses_text
from nanogpt.bench.speculation import pass_seconds, usual_drafts
from nanogpt.bench.training import published
from nanogpt.cli import main
from nanogpt.data import CharTokenizer, load_corpus
from nanogpt.decoder.checkpoint import save_checkpoint
from nanogpt.engines.decoder_library import decoder_library
from nanogpt.engines.drafts import DraftModel, NGram
from nanogpt.engines.generation import complete
from nanogpt.training.recipes import MODERN

FLOAT = torch.float32


def test_rows_say_what_was_decoded():
    model = build(FLOAT)
    start = torch.zeros(1, 1, dtype=torch.long)
    first = complete(model, start, 16, generator=seeded(43))  # of the first counted repeat
    drafts = {"itself": lambda k: DraftModel(model, k), "wrong": lambda k: Wrong(first, V, k)}
    result = speculation.speculation(model, drafts, [1, 3], n_new=16, repeats=2)
    rows = result["rows"]
    ways = [("itself", 1), ("itself", 3), ("wrong", 1), ("wrong", 3)]
    assert [(row["draft"], row["k"]) for row in rows] == ways
    assert all(row["equal"] for row in rows)
    for row, n in zip(rows, (2, 4), strict=False):
        assert (row["tokens_per_pass"], row["acceptance_rate"], row["predicted"]) == (n, 1, n)
    assert rows[2]["acceptance_rate"] < 0.5
    assert all(row["speedup"]["n"] == row["tokens_per_second"]["n"] == 2 for row in rows)
    assert result["roofline"]["n"] == 2
    assert json.loads(json.dumps(result)) == result


def test_tokens_that_differ_are_reported(monkeypatch):
    model = build(FLOAT)
    other = build(FLOAT, 5)
    plain = speculation.generate

    def cheating(subject, *args, draft=None, **settings):
        return plain(other if draft else subject, *args, draft=draft, **settings)

    monkeypatch.setattr(speculation, "generate", cheating)
    result = speculation.speculation(
        model, {"a": lambda k: NGram(text(50)[0], V, 2, k)}, [2], n_new=16, repeats=2
    )
    assert not result["rows"][0]["equal"]


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ("--target /nowhere/model", "/nowhere/model"),
        ("--data /nowhere.txt", "/nowhere.txt"),
        ("--json /proc/nothing/x.json", "/proc/nothing"),
        ("--tokens 999", "--tokens 999: must be an integer in [2, 256]"),
        ("--k 3 255", "--k 255: must be an integer in [1, 254]"),
    ],
)
def test_options_that_cannot_be_measured_are_refused(words, said, capsys):
    assert main(["bench", "speculate", *words.split()]) == 2
    assert said in capsys.readouterr().err


def saved(path, seed=3, **shape):
    """A random model of the corpus's characters, as a checkpoint of that path."""
    chars = CharTokenizer(load_corpus().text).chars
    sizes = {"vocab_size": len(chars), "block_size": 32, "n_layer": 1, "n_head": 2, "n_embd": 16}
    model = model_of(seeded(seed), **sizes, **shape)
    save_checkpoint(path, model, meta_of(model, vocabulary=chars))
    return path


@pytest.mark.parametrize("newer", [{}, MODERN], ids=["lecture", "modern"])
def test_the_command_prints_a_table_and_writes_it(newer, tmp_path, capsys):
    decoder_library()  # skipped without a compiler
    model = saved(tmp_path / "model", **newer)
    path = tmp_path / "s.json"
    words = "--k 3 --repeats 1 --tokens 24".split()
    files = ["--target", str(model), "--draft", str(model), "--json", str(path)]
    assert main(["bench", "speculate", *words, *files]) == 0
    printed = capsys.readouterr().out
    result = json.loads(path.read_text(encoding="utf-8"))
    drafts = [row["draft"] for row in result["rows"]]
    assert drafts[:3] == ["a GPT of 0.01M", "itself, in 8 bits", "a table for triples"]
    assert all(row["equal"] for row in result["rows"])
    assert result["rows"][0]["acceptance_rate"] == 1  # its draft is the model itself
    assert result["target"]["loss"] == result["draft"]["loss"] > 0
    assert all(part in printed for part in (*drafts, "equal", "roofline bound", "without a draft"))


@pytest.mark.parametrize(
    ("draft", "said"),
    [
        (None, "of the target 1.500"),
        (1.6, "of the target 1.500, of the draft 1.600"),
        (1.5, "predicts at least as well"),
        (1.4, "predicts at least as well"),
    ],
)
def test_a_draft_that_predicts_as_well_as_its_target_is_called_none(draft, said):
    text = losses_text({"loss": 1.5}, None if draft is None else {"loss": draft})
    assert text.endswith(said) or (said in text and text.endswith("choose a smaller draft"))


def test_the_published_figures_are_of_the_large_size_and_equal_tokens():
    result = published("speculate")
    assert result["corpus"] == "Tiny Shakespeare"
    assert result["n_params"] > 10_000_000
    assert result["target"]["loss"] < result["draft"]["loss"], "else it is no draft"
    assert all(row["equal"] for row in result["rows"])
    assert {"1", "4"} <= set(result["passes"])


def test_a_pass_is_timed_over_as_many_tokens_as_the_block_holds():
    for counts in ([1, 32], [0]):
        with pytest.raises(ValueError, match="tokens in one pass"):
            pass_seconds(build(FLOAT), counts)
    found = pass_seconds(build(FLOAT), [1, 31], repeats=3)
    assert set(found) == {1, 31}
    assert all(cost["n"] == 3 and cost["low"] > 0 for cost in found.values())


def test_a_vocabulary_too_large_for_triples_gets_the_table_that_fits():
    model = build(FLOAT, vocab_size=300, n_layer=1)
    assert "a table for pairs" in usual_drafts(model, torch.arange(300))
    assert "a table for triples" in usual_drafts(build(FLOAT), text(50)[0])
