"""Does an answer only use the package's own code? Then a grader marks it."""

from __future__ import annotations

import ast
from types import FunctionType, ModuleType
from typing import Any

from .blanks import BLANKS
from .lesson import Scope
from .program import DEFS

_OURS = "nanogpt."
_COURSE = "nanogpt.course."  # the answers; a lesson imports them all, and names them in no answer


def borrowed(text: str, scope: Scope, name: str) -> str:
    """What an answer takes from the package, beyond what its solution uses; "" for nothing.

    `scope` is the lesson's namespace after `text` was executed. Names are followed through the
    learner's own functions, classes and assignments, so a wrapper of a wrapper is found too; what
    is only computed while the code runs, as by getattr or exec, is not.
    """
    own = {made: node for node in _body(text) for made in _made(node)}
    allowed = {id(thing) for thing in _used(ast.parse(BLANKS[name].source), scope)}
    allowed |= {id(blank.solution) for other, blank in BLANKS.items() if other != name}
    seen: set[str] = set()
    todo = [name]
    while todo:
        current = todo.pop()
        seen.add(current)
        things = [scope.get(current), *_defaults(scope.get(current))]
        if current in own:
            things += _used(own[current], scope)
            names = {node.id for node in ast.walk(own[current]) if isinstance(node, ast.Name)}
            todo += [one for one in names & own.keys() if one not in seen and one not in BLANKS]
        for thing in things:
            if id(thing) not in allowed and _is_package(thing):
                return _name_of(thing)
    return ""


def _body(text: str) -> list[ast.stmt]:
    try:
        return ast.parse(text).body
    except (SyntaxError, ValueError):
        return []


def _made(node: ast.stmt) -> list[str]:
    """The names that a definition or an assignment makes."""
    if isinstance(node, DEFS):
        return [node.name]
    targets = node.targets if isinstance(node, ast.Assign) else []
    return [target.id for target in targets if isinstance(target, ast.Name)]


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


def _defaults(answer: Any) -> list[Any]:
    """What a function keeps in its default arguments, also inside a list or a dictionary."""
    found: list[Any] = []
    if isinstance(answer, FunctionType):
        for value in [*(answer.__defaults__ or ()), *(answer.__kwdefaults__ or {}).values()]:
            inside = value.values() if isinstance(value, dict) else value
            found += [value, *(inside if isinstance(value, (list, tuple, dict)) else [])]
    return found


def _is_package(thing: Any) -> bool:
    """Whether a function or a class is this package's own, or a module or a page has answers."""
    if isinstance(thing, ModuleType):
        return f"{thing.__name__}.".startswith(_COURSE)
    if thing is BLANKS:
        return True
    return isinstance(thing, (FunctionType, type)) and str(thing.__module__).startswith(_OURS)


def _name_of(thing: Any) -> str:
    if isinstance(thing, ModuleType):
        return thing.__name__
    if thing is BLANKS:
        return f"{_COURSE}blanks.BLANKS"
    return f"{thing.__module__}.{thing.__qualname__}"
