"""Adapters of notebooks/adapters: a sound cache is acquitted, a broken one is convicted."""

import ast
import importlib

import other_styles
import pytest
import torch
from for_gpt_fast import Adapter as FastAdapter
from rows import quick

from nanogpt.files import ROOT
from nanogpt.kv_referee import NotOffered, referee
from nanogpt.kv_referee.contract import Model, TokenMeter

FOLDER = ROOT / "notebooks" / "adapters"
QUICK = {"tokens": 0}

# ------------------------------------------------------------------ one small model of each library


def of_transformers():
    transformers = pytest.importorskip("transformers")
    sizes = {"vocab_size": 40, "hidden_size": 16, "intermediate_size": 16}
    sizes |= {"num_hidden_layers": 2, "num_attention_heads": 2, "max_position_embeddings": 64}
    return transformers.LlamaForCausalLM(transformers.LlamaConfig(**sizes))


def of_x_transformers():
    library = pytest.importorskip("x_transformers")
    layers = library.Decoder(dim=16, depth=2, heads=2, attn_dim_head=8)
    return library.TransformerWrapper(num_tokens=40, max_seq_len=64, attn_layers=layers)


def of_litgpt():
    library = pytest.importorskip("litgpt.model")
    sizes = {"n_layer": 2, "n_head": 2, "n_query_groups": 1, "n_embd": 16}
    return library.GPT(library.Config(block_size=64, vocab_size=40, **sizes))


# Each: how the model is made, and what its adapter takes besides.
LIBRARIES = {
    "transformers": (of_transformers, ()),
    "x_transformers": (of_x_transformers, ()),
    "litgpt": (of_litgpt, ()),
    "nanochat": (other_styles.Chat, (other_styles.ChatCache,)),
    "gpt_fast": (other_styles.Fast, ()),
    "flex": (other_styles.Flex, ()),
}
# For a release: those whose import takes seconds, and FlexAttention without a compiler.
CASES = quick(LIBRARIES, "litgpt", "nanochat", "gpt_fast")


def adapter(library, **options):
    make, more = LIBRARIES[library]
    torch.manual_seed(1)
    model = make(**options).eval()
    name = "gpt_fast" if library == "flex" else library
    module = importlib.import_module(f"for_{name}")
    kind = module.FlexAdapter if library == "flex" else module.Adapter
    return kind(model, *more)


@pytest.mark.parametrize("library", CASES)
def test_a_sound_cache_is_acquitted_and_all_damages_are_detected(library):
    report = referee(adapter(library), **QUICK)
    assert report.verdict in ("equal", "rounding"), report
    assert [damage.name for damage in report.damages if not damage.seen] == []
    assert len(report.damages) >= 5


# ------------------------------------------------------------------ one break of each cache


def drafts_stay(monkeypatch):
    from transformers import DynamicCache

    monkeypatch.setattr(DynamicCache, "crop", lambda cache, n: None)


def values_keep_their_rows(monkeypatch):
    module = importlib.import_module("for_x_transformers")

    def keys_alone(cache, change):
        for layer in cache.attn_intermediates:
            k, v = layer.cached_kv
            layer.cached_kv = (change(k), v[: len(change(k))])

    monkeypatch.setattr(module, "modify_cached_kv", keys_alone)


def first_value_lost(monkeypatch):
    from litgpt.model import KVCache

    write = KVCache.forward

    def forward(cache, input_pos, k, v):
        k, v = write(cache, input_pos, k, v)
        cache.v[:, :, 0] = 0
        return k, v

    monkeypatch.setattr(KVCache, "forward", forward)


def smear_forgotten(monkeypatch):
    count = other_styles.ChatCache.advance

    def advance(cache, n):
        count(cache, n)
        cache.prev_embedding = None

    monkeypatch.setattr(other_styles.ChatCache, "advance", advance)


def one_value_of_a_chunk(monkeypatch):
    def update(cache, input_pos, k, v):
        cache.k_cache[:, :, input_pos] = k
        cache.v_cache[:, :, input_pos[-1]] = v[:, :, -1]
        return cache.k_cache, cache.v_cache

    monkeypatch.setattr(other_styles.FastCache, "update", update)


BREAKS = {
    "transformers": (drafts_stay, "drafts"),
    "x_transformers": (values_keep_their_rows, "beams"),
    "litgpt": (first_value_lost, "a prompt of 12, then single tokens"),
    "nanochat": (smear_forgotten, "a prompt of 12, then single tokens"),
    "gpt_fast": (one_value_of_a_chunk, "pieces of 5, 1, 2, 3 and 13 tokens"),
    "flex": (one_value_of_a_chunk, "pieces of 5, 1, 2, 3 and 13 tokens"),
}


@pytest.mark.parametrize("library", CASES)
def test_a_broken_cache_is_convicted(library, monkeypatch):
    given = adapter(library)
    damage, way = BREAKS[library]
    damage(monkeypatch)
    report = referee(given, **QUICK)
    assert report.verdict == "bug", report
    assert any(way in finding.way for finding in report.bugs), report


# ------------------------------------------------------------------ what is particular


def test_zero_initialisation_leaves_the_verdict_open_and_names_the_weights():
    report = referee(adapter("nanochat", zero=True), **QUICK)
    assert report.verdict == "undecided"
    (finding,) = [finding for finding in report.findings if not finding.verdict.sound]
    assert "h.0.c_proj.weight" in finding.words
    assert "this test cannot fail" in finding.words


class InFloat32(other_styles.Fast):
    """It computes in float32 whatever the dtype of its weights."""

    def to(self, *arguments):
        return self


def test_a_copy_that_still_computes_in_float32_is_not_taken_for_float64():
    report = referee(FastAdapter(InFloat32().eval()), **QUICK)
    assert report.verdict in ("equal", "rounding"), report
    assert "a copy's logits are bit-identical to those in float32" in str(report)


def test_an_adapter_has_fifteen_lines_at_most():
    paths = sorted(FOLDER.glob("for_*.py"))
    assert len(paths) == 5
    for path in paths:
        lines = path.read_text(encoding="utf-8").splitlines()
        for node in ast.parse("\n".join(lines)).body:
            if isinstance(node, ast.ClassDef):
                code = [x for x in lines[node.lineno - 1 : node.end_lineno] if x.strip()]
                assert len(code) <= 15, (path.name, len(code))


def test_a_session_that_was_replaced_is_read_no_further():
    model = Model(adapter("gpt_fast"), TokenMeter())
    ids = torch.tensor([[3, 4]])
    first = model.start("its cache")
    first.read(ids)
    model.start("its cache").read(ids)
    with pytest.raises(NotOffered, match="a later session"):
        first.read(ids)
