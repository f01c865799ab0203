"""What all tests share: tiny models whose logits are far from flat, and one folder of builds.

At the default scale of the weights every next character is about as likely as any other, and a
wrong mask moves no token. Here the matrices are 25 times larger: half the entropy of a flat guess.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from hypothesis import settings
from shapes import config_of

from nanogpt import timing
from nanogpt.cache import DynamicCache, StaticCache, cache_owners
from nanogpt.config import GPTConfig
from nanogpt.data import CharTokenizer, Corpus
from nanogpt.decoder.pack import build_model, pack_heads
from nanogpt.engines.toolchain import CannotBuild, compiler
from nanogpt.files import sha256
from nanogpt.model import GPT, Head, LanguageModel

pytest_plugins = ["engine_fixtures", "fault_fixtures"]
torch.set_num_threads(1)
# What a developer's shell says must not reach a test: the terminal's width, settings of git, and
# code that was written as a reader.
os.environ |= {"COLUMNS": "80", "LINES": "24", "NANOGPT_HEADLESS": "1"}
os.environ |= {"GIT_CONFIG_GLOBAL": os.devnull, "GIT_CONFIG_NOSYSTEM": "1"}
for variable in (
    "NO_COLOR",
    "FORCE_COLOR",
    "MPLBACKEND",
    "GIT_DIR",
    "GIT_INDEX_FILE",
    "GIT_WORK_TREE",
):
    os.environ.pop(variable, None)
# A shell's background job ignores Ctrl-C, which is tested here.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)
settings.register_profile("nanogpt", deadline=None, max_examples=40, derandomize=True)
settings.load_profile("nanogpt")


@contextlib.contextmanager
def skipped_without_a_compiler():
    """What needs a C++ compiler is skipped on a machine that has none."""
    try:
        yield
    except CannotBuild as error:
        compiler.cache_clear()
        try:
            compiler()
        except CannotBuild:
            pytest.skip("no C++ compiler: apt-get install g++, or set CXX")
        raise error


@pytest.hookimpl(wrapper=True)
def pytest_pyfunc_call(pyfuncitem):
    """Lift a limit on files before pytest prints the result, which may go to a file too."""
    try:
        with skipped_without_a_compiler():
            return (yield)
    finally:
        disk = pyfuncitem.funcargs.get("disk")
        if disk:
            disk.clear()


@pytest.hookimpl(wrapper=True)
def pytest_fixture_setup():
    with skipped_without_a_compiler():
        return (yield)


DESIGNS = [None, DynamicCache, StaticCache]
CACHES = [DynamicCache, StaticCache]
FORMS = [True, False]  # per_head: a GPT, a Decoder


def name(value) -> str:
    """A short id for a parametrised case."""
    short = getattr(value, "__name__", str(value)).split(".")[-1]
    return {"True": "heads", "False": "batched"}.get(short, short)


def seeded(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def tokens(*shape: int, vocab: int = 13, seed: int = 0) -> torch.Tensor:
    return torch.randint(vocab, shape, generator=seeded(seed))


def tiny_model(per_head: bool = True, dtype=torch.float32, head=Head, **changes) -> LanguageModel:
    """A model of 2 layers and 2 heads in eval mode: a GPT, or a Decoder of the same weights.

    With changes that the lecture does not have it is a Decoder in any case.
    """
    sizes = {"vocab_size": 13, "block_size": 24, "n_layer": 2, "n_head": 2, "n_embd": 16}
    config = config_of(**(sizes | {"dropout": 0.2} | changes))
    lecture = isinstance(config, GPTConfig)
    model = GPT(config, head, seeded(7)) if lecture else build_model(config, seeded(7))
    with torch.no_grad():
        for parameter in model.parameters():
            drawn = 0.1 * torch.randn(parameter.shape, generator=seeded(8))
            parameter.copy_(25 * parameter if parameter.ndim == 2 else parameter + drawn)
    model = model.to(dtype).eval()
    return model if per_head or not lecture else pack_heads(model)


def count_updates(model: LanguageModel) -> list[int]:
    """Watch the caches that are on: the list gets one entry (rows given) for each update."""
    calls = []
    for owner in cache_owners(model):
        original = owner.cache.update

        def update(k, v, pos, original=original):
            calls.append(len(pos))
            return original(k, v, pos)

        owner.cache.update = update
    return calls


def has_cache(model: LanguageModel) -> bool:
    return any(module.__dict__.get("cache") is not None for module in model.modules())


def state_of(model: LanguageModel) -> dict:
    """What a generation must leave as it found it: every module's mode and cache."""
    return {key: (m.training, m.__dict__.get("cache")) for key, m in model.named_modules()}


@pytest.fixture(scope="session", autouse=True)
def builds(request, tmp_path_factory):
    """Builds are kept from run to run in pytest's cache: native code takes 14 s to compile.

    A build's name says what it was made of, so one of other sources, flags, or another compiler is
    never used; the process that needs one first makes it, and the others wait.
    """
    cache = getattr(request.config, "cache", None)  # None with `-p no:cacheprovider`
    folder = cache.mkdir("builds") if cache else tmp_path_factory.getbasetemp() / "builds"
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("NANOGPT_CACHE", str(folder))
        patch.delenv("PYTHONDONTWRITEBYTECODE", raising=False)  # nor compiled by every process
        patch.setenv("OMP_NUM_THREADS", "1")  # other tests run beside: more threads would wait
        # Timings collect garbage before each turn: beside a heap of tests that takes 0.2 s.
        patch.setattr(timing, "gc", SimpleNamespace(collect=lambda: None))
        yield


@pytest.fixture
def ambient_rng():
    """Fails the test when it moved the global random state."""
    before = torch.random.get_rng_state()
    yield
    assert torch.equal(torch.random.get_rng_state(), before), "the global random state was moved"


@pytest.fixture(scope="session")
def golden() -> dict:
    return json.loads(
        (Path(__file__).parent / "lesson" / "golden.json").read_text(encoding="utf-8")
    )


@pytest.fixture(scope="session")
def corpus() -> Corpus:
    """A little text that can be learnt in a few steps."""
    text = "the quick brown fox jumps over the lazy dog.\n" * 40
    return Corpus(text, "fox", sha256(text.encode()), "tests")


@pytest.fixture(scope="session")
def tokenizer(corpus) -> CharTokenizer:
    return CharTokenizer(corpus.text)


@pytest.fixture(scope="session")
def shakespeare() -> Path:
    """The real corpus, where this machine has it."""
    named = os.environ.get("NANOGPT_DATA")
    if not named or not Path(named).is_file():
        pytest.skip("NANOGPT_DATA names no copy of Tiny Shakespeare")
    return Path(named)
