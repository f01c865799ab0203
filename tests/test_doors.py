"""Every public name, called with one argument that is wrong: it works, or says what to pass."""

import inspect
import re
import warnings

import pytest
import torch
from conftest import tiny_model

import nanogpt
from nanogpt.data import CharTokenizer, Corpus
from nanogpt.engines.toolchain import CannotBuild
from nanogpt.verify.sweep import sweep

# What the names are of; RECIPES and SIZES are dictionaries.
TABLES = {"RECIPES", "SIZES"}
# Their text stands in notebooks; GPT is the door to them.
LESSON = {"Head", "CausalSelfAttention"}
MALFORMED = {
    "None": None,
    "5": 5,
    "-1": -1,
    "2.5": 2.5,
    "nan": float("nan"),
    "huge": 2**70,
    "empty text": "",
    "x": "x",
    "empty list": [],
    "list": [1],
    "dictionary": {"a": 1},
    "meta": torch.zeros(1, 3, dtype=torch.long, device="meta"),
    "tensor": torch.ones(2, 3, 4),
    "empty tensor": torch.zeros(1, 0, dtype=torch.long),
    "object": object(),
    "class": int,
    "model on meta": tiny_model().to("meta"),
}
# Right, and long; or called by us, with errors of their own.
LEFT_OUT = {("sweep", "sequences", "5"), ("sweep", "sequences", "huge"), ("train", "out", "x")}
LEFT_OUT |= {("TrainConfig", "stages", "huge"), ("GPT", "head", "class")}
LEFT_OUT |= {("referee", "seed", x) for x in ("5",)} | {("sweep", "seed", "5")}
LEFT_OUT |= {("train", "watch", "class"), ("train", "watch", "model on meta")}  # called
# In place of the argument's name.
CURES = "pass |choose|must be|correct it|correct the path|train again|build the model"
RIGHT = (TypeError, ValueError, OSError, CannotBuild)  # CheckpointError, CorpusError: ValueErrors
TOKENS = torch.tensor([[1, 2, 3]])
MODEL = tiny_model()
PACKED = tiny_model(per_head=False)
SHAPE = {"model": MODEL, "prompt": TOKENS, "n_new": 2}
ONE = {"k": torch.zeros(1, 3, 8), "v": torch.zeros(1, 3, 8), "pos": torch.arange(3)}
CORPUS = Corpus("abcdefghijklm" * 40, "letters", "0")
# The arguments with which a name works, where it does not do so without any.
WORKING = {
    "GPT": {"config": MODEL.config, "generator": None},
    "Decoder": {"config": PACKED.config, "generator": None},
    "pack_heads": {"model": MODEL},
    "unpack_heads": {"model": PACKED},
    "CharTokenizer": {"vocabulary": "abc"},
    "draw_noise": {"n_new": 2, "batch": 1, "vocab_size": 5, "generator": None},
    "generate": SHAPE
    | {"sampling": nanogpt.SamplingParams(), "cache": nanogpt.DynamicCache}
    | {"generator": None, "noise": None, "past_block": "error", "engine": None, "draft": None}
    | {"stop": ()},
    "complete": SHAPE,
    "compare": SHAPE | {"a": None, "b": nanogpt.StaticCache, "seed": 1, "temperature": 1.0},
    "kv_cache": {"model": MODEL, "cache": nanogpt.DynamicCache, "capacity": 8},
    "load_checkpoint": {"path": "nowhere"},
    "save_checkpoint": {"path": "nowhere", "model": MODEL, "meta": {}},
    "load_pretrained": {"source": "nowhere", "dtype": torch.float32, "tokenizer": None},
    "without_spare_tokens": {"model": MODEL, "tokenizer": CharTokenizer("abcdefghijklm")},
    "load_corpus": {"path": "nowhere"},
    "recipe_for": {"name": "fast", "shape": MODEL.config},
    "referee": {"model": MODEL, "caches": None, "seed": 0},
    "serve": {"model": MODEL, "requests": []},
    "BatchEngine": {"model": MODEL, "n_blocks": 9, "block_len": 4, "budget": 8, "max_running": 2},
    "Request": {"prompt": TOKENS[0], "max_new_tokens": 3, "sampling": nanogpt.SamplingParams()}
    | {"seed": 1, "arrival": 0.0, "id": 1, "logprobs": None, "echo": False},
    "NGram": {"text": TOKENS[0], "vocab_size": 13, "n": 2, "k": 2},
    "PromptLookup": {"n": 2, "k": 2},
    "DraftModel": {"model": MODEL, "k": 2, "engine": None},
    "exact": {"model": MODEL},
    "fit": {"model": tiny_model(), "corpus": CORPUS, "steps": 1, "batch_size": 1, "lr": 1e-3}
    | {"eval_every": 1, "eval_batches": 1, "seed": 1},
    "train": {"model": MODEL, "corpus": CORPUS, "config": nanogpt.TrainConfig(steps=1)}
    | {"tokenizer": None, "out": None, "device": None, "resume": False, "watch": None},
    "RollingCache": {"window": 4, "sinks": 0},
}
for name in ("DynamicCache", "StaticCache", "Int8Cache", "PagedCache"):
    WORKING[name] = {"capacity": 8}
ENGINES = "Batched Compiled Flat Graph GraphLoop Native Native8 PerHead Static Uncached"
for name in ENGINES.split():
    WORKING[name] = {"config": MODEL.config, "batch": 1, "capacity": 8}
    WORKING[name] |= {"dtype": torch.float32, "device": "cpu"}
CONFIGS = {"GPTConfig", "DecoderConfig", "SamplingParams", "TrainConfig"}
CACHES = {name: {"capacity": 24} for name in ("DynamicCache", "StaticCache", "Int8Cache")}
CACHES |= {"PagedCache": {"capacity": 24}, "RollingCache": {"window": 24}}


def doors() -> dict[str, tuple]:
    """By name, what is called and the arguments with which it works."""
    found = {}
    for name in sorted(set(nanogpt.__all__) - TABLES - LESSON):
        call = getattr(nanogpt, name)
        given = WORKING.get(name)
        if name in CONFIGS:
            given = {x: p.default for x, p in inspect.signature(call).parameters.items()}
        found[name] = call, given
    for name, given in CACHES.items():
        cache = getattr(nanogpt, name)
        found[f"{name}.update"] = (
            lambda cache=cache, given=given, **x: cache(**given).update(**x),
            ONE,
        )
    found["sweep"] = sweep, {"sequences": 1, "seed": 0, "dtype": "float32", "in_exact": False}
    return found


DOORS = doors()


def test_every_public_name_is_called():
    assert not [name for name, (_, given) in DOORS.items() if given is None]


def used(result) -> None:
    """Do what a caller does with it: read a generator, enter a with-block."""
    if hasattr(result, "__enter__"):
        with result:
            return
    if inspect.isgenerator(result):
        for _ in result:
            pass


def complaint(name: str, argument: str, value) -> str | None:
    """What is wrong with the answer of a door to one wrong argument; None when nothing is."""
    call, given = DOORS[name]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # an engine that cannot be built here says so
        try:
            used(call(**given | {argument: value}))
        except RIGHT as error:
            words = argument.replace("_", "[ _]").removesuffix("s")
            if not re.search(rf"{words}|{CURES}", str(error), re.IGNORECASE):
                return f"does not name it: {type(error).__name__}: {error}"
        except Exception as error:
            return f"{type(error).__name__}: {str(error):.90}"
    return None


@pytest.mark.parametrize("name", sorted(DOORS))
def test_a_wrong_argument_is_named(name, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    if hasattr(DOORS[name][0], "build"):  # of an engine the door is meant, and not its compiler
        monkeypatch.setattr(DOORS[name][0], "build", lambda engine: None)
    wrong = []
    for argument in DOORS[name][1]:
        for label, value in MALFORMED.items():
            if (name, argument, label) not in LEFT_OUT:
                problem = complaint(name, argument, value)
                wrong += [f"{argument}={label}: {problem}"] if problem else []
    assert not wrong, "\n".join(wrong)
