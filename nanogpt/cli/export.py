"""python -m nanogpt export: a checkpoint's weights, as Karpathy's own class loads them."""

from __future__ import annotations

from pathlib import Path

from ..system.files import PUBLISHED, check_writable
from .common import OUTPUTS, command_parser, exit_code


def main(argv: list[str] | None = None) -> int:
    """Exit codes: 0 written, 2 it could not be."""
    about = "Write weights under the names of GPTLanguageModel in karpathy/ng-video-lecture."
    parser = command_parser("export", about)
    small = PUBLISHED / "checkpoints" / "small"
    parser.add_argument("checkpoint", nargs="?", default=small, help="the one that ships, without")
    parser.add_argument("--out", type=Path, default=OUTPUTS / "lecture.safetensors", metavar="PATH")
    args = parser.parse_args(argv)
    return exit_code(lambda: export(args.checkpoint, args.out))


def export(checkpoint: str | Path, out: Path) -> None:
    """Write the checkpoint's weights to `out`, whole or not at all, and print how to load them."""
    from ..model.checkpoint import load_checkpoint, write_tensors
    from ..model.convert import lecture_state_dict

    check_writable(out)
    saved = load_checkpoint(checkpoint)
    write_tensors(out, lecture_state_dict(saved.model), {"format": "GPTLanguageModel"})
    c = saved.model.config
    sizes = f"n_layer={c.n_layer}, n_head={c.n_head}, n_embd={c.n_embd}, block_size={c.block_size}"
    print(f"{saved}\nwritten: {out}, for {sizes}")
    print("model.load_state_dict(safetensors.torch.load_file(PATH)) loads it")
