"""A program of its own that renders chat templates: `chat.py` starts it and talks to it.

A template is a program that came with a model. It runs here, in Jinja's sandbox, in a process that
has a limit of memory and of computing time, so that it can exhaust neither the machine nor the
program that asked. This file imports nothing of the package, so that it starts in a moment.

    python -I -S chat_process.py SYS_PATH SECONDS

It reads one request a line and writes one answer a line, both as JSON:

    {"template": "…", "variables": {"messages": […], …}}
    {"text": "…"} or {"error": "…"}

It ends with its input, and is ended by SIGPROF where a template computes for too long.
"""

from __future__ import annotations

import json
import sys

# The folders where the program that started this one finds its packages; jinja2 is in one of them.
if __name__ == "__main__":
    sys.path[:] = json.loads(sys.argv[1])

import resource
import signal
from datetime import datetime
from functools import lru_cache
from typing import Any

from jinja2 import Template, TemplateError, nodes
from jinja2.exceptions import SecurityError
from jinja2.ext import Extension, loopcontrols
from jinja2.parser import Parser
from jinja2.runtime import Macro
from jinja2.sandbox import ImmutableSandboxedEnvironment
from jinja2.utils import Namespace

MEMORY = 2**29  # bytes, beyond what this program has when it is ready
LONGEST_TEXT = 2**24  # characters of a rendered chat

# ------------------------------------------------------------------ what a template may use
# The variables, filters and statements are those of transformers' apply_chat_template (5.24).


class GenerationBlock(Extension):
    """`{% generation %}…{% endgeneration %}` marks what the model wrote, for training: no text.

    Its inside is a call block, as in transformers, so a variable set there is not seen outside.
    """

    tags = {"generation"}

    def parse(self, parser: Parser) -> nodes.Node:
        line = next(parser.stream).lineno
        body = parser.parse_statements(("name:endgeneration",), drop_needle=True)
        return nodes.CallBlock(self.call_method("inside"), [], [], body).set_lineno(line)

    def inside(self, caller: Macro) -> str:
        return str(caller())


class TemplateDict:
    """`dict(…)`, without the attributes of Python's class."""

    def __call__(self, *args: Any, **entries: Any) -> dict[Any, Any]:
        return dict(*args, **entries)

    def fromkeys(self, *args: Any) -> dict[Any, Any]:
        return dict.fromkeys(*args)


class TemplateNamespace(Namespace):
    """`namespace(…)`, whose names may not begin with an underscore."""

    def __init__(*args: Any, **entries: Any) -> None:
        self, *rest = args
        for name in dict(*rest, **entries):
            _check_entry(name)
        Namespace.__init__(self, *rest, **entries)

    def __setitem__(self, name: str, value: Any) -> None:
        _check_entry(name)
        super().__setitem__(name, value)


def _check_entry(name: str) -> None:
    if str(name).startswith("_"):
        raise SecurityError(f"a namespace may not have the entry {name!r:.60}")


def raise_exception(message: object) -> None:
    raise TemplateError(str(message))


def strftime_now(form: str) -> str:
    return datetime.now().strftime(form)


def to_json(
    value: Any,
    ensure_ascii: bool = False,
    indent: int | str | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    """JSON as a model reads it; jinja2's own filter is for HTML."""
    return json.dumps(
        value,
        ensure_ascii=ensure_ascii,
        indent=indent,
        separators=separators,
        sort_keys=sort_keys,
    )


@lru_cache(maxsize=8)
def compiled(source: str) -> Template:
    environment = ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=[GenerationBlock, loopcontrols]
    )
    environment.filters["tojson"] = to_json
    environment.globals["raise_exception"] = raise_exception
    environment.globals["strftime_now"] = strftime_now
    environment.globals["dict"] = TemplateDict()
    environment.globals["namespace"] = TemplateNamespace
    return environment.from_string(source)


# ------------------------------------------------------------------ one request


def answered(request: dict[str, Any]) -> dict[str, str]:
    """The text of a request, or why there is none."""
    # A template can raise anything: what the sandbox refuses, what its own arithmetic raises, the
    # SyntaxError of Python code that jinja2 made of it, RecursionError, MemoryError.
    try:
        return {"text": rendered(request["template"], request["variables"])}
    except Exception as error:
        lines = str(error).strip().splitlines()
        return {"error": lines[0][:200] if lines else type(error).__name__}


def rendered(template: str, variables: dict[str, Any]) -> str:
    pieces = []
    length = 0
    for piece in compiled(template).generate(variables):
        pieces.append(piece)
        length += len(piece)
        if length > LONGEST_TEXT:
            raise ValueError(f"its text has more than {LONGEST_TEXT:,} characters")
    return "".join(pieces)


# ------------------------------------------------------------------ limits


def limit_memory() -> None:
    """Limit the address space: an allocation beyond it is a MemoryError.

    Only where the system says how much this process has, which macOS does not: there the limit of
    time alone holds.
    """
    try:
        with open("/proc/self/statm", encoding="ascii") as file:
            pages = int(file.read().split()[0])
        limit = pages * resource.getpagesize() + MEMORY
        resource.setrlimit(resource.RLIMIT_AS, (limit, limit))
    except (OSError, ValueError):
        return


def main(seconds: float) -> None:
    """Answer requests; each may compute for so many seconds."""
    # 1. Ctrl-C in a terminal reaches every process there; only the program that asks decides.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    # The signal of the clock ends this process, whatever the program that started it has set.
    signal.signal(signal.SIGPROF, signal.SIG_DFL)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, [signal.SIGPROF])
    limit_memory()
    for line in sys.stdin.buffer:
        # 2. The clock counts computing, not waiting, so a busy machine refuses no template. It runs
        # out in the middle of anything, 10**(10**10) included, because no handler has to run.
        signal.setitimer(signal.ITIMER_PROF, seconds)
        answer = answered(json.loads(line))
        signal.setitimer(signal.ITIMER_PROF, 0)
        # 3. JSON escapes halves of surrogate pairs, which no encoding of a pipe can carry.
        sys.stdout.buffer.write(json.dumps(answer).encode("ascii") + b"\n")
        sys.stdout.buffer.flush()


if __name__ == "__main__":
    main(float(sys.argv[2]))
