"""The command line, `python -m nanogpt COMMAND …`: each command parses, calls a library, prints.

A new command is a module with main(argv) -> exit code, and one line in COMMANDS. The words that
call it are the module's name: `bench ladder` is bench_ladder.py.
"""

from __future__ import annotations

import importlib
import sys

from ..system.console import tolerate_any_text

COMMANDS = {  # the words that call it: what it does
    "run": "run the notebooks and render them",
    "train": "train a model on a text, in one process or several",
    "bench ladder": "time every engine at the same tokens",
    "bench train": "time every recipe to the same loss",
    "bench speculate": "time speculation with several drafts",
    "bench load": "throughput and latency under a stream of requests",
    "generate": "many texts, by one worker or several; resumed where it stopped",
    "verify sweep": "decode thousands of texts with and without a cache",
    "serve": "answer over HTTP, as OpenAI's completions are answered",
    "export": "write weights as transformers, vLLM or Karpathy's class load them",
    "site": "render executed notebooks again",
    "sync": "write the package's code into the notebooks",
}


def main(argv: list[str] | None = None) -> int:
    """Run the command that the first words name. Returns its exit code, 2 when there is none.

    Only that command's module is imported, so --help and a wrong word answer without torch.
    """
    tolerate_any_text()
    words = sys.argv[1:] if argv is None else list(argv)
    for n in (1, 2):
        if (name := " ".join(words[:n])) in COMMANDS:
            module = importlib.import_module(f"{__name__}.{name.replace(' ', '_')}")
            return module.main(words[n:])
    group = words[0] if words and any(name.startswith(f"{words[0]} ") for name in COMMANDS) else ""
    rest = words[1:] if group else words
    asked = rest[:1] in (["-h"], ["--help"])
    print(_usage(group), file=sys.stdout if asked else sys.stderr)
    if rest and not asked:
        print(f"\nerror: unknown command {rest[0]!r}", file=sys.stderr)
    return 0 if asked else 2


def _usage(group: str) -> str:
    """The commands that begin with this word; with none, all."""
    names = [name for name in COMMANDS if name.split()[0] == group] or COMMANDS
    lines = [f"  {name:16} {COMMANDS[name]}" for name in names]
    usage = f"usage: python -m nanogpt {group} …" if group else "usage: python -m nanogpt COMMAND …"
    return "\n".join([f"{usage}   (--help after a command shows its options)", "", *lines])
