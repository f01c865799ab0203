"""Native code on several threads: the bits of one thread, and nobody waits for ever."""

import functools
import os
import subprocess
import sys
import threading

import pytest
import torch
from conftest import seeded
from decoder_fixtures import random_weights
from native_fixtures import logits_in_three_ways, text_of
from serving_fixtures import Watched, run
from shapes import COMBINED, DECODERS, SMALL, model_of

from nanogpt import DraftModel, Native, Native8, Request, SamplingParams, complete
from nanogpt.decoder.config import DecoderConfig
from nanogpt.engines.decoder_library import Packed, decoder_library
from nanogpt.engines.toolchain import CannotBuild
from nanogpt.serving.native_steps import NativeBackend

pytestmark = pytest.mark.slow
THREADS = (2, 3, 5)
# Texts of which a prefill is split into several blocks of queries.
LONG = {"block_size": 64}


@pytest.fixture(autouse=True)
def everything_is_shared():
    """However little it is."""
    try:
        lib = decoder_library()
    except CannotBuild as error:
        pytest.skip(str(error))
    least = lib.set_least_work(0)
    before = torch.get_num_threads()
    yield
    lib.set_least_work(least)
    torch.set_num_threads(before)


@functools.cache
def packed_decoder(row: str, bits: int) -> Packed:
    c = DecoderConfig(**SMALL | DECODERS[row] | LONG)
    packed = Packed(c, bits)
    packed.pack(random_weights(c))
    return packed


def logits_on(threads: int, row: str, bits: int) -> list[torch.Tensor]:
    packed = packed_decoder(row, bits)
    text, other = text_of(packed.config, 60).tolist(), text_of(packed.config, 21, 2).tolist()
    return list(logits_in_three_ways(packed, text, other, threads=threads))


@pytest.mark.parametrize("bits", [32, 8])
@pytest.mark.parametrize("row", ["plain", "head_dim=5 n_embd=30", *COMBINED])
def test_any_number_of_threads_gives_the_same_bits(row, bits):
    """Token by token, in one prefill, and in chunks beside another text."""
    expected = logits_on(1, row, bits)
    for threads in THREADS:
        got = logits_on(threads, row, bits)
        assert all(map(torch.equal, got, expected)), threads


def test_more_threads_than_there_is_work():
    expected = logits_on(1, "plain", 32)
    assert all(map(torch.equal, logits_on(64, "plain", 32), expected))
    assert all(map(torch.equal, logits_on(10**6, "plain", 32), expected))


def texts_on(threads: int, row: str, engine: type[Native], **how) -> torch.Tensor:
    torch.set_num_threads(threads)
    model = model_of(seeded(3), packed=True, **SMALL | DECODERS[row])
    prompt = torch.randint(model.config.vocab_size, (5, 9), generator=seeded(5))
    return complete(model, prompt, 25, engine=engine, generator=seeded(6), **how)


@pytest.mark.parametrize("engine", [Native, Native8])
def test_a_generation_on_torchs_threads_gives_the_same_tokens(engine):
    draft = DraftModel(model_of(seeded(8), packed=True, **SMALL | {"n_layer": 1}), k=3)
    ways = [{}, {"sampling": SamplingParams(1.3, top_k=9, top_p=0.9)}, {"draft": draft}]
    for how in ways:
        expected = texts_on(1, "Llama 3", engine, **how)
        for threads in THREADS:
            assert torch.equal(texts_on(threads, "Llama 3", engine, **how), expected)


def served_on(threads: int, row: str) -> dict[int, torch.Tensor]:
    torch.set_num_threads(threads)
    model = model_of(seeded(3), packed=True, **SMALL | DECODERS[row])
    engine = Watched(model, backend=NativeBackend, block_len=5, budget=19)
    lengths = (25, 1, 16, 17, 5, 23)
    requests = [Request(text_of(model.config, n, n), 9, seed=n, id=n) for n in lengths]
    run(engine, {0: requests}, {})
    return {name: torch.stack(rows) for name, rows in engine.logits.items()}


@pytest.mark.parametrize("row", ["plain", "Llama 3", "all at once"])
def test_serving_on_torchs_threads_gives_the_same_bits(row):
    expected = served_on(1, row)
    for threads in THREADS:
        got = served_on(threads, row)
        assert got.keys() == expected.keys()
        assert all(torch.equal(got[name], expected[name]) for name in expected)


@pytest.mark.parametrize("threads", THREADS)
def test_calls_at_the_same_time_each_give_the_same_bits(threads):
    """One has the pool, the other computes alone."""
    rows = ("plain", "Llama 3", "all at once")
    expected = {row: logits_on(1, row, 32) for row in rows}
    wrong = []

    def work(row: str) -> None:
        for _ in range(5):
            if not all(map(torch.equal, logits_on(threads, row, 32), expected[row])):
                wrong.append(row)

    workers = [threading.Thread(target=work, args=(row,)) for row in rows]
    [worker.start() for worker in workers]
    [worker.join() for worker in workers]
    assert not wrong


@pytest.mark.skipif(not hasattr(os, "fork"), reason="this system does not fork")
@pytest.mark.filterwarnings("ignore:.*use of fork:DeprecationWarning")
def test_a_forked_process_has_threads_of_its_own():
    expected = logits_on(3, "plain", 32)
    child = os.fork()
    if not child:
        same = all(map(torch.equal, logits_on(3, "plain", 32), expected))
        os._exit(0 if same else 1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    assert all(map(torch.equal, logits_on(3, "plain", 32), expected))


ENDS = {
    "the main thread returns": "decode()",
    "another thread is in native code": """
import threading
started = threading.Event()
numbers = torch.zeros(1 << 20)
def work():
    while True:
        lib.are_numbers(numbers.data_ptr(), numbers.numel(), 3)
        started.set()
threading.Thread(target=work, daemon=True).start()
started.wait()""",
    "a signal arrives": """
import os, signal
decode()
try:
    os.kill(os.getpid(), signal.SIGINT)
    while True:
        decode()
except KeyboardInterrupt:
    pass""",
}


@pytest.mark.parametrize("end", ENDS)
def test_a_process_ends_with_its_pool(end):
    setup = """
import torch
from nanogpt import Decoder, DecoderConfig, Native, complete
from nanogpt.engines.decoder_library import decoder_library
lib = decoder_library()
lib.set_least_work(0)
torch.set_num_threads(3)
model = Decoder(DecoderConfig(vocab_size=13, block_size=40, n_layer=2, n_head=4, n_embd=32))
engine = Native(model.config)
def decode():
    complete(model, torch.zeros(1, 5, dtype=torch.int64), 20, engine=engine)
"""
    command = [sys.executable, "-c", setup + ENDS[end]]
    done = subprocess.run(command, capture_output=True, encoding="utf-8")
    assert (done.returncode, done.stderr) == (0, "")


# ------------------------------------------------------------------ the start of a session


@pytest.mark.parametrize("bits", [32, 8])
@pytest.mark.parametrize("gated", [True, False])
def test_threads_pack_the_same_bytes(bits, gated):
    c = DecoderConfig(**SMALL | {"gated": gated, "ffn_dim": 150, "activation": "silu"})
    weights = random_weights(c)
    kept = []
    for threads in (1, *THREADS):
        torch.set_num_threads(threads)
        packed = Packed(c, bits)
        packed.pack(weights)
        kept.append((packed.fingerprints, packed.memory))
    for fingerprints, memory in kept[1:]:
        assert fingerprints == kept[0][0]
        assert all(map(torch.equal, memory, kept[0][1]))


@pytest.mark.parametrize("n", [1 << 18, (1 << 20) + 77, 3 << 20])
def test_threads_find_the_same_fingerprint_and_every_nan(n):
    lib = decoder_library()
    numbers = torch.randn(n, generator=seeded(1))
    where = numbers.data_ptr()
    prints = {lib.fingerprint_of(where, 4 * n, threads) for threads in (1, *THREADS)}
    assert len(prints) == 1
    for i in (0, n // 3, n // 2, n - 1):
        kept = numbers[i].item()
        numbers[i] = torch.nan
        assert not any(lib.are_numbers(where, n, threads) for threads in (1, *THREADS))
        prints.add(lib.fingerprint_of(where, 4 * n, 3))
        numbers[i] = kept
        assert all(lib.are_numbers(where, n, threads) for threads in (1, *THREADS))
    assert len(prints) == 5
