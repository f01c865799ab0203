"""python -m nanogpt bench KIND: the costs of decoding, caching, speculation, serving, training."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from math import inf
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, NamedTuple

import torch
from torch import Tensor

from ..bench import gpu_report, llama_cpp, load, reports, speculation
from ..bench.gain import Bound, ModelGain, gain_by_batch
from ..bench.ladder import Peer, hugging_face, jax_scan, ladder, sharpened
from ..bench.pretrained import PretrainedPeer, pretrained_ladder, transformers_peer
from ..bench.roofline import peak_arithmetic, read_bandwidth
from ..bench.step import step_rows
from ..bench.tables import table
from ..bench.training import KINDS, RaceRun, compared, train_interleaved
from ..config import SIZES, check_int
from ..data import Corpus, load_corpus, split
from ..decoder.checkpoint import Checkpoint, load_checkpoint
from ..decoder.config import decoder_config
from ..decoder.model import Decoder
from ..decoder.pack import as_decoder
from ..device import Device
from ..engines.drafts import DraftModel
from ..files import KEEPER, ROOT, real_path
from ..model import GPT, LanguageModel
from ..pretrained.form import family_form
from ..pretrained.load import find
from ..pretrained.padding import without_spare_tokens
from ..pretrained.tokenizer import PretrainedTokenizer
from ..series.real import SMOLLM2_SHAPE
from ..serving.batch import BatchEngine
from ..serving.native_steps import BACKENDS, choose_backend
from ..serving.sequence import Request
from ..training.evaluation import full_loss
from ..training.folders import held
from . import common
from .pretrained import SOURCES, load_on, short_name, size_text

RUNNING = 32  # most texts per step
LIMITS = {"ttft": 0.5, "tpot": 0.05}  # seconds: limits that a good request meets
# Shapes for models with random weights: what a model has learned does not change its speed.
_SHAPES = {name: decoder_config(config) for name, config in SIZES.items()}
_SHAPES["smollm2"] = SMOLLM2_SHAPE
_SHAPES["smollm2-1.7b"] = replace(
    SMOLLM2_SHAPE, n_layer=24, n_head=32, n_kv_head=32, n_embd=2048, ffn_dim=8192
)
_DTYPE: dict[str, Any] = {"choices": ["float32", "bfloat16"], "default": "float32"}


# ------------------------------------------------------------------ bench ladder


def add_model(parser: argparse.ArgumentParser) -> None:
    """Add --model, which replaces --size and --checkpoint."""
    parser.add_argument("--model", metavar="SOURCE", help=f"a pretrained model: {SOURCES}")


def ladder_options(parser: argparse.ArgumentParser) -> None:
    about = "smollm2: its shape, with random weights (small)"
    sizes = [*sorted(SIZES), "smollm2"]
    parser.add_argument("--size", choices=sizes, default="small", help=about)
    common.add_shared(parser, "--checkpoint", "--tokens", "--repeats", "--threads", "--device")
    parser.add_argument("--dtype", **_DTYPE)
    parser.add_argument("--rungs", metavar="NUMBERS", help="only these rungs, for example 1356")
    add_model(parser)
    about = "with --model: prompt length (64)"
    parser.add_argument("--prompt-tokens", **common.POSITIVE, help=about)
    peer = (
        "also time another program on the same weights; jax is for checkpoints, llama.cpp for "
        "--model"
    )
    choices = ["hf", "jax", "llama.cpp"]
    parser.add_argument("--peer", nargs="+", choices=choices, default=[], help=peer)
    common.add_json(parser, "ladder-SIZE.json")


def time_ladder(args: argparse.Namespace) -> None:
    """Measure how fast each engine decodes on this machine."""
    if args.model is not None:
        _time_pretrained(args)
        return
    if args.prompt_tokens or "llama.cpp" in args.peer:
        raise ValueError("--prompt-tokens and --peer llama.cpp are for a pretrained model: --model")
    if args.size == "smollm2" and not args.checkpoint:
        _time_smollm2_shape(args)
        return
    name = Path(args.checkpoint).stem if args.checkpoint else args.size
    path = common.json_path(args.json, "ladder", f"ladder-{name}.json")
    device = common.measured_device(args)
    about = {"what": "ladder", "model": name, "dtype": args.dtype}
    if args.checkpoint:
        saved = load_checkpoint(args.checkpoint)
        model = saved.model
        about["checkpoint"] = saved.sha256
    else:
        model = sharpened(GPT(SIZES[args.size]))
    model = model.to(device=device.device, dtype=getattr(torch, args.dtype)).eval()
    n_new = common.n_tokens(args, model.config.block_size)
    peers = _peers(args.peer, model)
    result = ladder(model, n_new=n_new, repeats=args.repeats, only=args.rungs, peers=peers)
    print(reports.ladder_text(result))
    common.write_result(path, device, about | result)


def _peers(names: list[str], model: LanguageModel) -> dict[str, Peer]:
    weight = model.lm_head.weight
    if names and (weight.device.type, weight.dtype) != ("cpu", torch.float32):
        raise ValueError("--peer computes float32 on the CPU: add --device cpu --dtype float32")
    packed = as_decoder(model)
    try:
        peers = hugging_face(family_form(packed)) if "hf" in names else {}
        return peers | (jax_scan(packed) if "jax" in names else {})
    except ImportError as error:
        raise ImportError(f"{error}: pip install '.[peers]'") from error


PROMPT = (  # the prompt, repeated until it is long enough
    "A lighthouse keeper counts the ships that pass. On some days there are three, on others "
    "thirty, and in the winter of 1903 there was none for a week. He wrote every number into a "
    "book with a green cover, and beside it the direction of the wind.\n"
)


def _time_pretrained(args: argparse.Namespace) -> None:
    """The ladder of a pretrained model."""
    if args.checkpoint or "jax" in args.peer:
        raise ValueError("--model is a pretrained model: leave out --checkpoint and --peer jax")
    name = short_name(args.model)
    path = common.json_path(args.json, "pretrained ladder", f"ladder-{name}.json")
    device = common.measured_device(args)
    dtype = getattr(torch, args.dtype)
    if args.peer and (device.device.type, dtype) != ("cpu", torch.float32):
        raise ValueError("--peer computes float32 on the CPU: add --device cpu --dtype float32")
    model, tokenizer = load_on(device.device, args.model, dtype)
    block = model.config.block_size
    n_prompt = args.prompt_tokens or min(64, block // 2)
    n_new = args.tokens or min(64, block // 2)
    check_int("prompt_tokens", n_prompt, 1, block - 2)
    check_int("tokens", n_new, 2, block - n_prompt)
    prompt = load.first_tokens(tokenizer, PROMPT, n_prompt)
    with TemporaryDirectory() as folder:
        peers = _pretrained_peers(args, model, n_prompt + n_new, Path(folder))
        result = pretrained_ladder(
            model, prompt, n_new=n_new, repeats=args.repeats, only=args.rungs, peers=peers
        )
    print(reports.pretrained_text(result))
    about = {"what": "pretrained ladder", "model": args.model, "dtype": args.dtype}
    if "llama.cpp" in args.peer:
        about["llama.cpp"] = llama_cpp.build()
        print(f"llama.cpp: {about['llama.cpp']}")
    common.write_result(path, device, about | result)


def _time_smollm2_shape(args: argparse.Namespace) -> None:
    """The ladder of SmolLM2's shape, which needs no download: greedy tokens after one token."""
    if args.peer:
        raise ValueError("--peer needs the real weights here: --model smollm2")
    path = common.json_path(args.json, "pretrained ladder", "ladder-smollm2-shape.json")
    device = common.measured_device(args)
    model = Decoder(SMOLLM2_SHAPE).to(device=device.device, dtype=getattr(torch, args.dtype))
    n_new = common.n_tokens(args, model.config.block_size - 1)
    prompt = torch.zeros(1, dtype=torch.int64)
    sharpened(model).eval()
    result = pretrained_ladder(model, prompt, n_new=n_new, repeats=args.repeats, only=args.rungs)
    print(reports.pretrained_text(result))
    about = {"what": "pretrained ladder", "model": "SmolLM2's shape, random weights"}
    common.write_result(path, device, about | {"dtype": args.dtype} | result)


def _pretrained_peers(
    args: argparse.Namespace, model: Decoder, capacity: int, folder: Path
) -> dict[str, PretrainedPeer]:
    """Other programs on the same weights; their files are written to `folder`."""
    peers: dict[str, PretrainedPeer] = {}
    if "hf" in args.peer:
        peers |= transformers_peer(family_form(model), model.config.weight_bytes())
    if "llama.cpp" in args.peer:
        source = find(args.model)
        llama_cpp.check_gguf(source)
        files = {llama_cpp.own_type(source): source}
        for kind in llama_cpp.TYPES:
            if kind not in files:
                files[kind] = folder / f"{kind}.gguf"
                llama_cpp.rewrite(source, files[kind], kind)
        for kind, file in files.items():
            decode = llama_cpp.LlamaCpp(file, capacity)
            size = llama_cpp.weight_bytes(file)
            peers[f"llama.cpp, {kind}"] = PretrainedPeer(decode, kind, size, 2)
    return peers


# ------------------------------------------------------------------ bench gain


def gain_options(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    several: dict[str, Any] = {"type": common.positive, "nargs": "+", "metavar": "N"}
    about = f"shapes, with random weights: {', '.join(sorted(_SHAPES))} (small lecture)"
    sizes = ["small", "lecture"]
    add("--size", nargs="+", choices=sorted(_SHAPES), default=sizes, help=about, metavar="SIZE")
    add("--batch", **several, default=[1, 8, 64], help="texts generated together (1 8 64)")
    about = "new tokens after a prompt of one (16 64 255); a model's block may allow fewer"
    add("--lengths", **several, default=[16, 64, 255], help=about)
    add("--dtype", **_DTYPE)
    common.add_shared(parser, "--repeats", "--threads", "--device")
    common.add_json(parser, "gain.json")


def time_gain(args: argparse.Namespace) -> None:
    """Measure when a cache pays. Stopping keeps the batch sizes that are done."""
    path = common.json_path(args.json, "gain", "gain.json")
    device = common.measured_device(args)
    about = {"what": "gain", "dtype": args.dtype}
    found: dict[str, ModelGain] = {}
    try:
        for name in args.size:
            model = Decoder(_SHAPES[name]).to(
                device=device.device, dtype=getattr(torch, args.dtype)
            )
            batches = gain_by_batch(
                name, model.eval(), args.batch, args.lengths, repeats=args.repeats
            )
            for found[name] in batches:
                common.write_result(path, device, about | {"models": list(found.values())})
    except KeyboardInterrupt:
        if path and found:
            raise KeyboardInterrupt(f"what was measured is in {path}") from None
        raise KeyboardInterrupt from None
    print(reports.gain_text(list(found.values()), args.dtype, args.repeats))
    for bound in Bound:
        print(f"{bound.value}: {bound.reason}")


# ------------------------------------------------------------------ bench train


def train_options(parser: argparse.ArgumentParser) -> None:
    kind = parser.add_mutually_exclusive_group().add_argument
    how: dict[str, Any] = {"action": "store_const", "dest": "kind", "default": "race"}
    kind(
        "--ideas",
        const="ideas",
        help="add one idea at a time, for about the same training time",
        **how,
    )
    kind(
        "--heads",
        const="heads",
        help="shared keys and windows, for the same number of steps",
        **how,
    )
    kind("--step", const="step", help="the time of one step by part, compared with the peak", **how)
    parser.add_argument(
        "--seeds", **common.POSITIVE, default=3, help="number of seeds, starting at 1337 (3)"
    )
    common.add_shared(parser, "--data", "--device", "--threads")
    common.add_json(parser, "race.json, ideas.json, heads.json or step.json")


def time_training(args: argparse.Namespace) -> None:
    """Measure how fast each recipe reaches a loss. Stopping keeps the completed seeds."""
    path = common.json_path(args.json, args.kind, f"{args.kind}.json")
    device = common.measured_device(args)
    corpus = load_corpus(args.data)
    if args.kind == "step":
        rows = [row for name in ("fast", "keeper") for row in step_rows(name, corpus, device)]
        common.write_result(path, device, {"what": "step", "rows": rows})
        print(table(rows))
        return
    print(f"{corpus.banner or corpus}; losses on its validation text, each at its own block size")
    about = {"what": args.kind, "corpus": corpus.name, "sha256": corpus.sha256}
    runs: list[RaceRun] = []
    try:
        for seed in range(1337, 1337 + args.seeds):
            runs += train_interleaved(KINDS[args.kind], corpus, seed=seed, device=device)
            result = about | {"rows": compared(runs), "runs": runs}
            common.write_result(path, device, result)
    except KeyboardInterrupt:
        if path and runs:
            raise KeyboardInterrupt(f"the completed seeds are in {path}") from None
        raise KeyboardInterrupt from None
    print(f"\n{reports.training_text(result['rows'])}")


# ------------------------------------------------------------------ bench speculate


def speculate_options(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add("--target", metavar="PATH", default=KEEPER, help="the target model (the bundled model)")
    add("--draft", metavar="PATH", help="a smaller model as an additional draft")
    how: dict[str, Any] = {
        "type": common.positive,
        "nargs": "+",
        "default": [3, 5, 7, 11, 15],
        "metavar": "K",
    }
    add("--k", **how, help="numbers of proposals per pass (3 5 7 11 15)")
    common.add_shared(parser, "--tokens", "--repeats", "--threads", "--data")
    common.add_json(parser, "speculate.json")
    parser.set_defaults(device="cpu")


def time_speculation(args: argparse.Namespace) -> None:
    """Measure the speedup of speculation at identical output."""
    path = common.json_path(args.json, "speculate", "speculate.json")
    device = common.measured_device(args)
    saved = load_checkpoint(args.target)
    corpus = load_corpus(args.data)
    model = saved.model.eval()
    block = model.config.block_size
    check_int("k", max(args.k), 1, block - 2)
    print(f"table counted in: {corpus.banner or corpus}")
    draft = load_checkpoint(args.draft) if args.draft else None
    n_new = common.n_tokens(args, block)
    data, val = split(saved.tokenizer.encode(corpus.text), block)
    drafts = speculation.usual_drafts(model, data)
    if draft and draft.tokenizer.chars != saved.tokenizer.chars:
        raise ValueError(
            "the draft and the target have different vocabularies: they need the same characters"
        )
    if draft:
        name = f"a GPT of {draft.model.n_params / 1e6:.2f}M"
        drafts = {name: partial(DraftModel, draft.model.eval()), **drafts}
    result = speculation.speculation(model, drafts, args.k, n_new=n_new, repeats=args.repeats)
    passes = speculation.pass_seconds(model, sorted({1, *(k + 1 for k in args.k)}))
    proposal = speculation.pass_seconds(draft.model, [1])[1] if draft else None
    print(reports.speculation_text(result))
    about: dict[str, Any] = {
        "what": "speculate",
        "corpus": corpus.name,
        "target": _origin(saved, val),
        "draft": _origin(draft, val) if draft else None,
    }
    print(reports.losses_text(about["target"], about["draft"]))
    measured = {**result, "passes": passes, "proposal": proposal}
    common.write_result(path, device, about | measured)


def _origin(saved: Checkpoint, val: Tensor) -> dict[str, Any]:
    """The identity and number of the weights, and their loss on this validation text."""
    about = {"sha256": saved.sha256, "step": saved.meta["step"], "losses": saved.meta["losses"]}
    return about | {"n_params": saved.model.n_params, "loss": full_loss(saved.model, val)}


# ------------------------------------------------------------------ bench load


# Requests per second, and how many requests: a pretrained model needs seconds for each.
_RATES = (5.0, 20.0, 80.0, inf)
PRETRAINED_RATES = (0.5, 2.0, inf)
_REQUESTS = 64
PRETRAINED_REQUESTS = 16
# Length of the longest text for a pretrained model; our own models use their block size.
TEXT_TOKENS = 256


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
    about = f"requests at each rate ({_REQUESTS}; with --model {PRETRAINED_REQUESTS})"
    add("--requests", **common.POSITIVE, help=about)
    add("--repeats", **common.POSITIVE, default=3, help="timed repeats after a warm-up (3)")
    add(
        "--url",
        metavar="URL",
        help="measure a server instead, with greedy decoding, for example http://127.0.0.1:8000",
    )
    common.add_json(parser, "load-SIZE.json")


class _Subject(NamedTuple):
    """The subject of a load test: a model, if any, and the source of its texts."""

    name: str
    model: LanguageModel | None
    block_size: int  # tokens of the longest text
    vocab_size: int
    n_params: int = 0  # of the model as stored; ruling out spare tokens adds a bias
    chars: str = load.CHARS  # for our own models
    tokenizer: PretrainedTokenizer | None = None
    corpus: Corpus | None = None  # the text that a pretrained model's prompts are cut from
    n_blocks: int | None = None  # blocks for keys and values; None: enough for block_size

    @property
    def prompt(self) -> load.Prompt | None:
        """The sampler of its prompts; None: any tokens."""
        if self.tokenizer is None or self.corpus is None:
            return None
        return load.pieces_of_text(self.tokenizer, self.corpus.text)

    def about(self) -> dict[str, Any]:
        """The model's description in a result."""
        assert self.model is not None
        about: dict[str, Any] = {"model": self.name, "n_params": self.n_params}
        about["dtype"] = str(self.model.dtype).removeprefix("torch.")
        about["device"] = self.model.device.type
        if self.corpus:
            about |= {"corpus": self.corpus.name, "corpus_sha256": self.corpus.sha256}
        return about


def time_load(args: argparse.Namespace) -> int:
    """Throughput and latency under a stream of requests. Exit code 1: tokens differ, or failures.

    Texts from a server at --url are compared with the model's, if there is one.
    """
    _check_load(args)
    name = Path(args.checkpoint).stem if args.checkpoint else args.size or "small"
    name = short_name(args.model) if args.model is not None else name
    path = common.json_path(args.json, "load", f"load-{'server' if args.url else name}.json")
    device = common.measured_device(args)
    pretrained = args.model is not None
    subject = _pretrained_subject(args, device) if pretrained else _own_subject(args, name, device)
    rates = args.rates or (PRETRAINED_RATES if pretrained else _RATES)
    n = args.requests or (PRETRAINED_REQUESTS if pretrained else _REQUESTS)
    settings = {"n": n, "repeats": args.repeats, "limits": LIMITS}
    settings["block_size"] = subject.block_size
    if args.url:
        measured = _server(args.url, subject, rates, settings)
    else:
        measured = _schemes(subject, rates, settings)
    result: dict[str, Any] = {"what": "load"} | settings | measured
    print(f"\n{reports.load_text(result)}")
    common.write_result(path, device, result)
    return int(any(row["differ"] or row["failed"] for row in result["rows"]))


def _check_load(args: argparse.Namespace) -> None:
    """Raise ValueError for options that do not go together."""
    if args.model is None and (args.text_tokens or args.data):
        raise ValueError("--text-tokens and --data are for a pretrained model: add --model")
    if args.model is not None and (args.checkpoint or args.size):
        raise ValueError("--model is a pretrained model: leave out --checkpoint and --size")


def _own_subject(args: argparse.Namespace, name: str, device: Device) -> _Subject:
    """A checkpoint, or a model with random weights; none for a server without a checkpoint."""
    saved = load_checkpoint(args.checkpoint) if args.checkpoint else None
    chars = saved.tokenizer.chars if saved else load.CHARS
    shape = SIZES[args.size or "small"]
    model: LanguageModel | None = saved.model if saved else None
    if not model and not args.url:
        model = sharpened(GPT(shape))
    if not model:
        return _Subject(name, None, shape.block_size, len(chars), chars=chars)
    packed = as_decoder(model)  # the same function, faster
    model = packed.to(device.device).eval()
    return _Subject(name, model, model.config.block_size, len(chars), model.n_params, chars)


def _pretrained_subject(args: argparse.Namespace, device: Device) -> _Subject:
    """A pretrained model, served the way `serve --model` serves it."""
    corpus = load_corpus(args.data)
    model, tokenizer = load_on(device.device, args.model)
    block = model.config.block_size
    n = args.text_tokens or min(TEXT_TOKENS, block)
    check_int("text_tokens", n, 2, block)
    n_blocks = load.blocks_for(model, RUNNING, n)
    memory = model.cache_bytes(n_blocks * load.BLOCK_LEN) / 1e9
    print(f"{args.model}: {size_text(model)}; caches of up to {memory:.1f} GB")
    print(f"prompts cut from: {corpus}", flush=True)
    return _Subject(
        args.model,
        without_spare_tokens(model, tokenizer),
        n,
        len(tokenizer),
        model.n_params,
        tokenizer=tokenizer,
        corpus=corpus,
        n_blocks=n_blocks,
    )


def _server(
    url: str, subject: _Subject, rates: Sequence[float], settings: dict[str, Any]
) -> dict[str, Any]:
    """The server at a URL, and the model's own texts, if there is a model."""
    tokenizer = subject.tokenizer
    server: load.LoadedServer
    if tokenizer is None:
        server = load.LoadedServer(url, subject.chars)
    else:
        server = load.LoadedTokenServer(url)
    reference = _reference(subject) if subject.model else None
    rows = load.load(
        {server.model: server},
        rates,
        vocab_size=subject.vocab_size,
        prompt=subject.prompt,
        greedy=True,
        reference=reference,
        **settings,
    )
    about = {"server": url, "model": server.model, "rows": rows, "errors": dict(server.errors)}
    return about | ({"reference": subject.about()} if subject.model else {})


def _reference(subject: _Subject) -> load.System:
    """The model's own texts, as tokens and, if it is pretrained, also as strings."""
    model = subject.model
    assert model is not None
    backend = BACKENDS[choose_backend(model)[0]]

    def write(requests: list[Request]) -> load.Replies:
        engine = BatchEngine(model, backend=backend, n_blocks=subject.n_blocks, max_running=RUNNING)
        replies = load.drive(engine, requests)
        if subject.tokenizer is None:
            return replies
        texts = {}
        for i, reply in replies.items():
            tokens = torch.tensor(reply.tokens)
            texts[i] = reply._replace(text=subject.tokenizer.decode(tokens))
        return texts

    return write


def _schemes(subject: _Subject, rates: Sequence[float], settings: dict[str, Any]) -> dict[str, Any]:
    """All schemes of our engine."""
    model = subject.model
    assert model is not None
    backend = choose_backend(model)[0]
    block = subject.block_size
    systems = load.schemes(
        model, backend=BACKENDS[backend], running=RUNNING, n_blocks=subject.n_blocks
    )
    asked: dict[str, Any] = {"vocab_size": subject.vocab_size, "prompt": subject.prompt}
    rows = load.load(systems, rates, **asked, **settings)
    c = model.config
    read = read_bandwidth(c.cache_bytes(block // 3, RUNNING), device=model.device)["high"]
    peak = peak_arithmetic(device=model.device)["high"]
    requests = load.poisson(settings["n"], inf, block_size=block, **asked)
    about = subject.about() | {"backend": backend, "running": RUNNING}
    about |= {"peak": peak, "bandwidth": read, "bound": load.bound(c, requests, peak, read)}
    return about | {"rows": rows}


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
