"""Does an answer only use the package's own code? Then a grader marks it.

Found are the wrappers that people hand in, such as `return nanogpt.attention.visible(q, k)`, a
class that inherits from the package's, and wrappers of these. Nothing else is searched for: a
wrapper in disguise is for the teacher's eyes.
"""

from __future__ import annotations

import ast
from types import FunctionType
from typing import Any

from .blanks import BLANKS
from .lesson import Scope
from .program import needed

_IMPORTS = (ast.Import, ast.ImportFrom)


def borrowed(text: str, scope: Scope, name: str) -> str:
    """What an answer takes from the package, beyond what its solution uses; "" for nothing.

    `scope` is the lesson's namespace after `text` was executed.
    """
    # 1. What any answer may use: whatever the solution uses, and the other exercises.
    allowed = {id(thing) for thing in _used(ast.parse(BLANKS[name].source), scope)}
    allowed |= {id(blank.solution) for other, blank in BLANKS.items() if other != name}

    # 2. The answer, and all that it uses of the learner's own definitions.
    parts = needed(ast.parse(text).body, name, BLANKS)

    # 3. Its names that stand for the package's functions or classes.
    things = [scope.get(name)]
    for part in parts:
        if not isinstance(part, _IMPORTS):
            things += _used(part, scope)
    for thing in things:
        if id(thing) in allowed or not isinstance(thing, (FunctionType, type)):
            continue
        if thing.__module__.startswith("nanogpt."):
            return f"{thing.__module__}.{thing.__qualname__}"
    return ""


def _used(tree: ast.AST, scope: Scope) -> list[Any]:
    """The objects that names such as `visible` and `nanogpt.attention.visible` stand for."""
    return [thing for node in ast.walk(tree) if (thing := _value(node, scope)) is not None]


def _value(node: ast.AST, scope: Scope) -> Any:
    """The object that a name or a dotted name stands for; None if there is none."""
    if isinstance(node, ast.Name):
        return scope.get(node.id)
    if isinstance(node, ast.Attribute):
        return getattr(_value(node.value, scope), node.attr, None)
    return None
