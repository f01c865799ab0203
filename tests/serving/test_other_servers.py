"""An export of our weights, served by another program: its greedy text is ours."""

import importlib.util
import os
import socket
import subprocess
import sys

import pytest
from checkpoint_fixtures import meta_of
from conftest import tiny_model
from server_fixtures import CHARS, ask, expected, post, until

from nanogpt.decoder.checkpoint import load_checkpoint, save_checkpoint
from nanogpt.pretrained.write import write_folder
from nanogpt.sampling import SamplingParams

NEEDED = ("transformers", "fastapi", "uvicorn", "pydantic", "openai")
MISSING = [name for name in NEEDED if not importlib.util.find_spec(name)]
QUIET = {"HF_HUB_OFFLINE": "1", "HF_HUB_DISABLE_TELEMETRY": "1", "DO_NOT_TRACK": "1"}


@pytest.mark.release
@pytest.mark.skipif(bool(MISSING), reason=f"{', '.join(MISSING)} not installed")
def test_transformers_serve_gives_our_text(tmp_path):
    model = tiny_model()
    folder = tmp_path / "export"
    log = tmp_path / "log"
    save_checkpoint(tmp_path / "fox", model, meta_of(model, vocabulary=CHARS.chars))
    write_folder(load_checkpoint(tmp_path / "fox"), folder)
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        url = f"http://127.0.0.1:{probe.getsockname()[1]}"
    words = [sys.executable, "-m", "transformers.cli.transformers", "serve", str(folder)]
    words += ["--host", "127.0.0.1", "--port", url.rpartition(":")[2], "--device", "cpu"]
    variables = os.environ | QUIET | {"HF_HUB_CACHE": str(tmp_path)}
    with (
        open(log, "wb") as output,
        subprocess.Popen(words, stdout=output, stderr=output, env=variables) as process,
    ):
        try:
            until(lambda: process.poll() is not None or answers(url), 300)
            assert process.poll() is None, log.read_text(encoding="utf-8")
            fields = {"prompt": "abc", "max_tokens": 20, "temperature": 0}
            code, answer = post(url, model=str(folder), **fields)
        finally:
            process.kill()
    assert code == 200, answer
    assert answer["choices"][0]["text"] == expected(model, "abc", 20, SamplingParams(greedy=True))


def answers(url: str) -> bool:
    try:
        return ask(url, "GET", "/health")[0] == 200
    except OSError:
        return False
