"""Files that somebody else made can damage nothing: no code in them runs, no path is followed."""

import ast
import json
import struct
from pathlib import Path

import pytest
from conftest import tiny_model

import nanogpt
from nanogpt.data.tokenizer import CharTokenizer
from nanogpt.model import checkpoint
from nanogpt.model.checkpoint import FORMAT, CheckpointError, load_checkpoint, save_checkpoint

PACKAGE = Path(nanogpt.__file__).parent
PATHS = sorted(PACKAGE.rglob("*.py"))
# What turns bytes into code, or objects of any class.
MODULES = set("pickle cPickle dill cloudpickle marshal shelve joblib yaml runpy".split())
BUILTINS = {"eval", "exec", "compile", "__import__", "breakpoint", "input"}
READERS = {"torch.load", "torch.jit.load", "torch.hub.load", "np.load", "numpy.load"}


def dangers(path: Path) -> list[str]:
    """Where a module could turn bytes into code or into objects of any class."""
    nodes = list(ast.walk(ast.parse(path.read_text(encoding="utf-8"))))
    imported = {a.name for node in nodes if isinstance(node, ast.Import) for a in node.names}
    imported |= {node.module or "" for node in nodes if isinstance(node, ast.ImportFrom)}
    found = [f"imports {name}" for name in imported if name.split(".")[0] in MODULES]
    for node in (node for node in nodes if isinstance(node, ast.Call)):
        options = {keyword.arg for keyword in node.keywords}
        called = ast.unparse(node.func) if isinstance(node.func, (ast.Name, ast.Attribute)) else ""
        if called in BUILTINS | READERS or options & {"shell", "allow_pickle", "weights_only"}:
            found.append(f"line {node.lineno}: {ast.unparse(node)[:60]}")
    return [f"{path.relative_to(PACKAGE)} {fault}" for fault in found]


def test_nothing_in_the_package_can_unpickle_or_run_what_it_reads():
    """But for the reader's own code, outputs/mine/lesson.py, and the blanks of the notebooks."""
    others = [path for path in PATHS if path != PACKAGE / "notebook" / "mine.py"]
    assert len(others) == len(PATHS) - 1
    assert [fault for path in others for fault in dangers(path)] == []


def test_every_room_is_looked_at():
    assert {path.parent.name for path in PATHS} >= {"model", "training", "publishing", "cli"}
    assert len(PATHS) > 60


def test_a_header_is_bounded_before_memory_is_asked_for(tmp_path):
    path = tmp_path / "huge.safetensors"
    for claimed in (2**63 - 1, 2**40, 101 * 10**6):
        path.write_bytes(struct.pack("<Q", claimed) + b"{}" * 50)
        with pytest.raises(CheckpointError, match="damaged or no safetensors"):
            load_checkpoint(path)


@pytest.fixture
def saved(tmp_path):
    model = tiny_model()
    chars = CharTokenizer("abcdefghijklm").chars
    config = {key: getattr(model.config, key) for key in model.config.__dataclass_fields__}
    meta = {
        "format": FORMAT,
        "config": config,
        "vocabulary": chars,
        "step": 1,
        "losses": {"val": 1.0},
        "corpus": {"name": "a corpus", "sha256": "0"},
    }
    save_checkpoint(tmp_path / "fox", model, meta)
    return tmp_path / "fox"


@pytest.mark.parametrize(
    "content", ["", "{", "[]", '{"config": {"n_layer": 99}}', '{"path": "/etc/passwd"}'], ids=repr
)
def test_the_json_beside_a_checkpoint_is_for_readers_and_decides_nothing(saved, content):
    expected = load_checkpoint(saved)
    saved.with_name("fox.json").write_text(content)
    found = load_checkpoint(saved)
    assert (found.meta, found.sha256) == (expected.meta, expected.sha256)


def test_a_path_in_the_metadata_is_a_name_and_nothing_more(saved, tmp_path):
    from safetensors.torch import load_file, save_file

    secret = tmp_path / "secret.txt"
    secret.write_text("not for you")
    meta = load_checkpoint(saved).meta | {"corpus": {"name": str(secret), "sha256": str(secret)}}
    path, state = tmp_path / "mine.safetensors", load_file(saved.with_name("fox.safetensors"))
    meta["digest"] = checkpoint._digest(json.dumps(meta), state)
    save_file(state, path, metadata={"nanogpt": json.dumps(meta)})
    found = load_checkpoint(path)
    assert "not for you" not in str(found) + str(found.meta)
    assert found.meta["corpus"]["name"] == str(secret)
