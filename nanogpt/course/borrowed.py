"""Does an answer only use the package's own code? Then a grader marks it."""

from __future__ import annotations

import ast
from types import FunctionType
from typing import Any

from .blanks import BLANKS
from .lesson import Scope
from .program import DEFS

_OURS = "nanogpt."


def borrowed(text: str, scope: Scope, name: str) -> str:
    """What an answer takes from the package, beyond what its solution uses; "" for nothing.

    `scope` is the lesson's namespace after `text` was executed. Names are followed through the
    learner's own functions and classes, so a wrapper of a wrapper is found too; a name that is only
    computed while the code runs is not.
    """
    own = {node.name: node for node in _body(text) if isinstance(node, DEFS)}
    allowed = {id(thing) for thing in _used(ast.parse(BLANKS[name].source), scope)}
    allowed |= {id(blank.solution) for other, blank in BLANKS.items() if other != name}
    seen: set[str] = set()
    todo = [name]
    things: list[Any]
    while todo:
        current = todo.pop()
        seen.add(current)
        if current not in own:
            # `Head = nanogpt.Head`: the answer itself is the package's
            things = [scope.get(current)]
        else:
            things = _used(own[current], scope)
            names = {node.id for node in ast.walk(own[current]) if isinstance(node, ast.Name)}
            todo += [one for one in names & own.keys() if one not in seen and one not in BLANKS]
        for thing in things:
            if _is_package(thing) and id(thing) not in allowed:
                return f"{thing.__module__}.{thing.__qualname__}"
    return ""


def _body(text: str) -> list[ast.stmt]:
    try:
        return ast.parse(text).body
    except (SyntaxError, ValueError):
        return []


def _used(tree: ast.AST, scope: Scope) -> list[Any]:
    """The objects that names such as `visible` and `nanogpt.attention.visible` stand for."""
    found = []
    for node in ast.walk(tree):
        thing = _value(node, scope)
        if thing is not None:
            found.append(thing)
    return found


def _value(node: ast.AST, scope: Scope) -> Any:
    """The object that a name or a dotted name stands for; None if there is none."""
    if isinstance(node, ast.Name):
        return scope.get(node.id)
    if isinstance(node, ast.Attribute):
        return getattr(_value(node.value, scope), node.attr, None)
    return None


def _is_package(thing: Any) -> bool:
    """Whether a function or a class is this package's own."""
    return isinstance(thing, (FunctionType, type)) and thing.__module__.startswith(_OURS)
