"""Real kernels: what a notebook finds there, what is left of it, and how it is stopped.

A kernel costs seconds, so five notebooks of one run answer most questions.
"""

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import nbformat
import pytest
import torch
from fault_fixtures import contents
from notebook_fixtures import page_faults, write

from nanogpt.engines.toolchain import cache_folder
from nanogpt.files import OURS, ROOT, write_json
from nanogpt.site import reading
from nanogpt.site.nbfile import METADATA

pytestmark = pytest.mark.release

FILES = """
import json, os, pathlib, sys
out = pathlib.Path(os.environ["NANOGPT_OUT"])
for name in ("figures/00_a.png", "json/00.json"):
    (out / name).parent.mkdir(exist_ok=True)
    (out / name).write_text(f"{n}")
print(profile, n, word)
"""
ASK = """names = 'MPLBACKEND', 'TQDM_DISABLE', 'PYTHONHASHSEED', 'NANOGPT_RUN'
names = *names, 'TORCHINDUCTOR_CACHE_DIR'
environment = {name: os.environ.get(name) for name in names}
print(json.dumps([sys.executable, os.getcwd(), environment]))"""
STREAMS = """for i in range(3):
    print(i, flush=True)
print('10%\\r 50%\\r100%')
print('!', file=sys.stderr)
object"""
LOG = "get_ipython().kernel.log.error('KeyboardInterrupt caught in kernel.')"
ONLY = 'profile: str = "auto"'
NOTEBOOKS = {
    "00_good": (FILES, ASK, STREAMS, LOG),
    "01_bad": (
        FILES,
        "print('as far as here')",
        f"{LOG}\nraise ValueError('\\n too much \\nmore')",
        "print('never')",
    ),
    "02_julia": ("print('still run')",),
    "03_dead": ("import os\nos._exit(1)",),
    "04_slow": ("import time\nprint('before', flush=True)\ntime.sleep(600)",),
}


def command(notebooks, out, *words) -> list[str]:
    folders = ["--source", str(notebooks), "--out", str(out)]
    return [sys.executable, "-m", "nanogpt", "run", "--profile", "smoke", *folders, *words]


@pytest.fixture(scope="module")
def ran(tmp_path_factory):
    """One run of five notebooks, of which two pass: the finished process, the output folder.

    A kernel of another name and a stale one of ours stand where Jupyter looks for kernels.
    """
    folder = tmp_path_factory.mktemp("ran")
    (folder / "little.txt").write_text("To be, or not to be.\n" * 250, encoding="utf-8")
    for name, cells in NOTEBOOKS.items():
        given = {} if FILES in cells else {"parameters": ONLY}
        path = write(folder / "notebooks" / f"{name}.ipynb", *cells, **given)
        nb = nbformat.read(path, 4)
        nb.metadata.kernelspec = {"name": "julia-1.9", "language": "julia", "display_name": "Julia"}
        if name == "02_julia":
            nbformat.write(nb, path)
    stale = folder / "stale" / "kernels" / "python3" / "kernel.json"
    stale.parent.mkdir(parents=True)
    argv = ["/gone/python", "{connection_file}"]
    stale.write_text(
        json.dumps({"argv": argv, "display_name": "x", "language": "python"}), encoding="utf-8"
    )
    environment = {
        **os.environ,
        "NANOGPT_DATA": str(folder / "little.txt"),
        "JUPYTER_PATH": str(folder / "stale"),
        "JUPYTER_PREFER_ENV_PATH": "0",
        "MPLBACKEND": "pdf",
    }
    words = command(folder / "notebooks", folder / "out", "-p", "n=5", "--timeout", "5")
    pipes = {"stdin": subprocess.DEVNULL, "capture_output": True, "text": True}
    return subprocess.run(words, cwd=ROOT, env=environment, **pipes), folder / "out"


def cells_of(path):
    return {cell.id: cell for cell in nbformat.read(path, 4).cells}


def test_a_failure_stops_no_other_and_its_reason_is_kept(ran):
    done, out = ran
    assert done.returncode == 1, done.stderr
    card = json.loads((out / "manifest.json").read_text(encoding="utf-8"))
    assert [entry["ok"] for entry in card["notebooks"]] == [True, False, True, False, False]
    reasons = [entry["error"] for entry in card["notebooks"]]
    assert reasons[1] == "cell 'cell-3': ValueError: too much"
    assert reasons[3] == "cell 'cell-1' killed its kernel: usually it ran out of memory"
    assert reasons[4] == "cell 'cell-1' ran longer than 5 s: allow more with --timeout"
    assert (card["profile"], card["settings"]) == ("smoke", ["n=5"])
    assert card["corpus"]["name"] == "little.txt"
    assert card["environment"]["torch"] == torch.__version__
    assert "json/00.json" in card["notebooks"][0]["files"]


def test_a_run_prints_progress_lines_a_table_and_the_log_of_a_failed_notebook(ran):
    done, out = ran
    lines = done.stdout.splitlines()
    assert "2 of 5 passed, profile smoke" in done.stdout
    assert "\r" not in done.stdout + done.stderr
    failed = lines.index("01_bad failed: cell 'cell-3': ValueError: too much")
    assert lines[failed + 1].endswith("ERROR | KeyboardInterrupt caught in kernel.")
    assert (done.stdout + done.stderr).count("KeyboardInterrupt") == 1
    assert "KeyboardInterrupt" in (out / "failed" / "01_bad" / "kernel.log").read_text(
        encoding="utf-8"
    )
    assert not (out / "kernel.log").exists()


def test_the_kernel_is_the_runners_interpreter_in_a_clean_environment(ran):
    cells = cells_of(ran[1] / "00_good.ipynb")
    python, folder, environment = json.loads(cells["cell-2"].outputs[0].text)
    assert (python, folder) == (sys.executable, str(ROOT))
    assert environment.pop("MPLBACKEND") != "pdf"
    kept = environment.pop("TORCHINDUCTOR_CACHE_DIR")  # not in the kernel's temporary folder
    assert kept == os.environ.get("TORCHINDUCTOR_CACHE_DIR", str(cache_folder() / "inductor"))
    own = {"TQDM_DISABLE": "1", "PYTHONHASHSEED": "0", "NANOGPT_RUN": str(ran[1])}
    assert environment == own
    assert cells["cell-1"].outputs[0].text == "smoke 5 None\n"
    assert cells["injected-parameters"].source == '# Parameters\nprofile = "smoke"\nn = 5'


def test_a_passed_notebooks_files_are_in_place_and_a_failed_ones_set_aside(ran):
    out = ran[1]
    mask = os.umask(0)
    os.umask(mask)
    for file in ("figures/00_a.png", "json/00.json", "00_good.ipynb", "02_julia.ipynb"):
        assert (out / file).stat().st_mode & 0o777 == 0o666 & ~mask, file
    assert not list(out.glob(".running-*"))
    assert sorted(path.name for path in out.glob("*.ipynb")) == ["00_good.ipynb", "02_julia.ipynb"]
    failed = cells_of(out / "failed" / "01_bad" / "01_bad.ipynb")
    assert failed["cell-2"].outputs[0].text == "as far as here\n"
    assert failed["cell-3"].outputs[0].ename == "ValueError"
    assert failed["cell-4"].outputs == []
    assert (out / "failed" / "01_bad" / "json" / "00.json").is_file()
    slow = cells_of(out / "failed" / "04_slow" / "04_slow.ipynb")
    assert slow["cell-1"].outputs[0].text == "before\n"


def test_executed_notebooks_are_plain_whatever_kernel_the_source_names(ran):
    for name in ("00_good.ipynb", "02_julia.ipynb", "failed/03_dead/03_dead.ipynb"):
        nb = nbformat.read(ran[1] / name, 4)
        assert nb.metadata == METADATA
        assert all(set(cell.metadata) <= {"tags", "nanogpt"} for cell in nb.cells)
    streams = cells_of(ran[1] / "00_good.ipynb")["cell-3"].outputs
    assert [o.get("name") for o in streams] == ["stdout", "stderr", None]
    assert streams[0].text.splitlines() == ["0", "1", "2", "100%"]
    pages = ran[1] / "html"
    names = {"api", "index", "live", "museum", "your_cache", "00_good", "02_julia", *reading.PAGES}
    assert {page.stem for page in pages.iterdir()} == names
    assert page_faults(pages / "index.html") == page_faults(pages / "00_good.html") == []


# ------------------------------------------------------------------ runs that are stopped

WAIT = """import os, pathlib, time
path = pathlib.Path(word)
path.with_suffix(".new").write_text(str(os.getpid()))
path.with_suffix(".new").rename(path)
time.sleep(600)"""


@pytest.fixture
def begin(sources, tmp_path):
    """Start a run of its own process group and wait until its notebook runs: (process, kernel)."""
    started = []
    mark = tmp_path / "mark"
    write(sources / "00_wait.ipynb", WAIT)
    write(sources / "01_next.ipynb", "print(1)")

    def begin():
        words = command(sources, tmp_path / "out", "-p", f"word={mark}", "--no-html")
        process = subprocess.Popen(
            words,
            cwd=ROOT,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            encoding="utf-8",
            start_new_session=True,
            preexec_fn=lambda: signal.signal(signal.SIGINT, signal.default_int_handler),
        )
        started.append(process.pid)
        while not mark.is_file():
            assert process.poll() is None, process.stderr.read()
            time.sleep(0.05)
        started.append(int(mark.read_text(encoding="utf-8")))
        return process, started[-1]

    yield begin
    for number in started:
        with contextlib.suppress(ProcessLookupError):
            os.kill(number, signal.SIGKILL)


def gone(number: int) -> bool:
    """Wait until the process has ended; a zombie has, whoever should have buried it."""
    stat = Path(f"/proc/{number}/stat")
    with contextlib.suppress(OSError):  # it went just now
        while (
            stat.exists() and stat.read_text(encoding="utf-8").rpartition(")")[2].split()[0] != "Z"
        ):
            time.sleep(0.1)
    return True


def earlier(out: Path) -> dict[str, bytes]:
    """What an earlier run left: none of it may change before a run has passed."""
    (out / "figures").mkdir(parents=True)
    (out / "00_wait.ipynb").write_text("earlier", encoding="utf-8")
    (out / "figures" / "00_a.png").write_text("earlier", encoding="utf-8")
    write_json(out / "manifest.json", {"format": f"{OURS} run", "notebooks": []})
    return {name: data for name, data in contents(out).items() if name != "manifest.json"}


def test_an_interrupted_run_tidies_up_and_replaces_nothing(tmp_path, begin, go, capsys):
    out = tmp_path / "out"
    before = earlier(out)
    process, kernel = begin()
    assert go() == 2
    assert f"another run is writing into {out}" in capsys.readouterr().err
    os.killpg(process.pid, signal.SIGINT)  # as a terminal does: the whole group
    printed, said = process.communicate(timeout=60)
    assert process.returncode == 130
    assert "stopped: 0 of 2 notebooks had passed and are kept" in said
    assert "00_wait" in printed
    assert "FAILED  interrupted" in printed
    assert str(ROOT / "nanogpt") not in said, "no traceback of ours; the kernel may leave one"
    assert gone(kernel)
    assert not list(out.glob(".running-*"))
    assert before.items() <= contents(out).items()
    assert not (out / "01_next.ipynb").exists()
    assert (out / "failed" / "00_wait" / "00_wait.ipynb").is_file()


def test_a_killed_run_replaces_nothing_and_the_next_one_runs(tmp_path, sources, begin, go):
    out = tmp_path / "out"
    before = earlier(out)
    process, kernel = begin()
    process.kill()
    process.communicate(timeout=60)
    assert process.returncode == -signal.SIGKILL
    assert before.items() <= contents(out).items()
    assert list(out.glob(".running-*")), "nobody was left to tidy up"
    assert gone(kernel), "its kernel lives on"
    write(sources / "00_wait.ipynb", "print('done')")
    assert go() == 0
    assert "done" in (out / "00_wait.ipynb").read_text(encoding="utf-8")
