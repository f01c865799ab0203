"""The page of the public names: their signatures and docstrings, read by pdoc.

pdoc finds the members, signatures and inherited docstrings. The page is ours, so that it looks
like the others.
"""

from __future__ import annotations

import ast
import importlib
import inspect
import re
import textwrap
import warnings
from dataclasses import dataclass, is_dataclass
from enum import Enum
from functools import cache
from importlib.util import find_spec
from typing import Any

import torch

import nanogpt

from ..files import ROOT
from . import address
from .html import TEMPLATES, Prose, coloured

# What pdoc finds for a `forward` without a docstring.
TORCHS = inspect.getdoc(torch.nn.Module.forward)
_OURS = re.compile(r"(nanogpt(?:\.\w+)+)\.([A-Z]\w*)")
_NAME = re.compile(r"<code>(?:nanogpt\.)?(\w+)(\(\))?</code>")


@dataclass(frozen=True)
class ApiEntry:
    """One name: what it is called, its signature and docstring as HTML, and its members."""

    name: str
    anchor: str  # its name on the page, a member's with its class
    signature: str
    text: str
    members: tuple[ApiEntry, ...] = ()
    bases: tuple[str, ...] = ()

    @property
    def is_public(self) -> bool:
        """Whether `import nanogpt` has it; otherwise it is imported from its module."""
        return self.name in nanogpt.__all__


@dataclass(frozen=True)
class Section:
    """The names of one module."""

    module: str
    title: str  # HTML
    entries: tuple[ApiEntry, ...]

    @property
    def anchor(self) -> str:
        """Its name on the page: no name of Python's has a dash."""
        return f"module-{self.module}"


def api_page() -> str | None:
    """The documentation of every public name; None where pdoc is not installed."""
    if find_spec("pdoc") is None:
        return None
    sections = read_sections()
    names = {entry.name for section in sections for entry in section.entries}

    def linked(text: str) -> str:
        """The text, where names that are on the page become links."""

        def link(found: re.Match[str]) -> str:
            return f'<a href="#{found[1]}">{found[0]}</a>' if found[1] in names else found[0]

        return _NAME.sub(link, text)

    repository = address.REPO and f"https://github.com/{address.REPO}/blob/{address.REF}"
    return TEMPLATES.get_template("api.html.j2").render(
        sections=sections, names=names, linked=linked, repository=repository
    )


@cache
def read_sections() -> tuple[Section, ...]:
    """The public names by module, in the order of the package; a module's base classes first."""
    sections = []
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # pdoc's, about names that only type checkers import
        for module, names in _documented().items():
            entries = tuple(_entry(_read(module).members[name]) for name in names)
            title, _, _ = _read(module).docstring.partition("\n\n")
            sections.append(Section(module, _text(title), entries))
    return tuple(sections)


@cache
def _read(module: str) -> Any:
    """pdoc's view of a module of this package."""
    from pdoc.doc import Module

    return Module(importlib.import_module(f"nanogpt.{module}"))


def _documented() -> dict[str, list[str]]:
    """What is documented, by module: the public names, what they inherit from, take and return."""
    names: dict[str, list[str]] = {}
    for name, module in nanogpt._MODULE.items():
        value = getattr(nanogpt, name)
        wanted = [(f"nanogpt.{module}", name)]
        if isinstance(value, type):
            wanted = [(base.__module__, base.__name__) for base in reversed(value.__mro__)]
        wanted += _OURS.findall(_signature(_read(module).members[name]))
        for home, wanted_name in wanted:
            if home.startswith("nanogpt.") and not wanted_name.startswith("_"):
                of_module = names.setdefault(home.removeprefix("nanogpt."), [])
                if wanted_name not in of_module:
                    of_module.append(wanted_name)
    return names


def _entry(member: Any) -> ApiEntry:
    """A class with its documented members, a function, or a constant."""
    inner = [one for one in getattr(member, "own_members", []) if one.name[0] != "_"]
    documented = [one for one in inner if one.docstring and one.docstring != TORCHS]
    return ApiEntry(
        name=member.name,
        anchor=member.qualname,
        signature=coloured(_fields(member) or _plain(_signature(member))),
        text=_text(member.docstring),
        members=tuple(_entry(one) for one in documented),
        bases=tuple(name for home, name, _ in getattr(member, "bases", []) if "nanogpt" in home),
    )


def _signature(member: Any) -> str:
    """As it is written in Python, every type with its module."""
    if member.kind == "class":
        if issubclass(member.obj, Enum):
            members = "".join(f"\n    {one.name} = {one.value!r}" for one in member.obj)
            return f"class {member.name}(Enum):{members}"
        init = member.members.get("__init__")
        if init:
            return f"class {member.name}{init.signature_without_self}"
        inherited = inspect.signature(member.obj.__init__)  # pdoc leaves out that of an ABC
        _, *rest = inherited.parameters.values()
        return f"class {member.name}{inherited.replace(parameters=rest)}"
    if member.kind == "function":
        is_method = "." in member.qualname and not member.is_staticmethod
        signature = member.signature_without_self if is_method else member.signature
        decorators = "".join(f"{decorator}\n" for decorator in member.decorators)
        return f"{decorators}{member.funcdef} {member.name}{signature}"
    if isinstance(member.default_value, dict):
        rows = [f"    {key!r}: {value},\n" for key, value in member.default_value.items()]
        return f"{member.name} = {{\n{''.join(rows)}}}"
    return f"{member.name}{member.annotation_str}"


def _fields(member: Any) -> str:
    """The fields of a dataclass as its source has them, comments included; else empty."""
    if member.kind != "class" or not is_dataclass(member.obj):
        return ""
    own: Any = member.obj
    lines = inspect.getsource(own).splitlines()
    written: Any = ast.parse(textwrap.dedent("\n".join(lines))).body[0]
    body = written.body
    fields = [node for node in body if isinstance(node, ast.AnnAssign)]
    if not fields:
        return ""
    above = [node for node in body if node.end_lineno < fields[0].lineno]
    first = above[-1].end_lineno if above else fields[0].lineno - 1  # comments above it too
    shown = textwrap.dedent("\n".join(lines[first : fields[-1].end_lineno])).strip("\n")
    return f"@dataclass\nclass {member.name}:\n{textwrap.indent(shown, '    ')}"


def _plain(code: str) -> str:
    """Types and members of enums by name alone, as in `Tensor`; defaults that are code as `…`."""
    code = code.replace(f"{ROOT}/", "")
    names = re.sub(r"\b(?:[a-z_]\w*\.)+(?=[A-Z])", "", code)
    names = re.sub(r"<(?:class ')?([\w.]+)(?:'|: [^<>]*)>", r"\1", names)
    names = re.sub(r": '([\w.\[\], |]+)'(?=[,)\n ])", r": \1", names)
    names = re.sub(r"ForwardRef\('([^']*)'\)", r"\1", names)
    return re.sub(r"<factory>|<function [^ ]+?>(?=[,)\n])", "…", names)


def _text(docstring: str) -> str:
    """A docstring as HTML: it is Markdown whose paragraphs are lines of code as well."""
    return Prose(set()).render(docstring)
