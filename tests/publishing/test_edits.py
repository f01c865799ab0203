"""Notebook 02 asks its readers to break a head: the judge must say of each edit what is wrong."""

import ast
import contextlib
import io

import nbformat
import pytest
from notebook_fixtures import NOTEBOOKS

from nanogpt.publishing.nbfile import is_blank

DEFINES = (ast.Import, ast.ImportFrom, ast.FunctionDef, ast.ClassDef)
GUARD = "self.cache is not None and not self.training"
EDITS = [
    ("", "", "Right: Head"),
    (" * q.shape[-1] ** -0.5", "", "Both ways share the mistake"),
    ("visible(pos, k_pos), dropout", "torch.ones(len(pos), len(k_pos)).bool(), dropout", "with Dy"),
    ("-2, pos, k)", "-2, pos - pos[0], k)", "with StaticCache the logits differ from those"),
    (GUARD, "not self.training", "AttributeError"),
    (GUARD, "self.cache is not None", "in training mode the head wrote into its cache"),
]


@pytest.mark.parametrize(
    ("old", "new", "verdict"), EDITS, ids=[new or "none" for _, new, _ in EDITS]
)
def test_an_edit_of_the_head_is_judged(old, new, verdict):
    path = next(path for path in NOTEBOOKS if path.stem.startswith("02_"))
    cells = [cell for cell in nbformat.read(path, 4).cells if cell.cell_type == "code"]
    check = next(i for i, cell in enumerate(cells) if cell.id == "judge")
    sources = [cell.source for cell in cells[2:check] if not is_blank(cell)]
    edited = [source.replace(old, new) for source in sources]
    assert (edited != sources) == bool(old)
    parts = [node for source in edited for node in ast.parse(source).body]
    lesson = "\n".join(ast.unparse(node) for node in parts if isinstance(node, DEFINES))
    scope, printed = {"__name__": "__main__"}, io.StringIO()
    exec(lesson, scope)
    with contextlib.redirect_stdout(printed):
        exec(cells[check].source, scope)
    assert verdict in printed.getvalue()
