"""A model's chat template, rendered in jinja2's sandbox.

A template is a program that the model's author wrote. As in transformers, it runs in this process,
in a sandbox from which it reaches neither Python's objects nor files. This file is imported with
the first chat, because jinja2 is not always installed.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from datetime import datetime
from functools import lru_cache
from typing import Any

from jinja2 import Template, TemplateError, nodes
from jinja2.exceptions import SecurityError
from jinja2.ext import Extension, loopcontrols
from jinja2.parser import Parser
from jinja2.runtime import Context, Macro
from jinja2.sandbox import ImmutableSandboxedEnvironment
from jinja2.utils import Namespace

LONGEST_TEXT = 2**24  # characters of a rendered chat
# Numbers in all ranges of a chat: a range over 900 messages for each of them still fits.
MOST_NUMBERS = 10**6


def rendered(template: str, variables: Mapping[str, Any]) -> str:
    """The text of a template with these variables. Raises whatever the template raises."""
    pieces = []
    length = 0
    for piece in compiled(template).generate({"range": Ranges(), **variables}):
        pieces.append(piece)
        length += len(piece)
        check_length(length)
    return "".join(pieces)


def check_length(length: int) -> None:
    if length > LONGEST_TEXT:
        raise ValueError(f"its text has more than {LONGEST_TEXT:,} characters")


# ------------------------------------------------------------------ the sandbox


class Sandbox(ImmutableSandboxedEnvironment):
    """transformers' environment, which also bounds repeated text: `{{ 'a' * 10**10 }}`."""

    intercepted_binops = frozenset(["*"])

    def call_binop(self, context: Context, operator: str, left: Any, right: Any) -> Any:
        # `*` is the one operator that gets here. Text or a list times a number, in either order:
        for one, times in ((left, right), (right, left)):
            if isinstance(one, (str, list)) and isinstance(times, int):
                check_length(len(one) * times)
        return super().call_binop(context, operator, left, right)


class Ranges:
    """`range` of one rendering: all of its ranges together have at most MOST_NUMBERS.

    The sandbox's own bounds each of them alone, so that two loops, one in the other, take minutes.
    """

    def __init__(self) -> None:
        self.left = MOST_NUMBERS

    def __call__(self, *bounds: int) -> range:
        numbers = range(*bounds)
        self.left -= len(numbers)
        if self.left < 0:
            raise OverflowError(f"its ranges have more than {MOST_NUMBERS:,} numbers")
        return numbers


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
    environment = Sandbox(
        trim_blocks=True, lstrip_blocks=True, extensions=[GenerationBlock, loopcontrols]
    )
    environment.filters["tojson"] = to_json
    environment.globals["raise_exception"] = raise_exception
    environment.globals["strftime_now"] = strftime_now
    environment.globals["dict"] = TemplateDict()
    environment.globals["namespace"] = TemplateNamespace
    return environment.from_string(source)
