"""Source code and tables in a cell's output."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from IPython.display import display

from ..bench.tables import table


def show_source(*objects: type | Callable[..., Any], fold: str = "") -> None:
    """Show the actual source of functions and classes, so that text and code cannot differ."""
    text = "\n\n".join(inspect.getsource(thing).rstrip() for thing in objects)
    show_code(text, "python", fold=fold)


def show_code(text: str, language: str, *, fold: str = "") -> None:
    """Show code of any language, highlighted if the viewer can.

    With `fold`, it is collapsed under that label.
    """
    code = text.strip("\n")
    block = f"```{language}\n{code}\n```"
    if fold:
        block = f"<details><summary>{fold}</summary>\n\n{block}\n\n</details>"
    _show(block, code)


def show_table(rows: Sequence[Mapping[str, object]]) -> None:
    """Show rows with equal keys as a table, readable also as plain text."""
    names = list(rows[0])
    lines = [_markdown_row(names), "|" + "---|" * len(names)]
    for row in rows:
        lines.append(_markdown_row([str(row[name]) for name in names]))
    _show("\n".join(lines), table(rows))


def _markdown_row(cells: list[str]) -> str:
    escaped = [cell.replace("|", "\\|") for cell in cells]
    return f"| {' | '.join(escaped)} |"


def _show(markdown: str, plain: str) -> None:
    display({"text/markdown": markdown, "text/plain": plain}, raw=True)
