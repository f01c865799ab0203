"""Every public name has a type that an editor can complete and mypy can check."""

import ast
from pathlib import Path

import pytest

import nanogpt

SOURCE = Path(nanogpt.__file__)
# Other packages are left out: they take mypy a quarter of a minute.
CONFIG = """
[mypy]
follow_imports = skip
[mypy-nanogpt.*]
follow_imports = silent
"""


def test_public_names_are_imported_as_themselves():
    """To `mypy --strict`, only a name imported as itself is public."""
    tree = ast.parse(SOURCE.read_text(encoding="utf-8"))
    lines = [line for line in ast.walk(tree) if isinstance(line, ast.ImportFrom) and line.level]
    aliases = [alias for line in lines for alias in line.names]
    assert {alias.name for alias in aliases} == {*nanogpt.__all__}
    assert [alias.name for alias in aliases if alias.asname != alias.name] == []


@pytest.mark.release
def test_no_public_name_is_any_to_mypy(tmp_path):
    """Witness: with py.typed and only a __getattr__, every public name was `Any` to Pylance."""
    api = pytest.importorskip("mypy.api", reason="mypy is in the extra `test`")
    program = tmp_path / "program.py"
    lines = ["import nanogpt", *(f"reveal_type(nanogpt.{name})" for name in nanogpt.__all__)]
    lines.append("nanogpt.nothing")
    program.write_text("\n".join(lines), encoding="utf-8")
    (tmp_path / "mypy.ini").write_text(CONFIG, encoding="utf-8")
    options = ["--config-file", str(tmp_path / "mypy.ini"), "--cache-dir", str(tmp_path / "cache")]
    said, errors, _ = api.run([*options, str(program)])
    found = dict(zip(nanogpt.__all__, said.splitlines(), strict=False))
    assert not errors
    assert len(said.splitlines()) == len(nanogpt.__all__) + 2, said  # an error, and their number
    assert not [name for name, line in found.items() if line.endswith('Revealed type is "Any"')]
    assert 'Module has no attribute "nothing"' in said
