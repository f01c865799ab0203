"""Other programs that serve an export of our weights: `transformers serve`, and vLLM."""

from __future__ import annotations

import subprocess
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from ..export.folder import write_folder
from ..model.checkpoint import Checkpoint
from ..system.files import ROOT
from .child import Child

CPU_HEADS = (32, 64, 80, 96, 112, 128, 160, 192, 224, 256, 512)  # that vLLM's CPU build computes
FIND = """import importlib.util, sys
print(*[name for name in sys.argv[1:] if not importlib.util.find_spec(name)])"""
QUIET = {"HF_HUB_OFFLINE": "1", "HF_HUB_DISABLE_TELEMETRY": "1", "DO_NOT_TRACK": "1"}
VLLM = {"VLLM_NO_USAGE_STATS": "1", "VLLM_CPU_KVCACHE_SPACE": "1"}  # in GiB
VLLM |= {"VLLM_CPU_OMP_THREADS_BIND": "nobind"}


@dataclass(frozen=True)
class Peer:
    """A server: how it is started, and what its Python must have."""

    name: str
    modules: tuple[str, ...]
    install: str
    arguments: Callable[[str, str, int], list[str]]  # of a folder, a host and a port
    model: str | None = None  # its name there; None: the folder's
    heads: tuple[int, ...] | None = None  # the sizes of a head that it computes; None: all
    variables: tuple[tuple[str, str], ...] = ()  # of its environment
    home: Path | None = None  # the environment that it has to itself

    def trouble(self, saved: Checkpoint, python: str) -> str | None:
        """Why it cannot serve this model with this Python, and what to do; None when it can."""
        c = saved.model.config
        if self.heads and c.head_size not in self.heads:
            return (
                f"{self.name} computes heads of {self.heads[0]}, {self.heads[1]}, … numbers, and "
                f"these have {c.head_size}: it would die at the first request. Train a shape with "
                f"such heads: python -m nanogpt train --size small --n-head 2"
            )
        try:
            done = subprocess.run(
                [python, "-c", FIND, *self.modules], capture_output=True, text=True, cwd=ROOT
            )
        except OSError as error:
            return f"{python} does not start ({error.strerror}): {self.install}"
        if missing := done.stdout.split() or done.stderr.split()[-1:]:
            return f"{self.name} needs {', '.join(missing)}, which {python} lacks: {self.install}"
        return None


def _transformers(folder: str, host: str, port: int) -> list[str]:
    module, place = "transformers.cli.transformers", ["--host", host, "--port", str(port)]
    return ["-m", module, "serve", folder, *place, "--device", "cpu"]


def _vllm(folder: str, host: str, port: int) -> list[str]:
    module, place = "vllm.entrypoints.openai.api_server", ["--host", host, "--port", str(port)]
    form = ["--served-model-name", "nanogpt", "--dtype", "float32", "--enforce-eager"]
    return ["-m", module, "--model", folder, *place, *form]


PEERS = {
    "transformers": Peer(
        "transformers serve",
        ("transformers", "fastapi", "uvicorn", "pydantic", "openai"),
        "python -m pip install -r requirements-serve.txt",
        _transformers,
    ),
    "vllm": Peer(
        "vLLM",
        ("vllm",),
        "make serve SERVER=vllm puts it into .venv-vllm; --python names another environment's",
        _vllm,
        model="nanogpt",
        heads=CPU_HEADS,
        variables=(*VLLM.items(),),
        home=ROOT / ".venv-vllm" / "bin" / "python",
    ),
}


@contextmanager
def peer_server(
    peer: Peer,
    saved: Checkpoint,
    python: str,
    port: int,
    *,
    limit: float = 600.0,
    say: Callable[[float], None] = lambda seconds: None,
) -> Iterator[tuple[Child, str]]:
    """Export, start the server on 127.0.0.1, wait until it answers.  -> (child, model's name)

    All of it ends with the block: its processes, and the folder. `say` is called with the seconds
    that it has taken. Raises ValueError for what it cannot serve, and Died when it ends by itself,
    or is not ready after `limit` seconds.
    """
    if trouble := peer.trouble(saved, python):
        raise ValueError(trouble)
    with tempfile.TemporaryDirectory(prefix="nanogpt-serve-") as place:
        folder, cache = str(Path(place, "model")), str(Path(place, "cache"))
        Path(cache).mkdir()
        write_folder(saved, Path(folder))
        command = [python, *peer.arguments(folder, "127.0.0.1", port)]
        variables = QUIET | {"HF_HUB_CACHE": cache} | dict(peer.variables)
        url = f"http://127.0.0.1:{port}"
        with Child(peer.name, command, variables, Path(place, "log")) as child:
            child.wait_until_ready(url, limit, say)
            yield child, peer.model or folder
