"""Train, write, save, load and export in environments that people have; a new one is one line."""

import ast
import os
import subprocess
import sys

import pytest

from nanogpt.files import PACKAGE, ROOT

POSIX = {"LC_ALL": "POSIX", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"}
OLD_PROCESSOR = {
    "ATEN_CPU_CAPABILITY": "default",
    "ONEDNN_MAX_CPU_ISA": "SSE41",
    "MKL_ENABLE_INSTRUCTIONS": "SSE4_2",
}
# The variables of each environment; None removes one, and {here} is the folder of the test.
ENVIRONMENTS = {
    "a narrow terminal, in ASCII": {"COLUMNS": "20", "PYTHONIOENCODING": "ascii"},
    "the POSIX locale": POSIX,
    "a temporary folder with a space": {"TMPDIR": "{here}/a b", "TZ": "Pacific/Kiritimati"},
    "no home and no programs": {"HOME": None, "USER": None, "TERM": None, "PATH": "", "CXX": None},
    "an old processor": OLD_PROCESSOR | {"HOME": "/nonexistent", "OMP_NUM_THREADS": "2"},
}
TRAIN = "--data|text.txt|--out|a b/fox|--size|article|--recipe|lecture|--steps|2|--eval-every|1"
TRAIN += "|--eval-batches|1|--batch-size|2"
WRITE = "--prompts|prompts.txt|--out|texts|--backend|modules|--max-new-tokens|3"
# What is run there, one after another: the exit code of each must be 0.
COMMANDS = {
    "help": "--help",
    "help for one": "train|--help",
    "train": f"train|{TRAIN}",
    "resume": f"train|{TRAIN}|--resume",
    "generate": f"generate|--checkpoint|a b/fox|{WRITE}",
    "export": "export|a b/fox|--form|lecture|--out|a b/lecture.safetensors",
}
PROGRAM = """
import sys
from nanogpt.cli import main

def run(words):
    try:
        return main(words)
    except SystemExit as stop:
        return stop.code

codes = [run(command.split("|")) for command in sys.argv[1:]]

import torch
from nanogpt import complete, load_checkpoint, save_checkpoint
saved = load_checkpoint("a b/fox")
prompt = saved.tokenizer.encode("the ")[None]
texts = [complete(saved.model, prompt, 12, generator=torch.Generator().manual_seed(3))]
texts += [complete(saved.model, prompt, 12, cache=None, generator=torch.Generator().manual_seed(3))]
save_checkpoint("again", saved.model, saved.meta)
again = load_checkpoint("again").model
texts += [complete(again, prompt, 12, generator=torch.Generator().manual_seed(3))]
print()
print(codes, all(text.equal(texts[0]) for text in texts))
"""


@pytest.mark.rows(3)
@pytest.mark.slow
@pytest.mark.parametrize("name", ENVIRONMENTS)
def test_commands_work_in_this_environment(name, tmp_path):
    (tmp_path / "a b").mkdir()
    text = "the quick brown fox – “jumps” over\nthe lazy dog.\n" * 40
    (tmp_path / "text.txt").write_text(text, encoding="utf-8")
    (tmp_path / "prompts.txt").write_text("the\n“jump", encoding="utf-8")
    environment = os.environ | {"PYTHONPATH": str(ROOT)}
    for variable, value in ENVIRONMENTS[name].items():
        environment.pop(variable, None)
        if value is not None:
            environment[variable] = value.format(here=tmp_path)
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, *COMMANDS.values()],
        cwd=tmp_path,
        env=environment,
        capture_output=True,
        encoding="utf-8",
        errors="replace",
    )
    assert "Traceback" not in done.stderr, done.stderr
    assert done.stdout.splitlines()[-1:] == [f"{[0] * len(COMMANDS)} True"], done.stderr


def without_encoding(call: ast.Call) -> bool:
    """Whether a call reads or writes text in whatever encoding the locale has."""
    names = {keyword.arg: keyword.value for keyword in call.keywords}
    if "encoding" in names or None in names:
        return False
    text = names.get("text")
    if isinstance(text, ast.Constant) and text.value is True:
        return True
    if isinstance(call.func, ast.Attribute):
        return (call.func.attr, len(call.args)) in (("read_text", 0), ("write_text", 1))
    if not isinstance(call.func, ast.Name) or call.func.id != "open":
        return False
    mode = names.get("mode", call.args[1] if call.args[1:] else ast.Constant("r"))
    return not isinstance(mode, ast.Constant) or "b" not in mode.value


def test_text_is_read_and_written_in_a_named_encoding():
    """Files, and what other programs print: the locale decides nothing."""
    found = []
    for path in [*PACKAGE.rglob("*.py"), *(ROOT / "tests").rglob("*.py")]:
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Call) and without_encoding(node):
                found.append(f"{path.relative_to(ROOT)}:{node.lineno}")
    assert found == []
