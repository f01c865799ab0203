"""python -m nanogpt bench KIND: the costs of decoding, caching, speculation, serving, training.

Each command is two functions: its options, and a run that calls one function of nanogpt.bench,
prints its report from bench.reports, and writes the result as JSON.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import torch
from torch import Tensor

from ..bench import llama_cpp, reports
from ..bench.arrivals import first_tokens
from ..bench.entries import KINDS
from ..bench.gain import ModelGain, gains
from ..bench.ladder import ladder, sharpened
from ..bench.peers import Peer, transformers_peers
from ..bench.shapes import RANDOM_SHAPES, random_model
from ..bench.speculation import speculation_of
from ..bench.training import RaceRun, compared, train_interleaved
from ..bench.under_load import (
    OWN_ARRIVALS,
    PRETRAINED_ARRIVALS,
    TEXT_TOKENS,
    Arrivals,
    Subject,
    load_of_schemes,
    load_of_server,
    own_subject,
    pretrained_subject,
    texts_of_size,
)
from ..config import SIZES, check_int
from ..data import load_corpus
from ..decoder.checkpoint import load_checkpoint
from ..decoder.pack import as_decoder
from ..device import Device
from ..files import KEEPER, ROOT, real_path
from ..model import LanguageModel
from ..pretrained.load import find
from ..training.folders import held
from . import common, gpu_report
from .pretrained import SOURCES, load_on, short_name, size_text


def add_model(parser: argparse.ArgumentParser) -> None:
    """Add --model, which replaces --size and --checkpoint."""
    parser.add_argument("--model", metavar="SOURCE", help=f"a pretrained model: {SOURCES}")


@contextmanager
def kept_in(path: Path | None, results: list[Any]) -> Iterator[None]:
    """A Ctrl-C within this says that the results so far, if there are any, are in that file."""
    try:
        yield
    except KeyboardInterrupt:
        if path and results:
            raise KeyboardInterrupt(f"what was measured is in {path}") from None
        raise KeyboardInterrupt from None


# ------------------------------------------------------------------ bench ladder

PROMPT = (  # the prompt of a pretrained model, repeated until it is long enough
    "A lighthouse keeper counts the ships that pass. On some days there are three, on others "
    "thirty, and in the winter of 1903 there was none for a week. He wrote every number into a "
    "book with a green cover, and beside it the direction of the wind.\n"
)
PROMPT_TOKENS = 64
# Rungs of a real model without --rungs. A compiled step of 30 layers takes minutes to build.
USUAL_RUNGS = {"cpu": "13467", "cuda": None}


def ladder_options(parser: argparse.ArgumentParser) -> None:
    about = "shape, with random weights (small)"
    parser.add_argument("--size", choices=sorted(RANDOM_SHAPES), help=about)
    common.add_shared(parser, "--checkpoint", "--tokens", "--repeats", "--threads", "--device")
    parser.add_argument("--rungs", metavar="NUMBERS", help="only these rungs, for example 1356")
    add_model(parser)
    about = f"with --model: prompt length ({PROMPT_TOKENS})"
    parser.add_argument("--prompt-tokens", **common.POSITIVE, help=about)
    about = "also time another program on the same weights; llama.cpp needs --model FILE.gguf"
    choices = ["hf", "llama.cpp"]
    parser.add_argument("--peer", nargs="+", choices=choices, default=[], help=about)
    common.add_json(parser, "ladder-NAME.json")


@dataclass(frozen=True)
class LadderSubject:
    """The model on the ladder, and the text that it continues."""

    model: LanguageModel
    prompt: Tensor | None  # (T,); None: token 0
    # Whether it has the size and vocabulary of a real model. It decodes greedily then, because
    # drawing noise for 49,152 candidates on the CPU takes longer than a step on a GPU.
    real: bool
    about: dict[str, str]  # its identity in the result


def time_ladder(args: argparse.Namespace) -> None:
    """Measure how fast each engine decodes on this machine."""
    _check_ladder(args)
    name = _name(args)
    path = common.json_path(args.json, "ladder", f"ladder-{name}.json")
    device = common.measured_device(args)
    subject = _ladder_subject(args, device)
    n_prompt = 1 if subject.prompt is None else len(subject.prompt)
    most = subject.model.config.block_size + 1 - n_prompt
    n_new = common.n_tokens(args, most, 64 if args.model else 255)
    only = args.rungs or (USUAL_RUNGS[device.device.type] if subject.real else None)
    about = {"what": "ladder", "dtype": "float32"} | subject.about
    with TemporaryDirectory() as folder:
        peers = _peers(args, subject.model, n_prompt + n_new, Path(folder))
        result = ladder(
            subject.model,
            subject.prompt,
            n_new=n_new,
            greedy=subject.real,
            repeats=args.repeats,
            only=only,
            peers=peers,
        )
    print(reports.ladder_text(result))
    if "llama.cpp" in args.peer:
        about["llama.cpp"] = llama_cpp.build()
        print(f"llama.cpp: {about['llama.cpp']}")
    common.write_result(path, device, about | result)


def _check_ladder(args: argparse.Namespace) -> None:
    """Raise ValueError for options that do not go together."""
    _check_one_model(args)
    if args.model is None and (args.prompt_tokens or "llama.cpp" in args.peer):
        raise ValueError("--prompt-tokens and --peer llama.cpp are for a pretrained model: --model")


def _check_one_model(args: argparse.Namespace) -> None:
    if args.model is not None and (args.checkpoint or args.size):
        raise ValueError("--model is a pretrained model: leave out --checkpoint and --size")


def _name(args: argparse.Namespace) -> str:
    """The model's name in a result's file name."""
    if args.model is not None:
        return short_name(args.model)
    if args.checkpoint:
        return Path(args.checkpoint).stem
    size: str = args.size or "small"
    return size if size in SIZES else f"{size}-shape"


def _ladder_subject(args: argparse.Namespace, device: Device) -> LadderSubject:
    """The model that the options name. Raises ValueError for a prompt that does not fit."""
    if args.model is not None:
        model, tokenizer = load_on(device.device, args.model)
        block = model.config.block_size
        n_prompt = args.prompt_tokens or min(PROMPT_TOKENS, block // 2)
        check_int("prompt_tokens", n_prompt, 1, block - 2)
        prompt = first_tokens(tokenizer, PROMPT, n_prompt)
        return LadderSubject(model, prompt, real=True, about={"model": args.model})
    if args.checkpoint:
        saved = load_checkpoint(args.checkpoint)
        about = {"model": _name(args), "checkpoint": saved.sha256}
        return LadderSubject(saved.model.to(device.device), None, real=False, about=about)
    size = args.size or "small"
    model = sharpened(random_model(size, device))
    return LadderSubject(model, None, real=size not in SIZES, about={"model": _name(args)})


def _peers(
    args: argparse.Namespace, model: LanguageModel, capacity: int, folder: Path
) -> dict[str, Peer]:
    """The programs of --peer; llama.cpp's files are written to `folder`."""
    if args.peer and model.device.type != "cpu":
        raise ValueError("--peer computes on the CPU: add --device cpu")
    peers: dict[str, Peer] = {}
    if "hf" in args.peer:
        peers |= transformers_peers(as_decoder(model))
    if "llama.cpp" in args.peer:
        peers |= llama_cpp.llama_cpp_peers(find(args.model), capacity, folder)
    return peers


# ------------------------------------------------------------------ bench gain


def gain_options(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    several: dict[str, Any] = {"type": common.positive, "nargs": "+", "metavar": "N"}
    about = f"shapes, with random weights: {', '.join(sorted(RANDOM_SHAPES))} (small lecture)"
    sizes = ["small", "lecture"]
    add(
        "--size",
        nargs="+",
        choices=sorted(RANDOM_SHAPES),
        default=sizes,
        help=about,
        metavar="SIZE",
    )
    add("--batch", **several, default=[1, 8, 64], help="texts generated together (1 8 64)")
    about = "new tokens after a prompt of one (16 64 255); a model's block may allow fewer"
    add("--lengths", **several, default=[16, 64, 255], help=about)
    common.add_shared(parser, "--repeats", "--threads", "--device")
    common.add_json(parser, "gain.json")


def time_gain(args: argparse.Namespace) -> None:
    """Measure when a cache pays. Stopping keeps the batch sizes that are done."""
    path = common.json_path(args.json, "gain", "gain.json")
    device = common.measured_device(args)
    about = {"what": "gain", "dtype": "float32"}
    found: list[ModelGain] = []
    with kept_in(path, found):
        measured = gains(args.size, args.batch, args.lengths, device=device, repeats=args.repeats)
        for so_far in measured:
            found[:] = so_far
            common.write_result(path, device, about | {"models": found})
    print(reports.gain_text(found, args.repeats))


# ------------------------------------------------------------------ bench train


def train_options(parser: argparse.ArgumentParser) -> None:
    kind = parser.add_mutually_exclusive_group().add_argument
    how: dict[str, Any] = {"action": "store_const", "dest": "kind", "default": "race"}
    about = "add one idea at a time, for about the same training time"
    kind("--ideas", const="ideas", help=about, **how)
    about = "shared keys and windows, for the same number of steps"
    kind("--heads", const="heads", help=about, **how)
    about = "number of seeds, starting at 1337 (3)"
    parser.add_argument("--seeds", **common.POSITIVE, default=3, help=about)
    common.add_shared(parser, "--data", "--device", "--threads")
    common.add_json(parser, "race.json, ideas.json or heads.json")


def time_training(args: argparse.Namespace) -> None:
    """Measure how fast each recipe reaches a loss. Stopping keeps the completed seeds."""
    path = common.json_path(args.json, args.kind, f"{args.kind}.json")
    device = common.measured_device(args)
    corpus = load_corpus(args.data)
    print(f"{corpus.banner or corpus}; losses on its validation text, each at its own block size")
    about = {"what": args.kind, "corpus": corpus.name, "sha256": corpus.sha256}
    runs: list[RaceRun] = []
    with kept_in(path, runs):
        for seed in range(1337, 1337 + args.seeds):
            runs += train_interleaved(KINDS[args.kind], corpus, seed=seed, device=device)
            common.write_result(path, device, about | {"rows": compared(runs), "runs": runs})
    print(f"\n{reports.training_text(compared(runs))}")


# ------------------------------------------------------------------ bench speculate


def speculate_options(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add("--target", metavar="PATH", default=KEEPER, help="the target model (the bundled model)")
    add("--draft", metavar="PATH", help="a smaller model as an additional draft")
    how: dict[str, Any] = {"type": common.positive, "nargs": "+", "metavar": "K"}
    about = "numbers of proposals per pass (3 5 7 11 15)"
    add("--k", **how, default=[3, 5, 7, 11, 15], help=about)
    common.add_shared(parser, "--tokens", "--repeats", "--threads", "--data")
    common.add_json(parser, "speculate.json")
    parser.set_defaults(device="cpu")


def time_speculation(args: argparse.Namespace) -> None:
    """Measure the speedup of speculation at identical output."""
    path = common.json_path(args.json, "speculate", "speculate.json")
    device = common.measured_device(args)
    target = load_checkpoint(args.target)
    draft = load_checkpoint(args.draft) if args.draft else None
    block = target.model.config.block_size
    check_int("k", max(args.k), 1, block - 2)
    n_new = common.n_tokens(args, block)
    corpus = load_corpus(args.data)
    print(f"table counted in: {corpus.banner or corpus}")
    result = speculation_of(target, draft, corpus, args.k, n_new=n_new, repeats=args.repeats)
    print(reports.speculation_text(result))
    common.write_result(path, device, {"what": "speculate"} | result)


# ------------------------------------------------------------------ bench load


def load_options(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    common.add_shared(parser, "--size", "--checkpoint", "--threads", "--device")
    parser.set_defaults(size=None)  # small, unless a pretrained model replaces it
    add_model(parser)
    about = f"with --model: maximum tokens per text, including its prompt ({TEXT_TOKENS})"
    add("--text-tokens", **common.POSITIVE, help=about)
    about = "with --model: the text that prompts are cut from (Tiny Shakespeare)"
    add("--data", metavar="PATH", help=about)
    how: dict[str, Any] = {"type": float, "nargs": "+", "metavar": "X"}
    add("--rates", **how, help="requests per second (5 20 80 inf; with --model 0.5 2 inf)")
    n, n_pretrained = OWN_ARRIVALS.n, PRETRAINED_ARRIVALS.n
    about = f"requests at each rate ({n}; with --model {n_pretrained})"
    add("--requests", **common.POSITIVE, help=about)
    add("--repeats", **common.POSITIVE, default=3, help="timed repeats after a warm-up (3)")
    about = "measure a server instead, greedily decoding, for example http://127.0.0.1:8000"
    add("--url", metavar="URL", help=about)
    common.add_json(parser, "load-SIZE.json")


def time_load(args: argparse.Namespace) -> int:
    """Throughput and latency under a stream of requests. Exit code 1: tokens differ, or failures.

    Texts from a server at --url are compared with the model's, if there is one.
    """
    _check_load(args)
    name = _name(args)
    path = common.json_path(args.json, "load", f"load-{'server' if args.url else name}.json")
    device = common.measured_device(args)
    subject = _load_subject(args, device)
    arrivals = _arrivals(args)
    if args.url:
        measured = load_of_server(args.url, subject, arrivals)
    else:
        measured = load_of_schemes(subject, arrivals)
    print(f"\n{reports.load_text(measured)}")
    common.write_result(path, device, {"what": "load"} | measured)
    return int(any(row["differ"] or row["failed"] for row in measured["rows"]))


def _check_load(args: argparse.Namespace) -> None:
    """Raise ValueError for options that do not go together."""
    if args.model is None and (args.text_tokens or args.data):
        raise ValueError("--text-tokens and --data are for a pretrained model: add --model")
    _check_one_model(args)


def _load_subject(args: argparse.Namespace, device: Device) -> Subject:
    """The model that the options name; none for a server without one."""
    if args.model is not None:
        corpus = load_corpus(args.data)
        model, tokenizer = load_on(device.device, args.model)
        subject = pretrained_subject(args.model, model, tokenizer, corpus, args.text_tokens)
        print(f"{args.model}: {size_text(model)}; caches of up to {subject.cache_gigabytes:.1f} GB")
        print(f"prompts cut from: {corpus}", flush=True)
        return subject
    size = args.size or "small"
    if args.url and not args.checkpoint:
        return texts_of_size(_name(args), size)
    saved = load_checkpoint(args.checkpoint) if args.checkpoint else None
    return own_subject(_name(args), size, saved, device)


def _arrivals(args: argparse.Namespace) -> Arrivals:
    """The requests of the options, or as many as this kind of model answers in minutes."""
    usual = OWN_ARRIVALS if args.model is None else PRETRAINED_ARRIVALS
    rates = args.rates or usual.rates
    return replace(usual, rates=rates, n=args.requests or usual.n, repeats=args.repeats)


# ------------------------------------------------------------------ bench gpu


def gpu_options(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add("--minutes", type=float, default=12.0, metavar="M", help="time limit in minutes (12)")
    add("--out", type=Path, metavar="FOLDER", help="output folder (outputs/gpu/NAME)")


def report_gpu(args: argparse.Namespace) -> int:
    """Run the steps of the GPU report. Exit code 1: some are left."""
    common.check_clone()
    if not torch.cuda.is_available():
        raise ValueError("no CUDA device was found: run this on a machine with a GPU")
    name = torch.cuda.get_device_name().replace(" ", "-")
    out = real_path(args.out or ROOT / "outputs" / "gpu" / name)
    with held(out / ".lock", f"into {out}"):
        return 0 if gpu_report.run_report(out, gpu_report.REPORT_STEPS, 60 * args.minutes) else 1


CALLS = {
    "bench ladder": (ladder_options, time_ladder),
    "bench gain": (gain_options, time_gain),
    "bench train": (train_options, time_training),
    "bench speculate": (speculate_options, time_speculation),
    "bench load": (load_options, time_load),
    "bench gpu": (gpu_options, report_gpu),
}
