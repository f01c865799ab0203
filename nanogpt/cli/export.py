"""python -m nanogpt export: a checkpoint as a folder that transformers and vLLM load.

python -m nanogpt export                          the one that ships, into outputs/export
python -m nanogpt export MINE --form gpt2         another checkpoint, another architecture
python -m nanogpt export --form lecture           one file, as Karpathy's own class loads it
"""

from __future__ import annotations

from pathlib import Path

from ..system.files import WEIGHTS, check_writable
from .common import OUTPUTS, command_parser, exit_code

SMALLEST = 32  # numbers of a head, as vLLM's CPU build needs them


def main(argv: list[str] | None = None) -> int:
    """Exit codes: 0 written, 2 it could not be."""
    parser = command_parser("export", "Write a checkpoint's weights as other programs load them.")
    add = parser.add_argument
    add("checkpoint", nargs="?", default=WEIGHTS / "small", help="the one that ships, without")
    forms = ("auto", "opt", "gpt2", "nanochat", "lecture")
    about = "auto: OPT for the lecture's architecture, NanoChat for sprint's; lecture: one file"
    add("--form", default="auto", choices=forms, help=about)
    add("--out", type=Path, metavar="PATH", help="outputs/export by default")
    args = parser.parse_args(argv)
    write = _lecture if args.form == "lecture" else _folder
    return exit_code(lambda: write(args.checkpoint, args.out, args.form))


def _folder(checkpoint: str | Path, out: Path | None, form: str) -> None:
    from ..export.folder import write_folder
    from ..model.checkpoint import load_checkpoint

    out, saved = out or OUTPUTS / "export", load_checkpoint(checkpoint)
    config = write_folder(saved, out, form)
    print(f"{saved}\nwritten: {out}, a {config['architectures'][0]}")
    print("AutoModelForCausalLM.from_pretrained(PATH) loads it")
    if (size := saved.model.config.head_size) < SMALLEST:
        print(f"vLLM's CPU build needs heads of {SMALLEST} numbers or more, and these have {size}")


def _lecture(checkpoint: str | Path, out: Path | None, form: str) -> None:
    from ..model.checkpoint import load_checkpoint, write_tensors
    from ..model.convert import lecture_state_dict

    out = out or OUTPUTS / "lecture.safetensors"
    check_writable(out)
    saved = load_checkpoint(checkpoint)
    write_tensors(out, lecture_state_dict(saved.model), {"format": "GPTLanguageModel"})
    c = saved.model.config
    sizes = f"n_layer={c.n_layer}, n_head={c.n_head}, n_embd={c.n_embd}, block_size={c.block_size}"
    print(f"{saved}\nwritten: {out}, for {sizes}")
    print("model.load_state_dict(safetensors.torch.load_file(PATH)) loads it")
