"""Tables and source code in a cell's output."""

from __future__ import annotations

import inspect

from IPython.display import display


def show(*objects) -> None:
    """Show the source of package code as it is, so that text and code cannot part."""
    code = "\n\n".join(inspect.getsource(thing).rstrip() for thing in objects)
    display({"text/markdown": f"```python\n{code}\n```", "text/plain": code}, raw=True)


def show_text(text: str, language: str) -> None:
    """Show code of another language, highlighted where the reader's program can."""
    display(
        {"text/markdown": f"```{language}\n{text.strip()}\n```", "text/plain": text.strip()},
        raw=True,
    )


def table(rows: list[dict]) -> None:
    """Show rows of equal keys as a table, also where only plain text is read."""
    heads = list(rows[0])
    cells = [heads] + [[str(row[head]) for head in heads] for row in rows]
    widths = [max(len(line[i]) for line in cells) for i in range(len(heads))]
    plain = "\n".join(
        "  ".join(c.ljust(w) for c, w in zip(line, widths, strict=True)).rstrip() for line in cells
    )
    marked = ["| " + " | ".join(c.replace("|", "\\|") for c in line) + " |" for line in cells]
    marked.insert(1, "|" + "---|" * len(heads))
    display({"text/markdown": "\n".join(marked), "text/plain": plain}, raw=True)
