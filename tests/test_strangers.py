"""Files that somebody else made can damage nothing: no code in them runs, no path is followed."""

import ast
from pathlib import Path

import pytest
from checkpoint_fixtures import meta_of
from conftest import tiny_model

import nanogpt
from nanogpt.decoder.checkpoint import load_checkpoint, save_checkpoint

PACKAGE = Path(nanogpt.__file__).parent
PATHS = sorted(PACKAGE.rglob("*.py"))
# What turns bytes into code, or objects of any class.
MODULES = set("pickle cPickle dill cloudpickle marshal shelve joblib yaml runpy".split())
BUILTINS = {"eval", "exec", "compile", "__import__", "breakpoint"}
READERS = {"torch.load", "torch.jit.load", "torch.hub.load", "np.load", "numpy.load"}


def dangers(path: Path) -> list[str]:
    """Where a module could turn bytes into code or into objects of any class."""
    nodes = list(ast.walk(ast.parse(path.read_text(encoding="utf-8"))))
    imported = {a.name for node in nodes if isinstance(node, ast.Import) for a in node.names}
    imported |= {node.module or "" for node in nodes if isinstance(node, ast.ImportFrom)}
    found = [f"imports {name}" for name in imported if name.split(".")[0] in MODULES]
    for node in (node for node in nodes if isinstance(node, ast.Call)):
        options = {keyword.arg for keyword in node.keywords}
        loads = [ast.unparse(k.value) for k in node.keywords if k.arg == "weights_only"]
        if ast.unparse(node.func) == "torch.load" and loads == ["True"]:
            continue  # tensors and plain data: nanoGPT's ckpt.pt
        called = ast.unparse(node.func) if isinstance(node.func, (ast.Name, ast.Attribute)) else ""
        if called in BUILTINS | READERS or options & {"shell", "allow_pickle", "weights_only"}:
            found.append(f"line {node.lineno}: {ast.unparse(node)[:60]}")
    return [f"{path.relative_to(PACKAGE)} {fault}" for fault in found]


def test_nothing_in_the_package_can_unpickle_or_run_what_it_reads():
    """But for the reader's own code, outputs/mine/lesson.py."""
    others = [path for path in PATHS if path != PACKAGE / "series" / "mine.py"]
    assert len(others) == len(PATHS) - 1 > 60
    assert [fault for path in others for fault in dangers(path)] == []


@pytest.mark.parametrize(
    "content", ["", "{", "[]", '{"config": {"n_layer": 99}}', '{"path": "/etc/passwd"}'], ids=repr
)
def test_the_json_beside_a_checkpoint_is_for_readers_and_decides_nothing(tmp_path, content):
    saved = tmp_path / "fox"
    model = tiny_model()
    save_checkpoint(saved, model, meta_of(model))
    expected = load_checkpoint(saved)
    saved.with_name("fox.json").write_text(content, encoding="utf-8")
    found = load_checkpoint(saved)
    assert (found.meta, found.sha256) == (expected.meta, expected.sha256)


def test_a_path_in_the_metadata_is_a_name_and_nothing_more(tmp_path):
    secret = tmp_path / "secret.txt"
    model = tiny_model()
    secret.write_text("not for you", encoding="utf-8")
    named = {"name": str(secret), "sha256": str(secret)}
    save_checkpoint(tmp_path / "fox", model, meta_of(model, corpus=named))
    found = load_checkpoint(tmp_path / "fox")
    assert "not for you" not in str(found) + str(found.meta)
    assert found.meta["corpus"] == named
