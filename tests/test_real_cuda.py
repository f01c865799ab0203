"""What only a real GPU can show: kernels, their rounding, and how often the host waits for them.

The reference is the uncached loop in float64 on the same device: kernels of two devices, and of two
shapes, sum in other orders. tests/test_cuda.py checks the same promises on a pretended device.
"""

import warnings
from contextlib import contextmanager
from dataclasses import replace

import pytest
import torch
from checkpoint_fixtures import meta_of
from conftest import seeded, tokens
from pretrained_fixtures import write_folder
from server_fixtures import CHARS, expected, post
from shapes import COMBINED, DECODERS, SMALL, model_of
from training_fixtures import ctrl_c, fresh, stop_at, weights

from nanogpt import (
    Batched,
    Decoder,
    DecoderConfig,
    DraftModel,
    DynamicCache,
    Flat,
    Graph,
    GraphLoop,
    Native,
    NGram,
    PagedCache,
    PerHead,
    PromptLookup,
    Request,
    RollingCache,
    StaticCache,
    Uncached,
    compare,
    complete,
    exact,
    generate,
    load_checkpoint,
    load_pretrained,
    referee,
    save_checkpoint,
    serve,
)
from nanogpt.bench.ladder import ladder
from nanogpt.caches.int8 import Int8Cache
from nanogpt.cli import main
from nanogpt.device import pick_device
from nanogpt.sampling import PLAIN, SamplingParams
from nanogpt.serving.http import listening
from nanogpt.serving.server import Server
from nanogpt.training.loop import train
from nanogpt.training.recipes import TrainConfig

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA GPU"),
    pytest.mark.filterwarnings("ignore:(Native|Compiled) cannot be built"),
]
GPU = "cuda"
N_NEW = 20
SAMPLING = [
    PLAIN,
    SamplingParams(greedy=True),
    SamplingParams(temperature=0.7, top_k=5),
    SamplingParams(top_p=0.8),
]
CACHES = [DynamicCache, StaticCache, PagedCache, Int8Cache, RollingCache]
ENGINES = [Uncached, PerHead, Batched, Flat, Graph, GraphLoop, Native]
WAYS = {kind.__name__: {"cache": kind} for kind in CACHES}
WAYS |= {kind.__name__: {"engine": kind} for kind in ENGINES}
WINDOWED = "window=5"


def decoder(row: str, dtype=torch.float64) -> Decoder:
    """A model with large weights, whose tokens depend on every part of it."""
    model = Decoder(DecoderConfig(**SMALL | DECODERS[row]), generator=seeded(3)).to(dtype).eval()
    with torch.no_grad():
        for weight in model.parameters():
            if weight.ndim == 2:
                weight.mul_(4)
    return model.to(GPU)


def text(model, T=9, batch=2, seed=0) -> torch.Tensor:
    return tokens(batch, T, vocab=model.config.vocab_size, seed=seed).to(GPU)


@contextmanager
def counted_waits():
    """A list of warnings, one for each time the host waits for the device."""
    with warnings.catch_warnings(record=True) as found:
        warnings.simplefilter("always")
        torch.cuda.set_sync_debug_mode("warn")
        try:
            yield found
        finally:
            torch.cuda.set_sync_debug_mode("default")
    found[:] = [warning for warning in found if "synchronizing" in str(warning.message)]


# ------------------------------------------------------------------ decoding


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("row", [*COMBINED, WINDOWED, "plain", "the lecture's"])
def test_every_path_gives_the_uncached_tokens(row, way):
    if row == "the lecture's":
        model = model_of(seeded(3), **SMALL).double().to(GPU).eval()
    else:
        model = decoder(row)
    if way == "RollingCache" and not getattr(model.config, "window", None):
        pytest.skip("a ring is for windows")
    kwargs = WAYS[way]
    refusal = "engine" in kwargs and kwargs["engine"].refuses_model(model)
    if refusal:
        pytest.skip(str(refusal))
    if way in ("Graph", "GraphLoop", "Flat", "Native", "Int8Cache"):
        model = model.float()  # the types that they compute
    for sampling in SAMPLING:
        ids = text(model)
        reference = None if way != "Int8Cache" else {"cache": Int8Cache}
        if reference:
            # A lossy cache is compared with itself on the CPU.
            there = complete(model.cpu(), ids.cpu(), N_NEW, sampling, generator=seeded(1), **kwargs)
            model.to(GPU)
        else:
            there = complete(model, ids, N_NEW, sampling, generator=seeded(1), cache=None)
        found = complete(model, ids, N_NEW, sampling, generator=seeded(1), **kwargs)
        assert found.is_cuda
        assert torch.equal(found.cpu(), there.cpu()), sampling


@pytest.mark.parametrize("way", [way for way in WAYS if way not in ("Uncached", "RollingCache")])
def test_the_host_waits_once_for_a_text(way):
    model = decoder("plain", torch.float32)
    ids = text(model)
    for sampling in SAMPLING:
        list(generate(model, ids, N_NEW, sampling, generator=seeded(1), **WAYS[way]))  # built once
        with counted_waits() as waits:
            list(generate(model, ids, N_NEW, sampling, generator=seeded(1), **WAYS[way]))
        assert len(waits) <= 2, [(w.filename, w.lineno) for w in waits]


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
@pytest.mark.parametrize("batch", [1, 3])
@pytest.mark.parametrize("row", ["plain", "Llama 3"])
def test_a_graph_runs_the_compiled_step(row, batch, dtype):
    model = decoder(row, dtype)
    graph = GraphLoop(model.config, batch=batch, dtype=dtype, device=GPU)
    complete(model, text(model, batch=batch), N_NEW, engine=graph, generator=seeded(1))
    assert graph.proven
    assert graph.is_compiled, "torch.compile failed, or its logits were wrong"


DRAFTS = {
    "table": lambda model: NGram(tokens(200), 13, 2, 3),
    "look-up": lambda model: PromptLookup(2, 3),
    "model": lambda model: DraftModel(decoder("plain", torch.float32), 3),
}


@pytest.mark.parametrize("how", ["StaticCache", "PagedCache", "Flat", "Graph"])
@pytest.mark.parametrize("draft", DRAFTS)
def test_speculation_gives_the_same_tokens(draft, how):
    model = decoder("Llama 3", torch.float32)
    ids = text(model)
    plain = complete(model, ids, N_NEW, cache=None, generator=seeded(1))
    proposes = DRAFTS[draft](model)
    found = complete(model, ids, N_NEW, draft=proposes, generator=seeded(1), **WAYS[how])
    assert torch.equal(found, plain)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64])
@pytest.mark.parametrize("row", ["plain", "Llama 3", "the keeper"])
def test_exact_mode_gives_equal_logits(row, dtype):
    """At any length of a chunk, to the last bit."""
    model = decoder(row, dtype)
    with exact(model):
        report = compare(model, text(model, batch=1), N_NEW, a=None, b=StaticCache)
    assert (report.equal, report.max_logit_diff) == (True, 0)


# ------------------------------------------------------------------ training

RECIPE = TrainConfig(steps=12, batch_size=4, eval_every=4, eval_batches=1, warmup=3)
CHANGES = [{}, {"muon_lr": None, "fused": True}, {"accumulate": 2}]


@pytest.mark.parametrize("change", CHANGES, ids=str)
@pytest.mark.parametrize("packed", [False, True])
def test_training_lowers_the_loss_and_never_waits_for_a_step(corpus, packed, change):
    recipe = replace(RECIPE, **change)
    model = fresh(corpus, not packed).to(GPU)
    train(model, corpus, recipe)  # what is made once
    with counted_waits() as waits:
        history = train(model, corpus, recipe)
    assert history["val"][-1] < history["val"][0]
    evaluations = recipe.steps // recipe.eval_every + 1
    assert len(waits) <= 4 * evaluations + 4, [(w.filename, w.lineno) for w in waits]


def test_a_float32_run_there_is_nearly_that_of_the_cpu(corpus):
    here = fresh(corpus, dropout=0.0)
    there = fresh(corpus, dropout=0.0)
    ours = train(here, corpus, RECIPE, device=pick_device("cpu"))
    device = replace(pick_device(GPU), dtype=torch.float32)
    theirs = train(there, corpus, RECIPE, device=device)
    assert theirs["batch_loss"] == pytest.approx(ours["batch_loss"], abs=1e-3)


def test_a_stopped_run_resumes_to_the_same_bits(corpus, tmp_path, monkeypatch):
    whole = fresh(corpus)
    train(whole, corpus, RECIPE)
    with monkeypatch.context() as patch:
        stop_at(patch, 6, ctrl_c)
        with pytest.raises(KeyboardInterrupt, match="resume=True"):
            train(fresh(corpus), corpus, RECIPE, out=tmp_path / "run")
    resumed = fresh(corpus)
    train(resumed, corpus, RECIPE, out=tmp_path / "run", resume=True)
    assert torch.equal(weights(whole).cpu(), weights(resumed).cpu())


def test_a_checkpoint_made_there_loads_anywhere(corpus, tmp_path):
    model = decoder("the keeper", torch.float32)
    save_checkpoint(tmp_path / "model", model, meta_of(model))
    loaded = load_checkpoint(tmp_path / "model").model
    ids = text(model)
    ours = complete(model, ids, 9, SamplingParams(greedy=True))
    assert torch.equal(complete(loaded, ids.cpu(), 9, SamplingParams(greedy=True)), ours.cpu())


# ------------------------------------------------------------------ what stands on it


@pytest.mark.parametrize("row", ["plain", "the keeper", "Llama 3"])
def test_requests_that_share_a_batch_get_the_tokens_that_they_get_alone(row):
    model = decoder(row)
    requests = []
    for i in range(6):
        ids = text(model, T=3 + i, batch=1, seed=i)[0]
        requests.append(Request(ids.cpu(), 8, SAMPLING[i % len(SAMPLING)], i, id=i))
    found = {request.id: [] for request in requests}
    for output in serve(model, requests, max_running=4, budget=5):
        found[output.request.id].append(output.token)
    for request in requests:
        ids = request.prompt[None].to(GPU)
        alone = complete(model, ids, 8, request.sampling, generator=seeded(request.seed))
        assert found[request.id] == alone[0, ids.shape[1] :].tolist()


def test_a_server_answers_from_there():
    model = model_of(seeded(3), vocab_size=13, block_size=40, n_layer=2, n_head=2, n_embd=16)
    model = model.to(GPU).eval()
    with listening(Server(model, CHARS)) as url:
        status, body = post(url, prompt="abc", max_tokens=9, seed=1)
    assert status == 200, body
    assert body["choices"][0]["text"] == expected(model.cpu(), "abc", 9, seed=1)


@pytest.mark.parametrize("row", ["plain", WINDOWED, "Llama 3"])
def test_the_referee_finds_the_caches_sound(row):
    report = referee(decoder(row, torch.float32), seconds=8)
    assert report.verdict.sound, str(report)


@pytest.mark.parametrize("name", ["llama", "gpt2"])
def test_a_pretrained_folder_runs_there(tmp_path, name):
    model, _ = load_pretrained(write_folder(tmp_path / "model", name))
    ids = tokens(1, 9, vocab=300)
    ours = complete(model, ids, 20, SamplingParams(greedy=True))
    for way in ("StaticCache", "Graph", "GraphLoop"):
        found = complete(model.to(GPU), ids.to(GPU), 20, SamplingParams(greedy=True), **WAYS[way])
        assert torch.equal(found.cpu(), ours)


def test_the_ladder_runs_there():
    result = ladder(decoder("plain", torch.float32), n_new=20, repeats=2)
    assert [row["rung"] for row in result["rungs"]] == list("123456")
    assert all(row["equal"] for row in result["rungs"])


COMMANDS = {
    "generate": ["generate", "--max-new-tokens", "40"],
    "train": ["train", "--steps", "6", "--device", GPU, "--out", "mine"],
    "bench ladder": ["bench", "ladder", "--device", GPU, "--tokens", "20", "--repeats", "2"],
    "bench ladder, bfloat16": ["bench", "ladder", "--device", GPU, "--tokens", "20"]
    + ["--repeats", "2", "--dtype", "bfloat16"],
    "bench gain": ["bench", "gain", "--device", GPU, "--size", "article", "--batch", "1", "4"]
    + ["--lengths", "1", "16", "--repeats", "2"],
    "bench load": ["bench", "load", "--device", GPU],
}


@pytest.mark.parametrize("command", COMMANDS)
def test_the_commands_run_there(command, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    assert main(COMMANDS[command]) == 0, capsys.readouterr().err
