"""The command line: python -m nanogpt run | train | bench | verify | site | sync."""

from __future__ import annotations

import importlib
import sys

COMMANDS = {
    "run": "run the notebooks and render them",
    "train": "train a model on a text, in one process or several",
    "bench": "measure decoding (ladder), training (train) or speculation (speculate)",
    "verify": "decode thousands of texts in two ways (sweep)",
    "site": "render executed notebooks again",
    "sync": "write the package's code into the notebooks",
}
BENCHES = {"ladder": "bench", "train": "bench_train", "speculate": "bench_speculate"}


def main(argv: list[str] | None = None) -> int:
    """The command that the first word names. Exit code 2 for a word that names none."""
    words = sys.argv[1:] if argv is None else list(argv)
    if not words or words[0] not in COMMANDS:
        asked = words and words[0] not in ("-h", "--help")
        stream = sys.stderr if asked or not words else sys.stdout
        print("usage: python -m nanogpt COMMAND …   (COMMAND --help says more)\n", file=stream)
        print("\n".join(f"  {name:8} {what}" for name, what in COMMANDS.items()), file=stream)
        return 0 if stream is sys.stdout else 2
    name, rest = words[0], words[1:]
    if name == "bench":
        name = BENCHES.get(rest[0] if rest else "", "bench")
        rest = rest[1:] if name != "bench" else rest
    return importlib.import_module(f"nanogpt.cli.{name}").main(rest)
