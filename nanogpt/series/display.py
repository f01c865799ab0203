"""Source code and tables in a cell's output."""

from __future__ import annotations

import inspect

from IPython.display import display

from ..bench.tables import table


def show_source(*objects) -> None:
    """Show the source of functions and classes as it runs, so that text and code cannot differ."""
    show_code("\n\n".join(inspect.getsource(thing).rstrip() for thing in objects), "python")


def show_code(text: str, language: str) -> None:
    """Show code of any language, highlighted where the reader's program can."""
    code = text.strip("\n")
    _show(f"```{language}\n{code}\n```", code)


def show_table(rows: list[dict]) -> None:
    """Show rows of equal keys as a table, also where only plain text is read."""
    names = list(rows[0])
    lines = [names] + [[str(row[name]) for name in names] for row in rows]
    escaped = ([cell.replace("|", "\\|") for cell in line] for line in lines)
    head, *body = (f"| {' | '.join(line)} |" for line in escaped)
    markdown = "\n".join([head, "|" + "---|" * len(names), *body])
    _show(markdown, table(rows))


def _show(markdown: str, plain: str) -> None:
    display({"text/markdown": markdown, "text/plain": plain}, raw=True)
