"""The runner: refuses before it runs, keeps what is whole, sets aside what failed. And: all notebooks run."""

import json
import os
import signal
import subprocess
import sys
import time

import nbformat
import pytest
import torch
from notebook_fixtures import NOTEBOOKS, code, output, page_faults, png, write

from nanogpt.cli import run
from nanogpt.config import GPTConfig, TrainConfig
from nanogpt.model.gpt import GPT
from nanogpt.publishing import publish, runner
from nanogpt.publishing.execute import NotebookError, _tidy, check_outputs, merge_streams, normalise
from nanogpt.publishing.output_folder import locked
from nanogpt.publishing.parameters import RunError, assign, convert, parse, read_parameters
from nanogpt.system.device import Device
from nanogpt.system.files import ROOT
from nanogpt.training.loop import train

GOOD = """
import json, os, pathlib, sys
out = pathlib.Path(os.environ["NANOGPT_OUT"])
for name in ("figures/00_a.png", "json/00.json", "checkpoints/small.safetensors"):
    (out / name).parent.mkdir(exist_ok=True)
    (out / name).write_text(f"{n}")
if n == 2:
    (out / "figures" / "00_b.png").write_text("only when n is 2")
print(profile, n, word)
"""


@pytest.fixture(autouse=True)
def little_corpus(tmp_path_factory, monkeypatch, request):
    """Nothing here needs a long text, and nothing here may ask the network for one."""
    if "series" not in request.fixturenames:
        path = tmp_path_factory.getbasetemp() / "little.txt"
        path.write_text("To be, or not to be.\n" * 100)
        monkeypatch.setenv("NANOGPT_DATA", str(path))


@pytest.fixture
def sources(tmp_path):
    return tmp_path / "notebooks"


@pytest.fixture
def go(tmp_path, sources):
    """Runs the command line on the notebooks in `sources`, into `out`."""

    def command(*words, out=tmp_path / "out", html=False):
        options = ["--source", str(sources), "--out", str(out), "--profile", "smoke"]
        return run.main([*words, *options, *([] if html else ["--no-html"])])

    return command


def cells_of(path):
    return {cell.id: cell for cell in nbformat.read(path, 4).cells}


def manifest(out):
    return json.loads((out / "manifest.json").read_text())


def entry(out, name):
    return next(entry for entry in manifest(out)["notebooks"] if entry["notebook"] == name)


# ------------------------------------------------------------------ which notebooks, which values


@pytest.mark.parametrize(
    "word", ["3", "03", "last", "03_last", "03_last.ipynb", "notebooks/03_last.ipynb"]
)
def test_a_notebook_has_many_names(sources, word):
    for name in ("00_first", "03_last", "10_other"):
        write(sources / f"{name}.ipynb")
    assert [path.stem for path in runner.select([word], sources)] == ["03_last"]


def test_notebooks_run_once_and_in_order(sources):
    for name in ("00_first", "03_last"):
        write(sources / f"{name}.ipynb")
    assert [path.stem for path in runner.select(["3", "0", "last"], sources)] == [
        "00_first",
        "03_last",
    ]
    assert len(runner.select([], sources)) == 2


def test_values_get_the_type_of_their_parameter(sources):
    lines = 'profile: str = "auto"\na: int = 1\nb: float = 1.5\nc: bool = True\nd: str = "x"'
    lines += "\ne: int | None = None\nf: list = []"
    path = write(sources / "00_x.ipynb", parameters=lines)
    settings = ["a=7", "b=2", "c=false", "d=1=2", "e=3", "f=[1, 2]"]
    values = assign([path], settings, "smoke")["00_x"]
    assert values == {
        "profile": "smoke",
        "a": 7,
        "b": 2.0,
        "c": False,
        "d": "1=2",
        "e": 3,
        "f": [1, 2],
    }
    assert type(values["b"]) is float
    known = read_parameters(path)
    assert convert(known["e"], "None") is None
    assert known["d"].default == "x"


@pytest.mark.parametrize(("name", "text"), [("n", "two"), ("n", "1.5"), ("n", ""), ("n", "None")])
def test_a_value_of_another_type_is_refused(sources, name, text):
    path = write(sources / "00_x.ipynb")
    with pytest.raises(RunError, match=rf"-p {name}={text}: a value of type int .* -p n=1"):
        assign([path], [f"{name}={text}"], "smoke")


def test_a_setting_goes_to_those_who_know_it(sources):
    a = write(sources / "00_a.ipynb")
    b = write(sources / "01_b.ipynb", parameters='profile: str = "auto"')
    assert assign([a, b], ["n=2"], "cpu") == {
        "00_a": {"profile": "cpu", "n": 2},
        "01_b": {"profile": "cpu"},
    }


@pytest.mark.parametrize("setting", ["n", "=1", "n n=1", "1n=2", ""])
def test_a_malformed_setting_is_refused(setting):
    with pytest.raises(RunError, match="write name=value"):
        parse([setting])


REFUSED = {
    "an unknown notebook": (["07"], "'07' is no notebook: there is 00_good"),
    "an unknown parameter": (
        ["-p", "steps=3"],
        "no chosen notebook has this parameter; there is n, word",
    ),
    "a malformed setting": (["-p", "n"], "write name=value"),
    "a wrong type": (["-p", "n=x"], "a value of type int"),
    "a setting twice": (["-p", "n=1", "-p", "n=2"], "given twice: '1' and '2'"),
    "the profile as a setting": (["-p", "profile=cpu"], "choose a profile with --profile"),
    "an unknown profile": (
        ["--profile", "tpu"],
        "profile='tpu' is unknown: choose auto, smoke, cpu, gpu",
    ),
    "no time at all": (["--timeout", "0"], "give whole seconds, at least 1"),
    "an unknown option": (["--fast"], "unrecognized arguments"),
}


@pytest.mark.parametrize(("words", "message"), REFUSED.values(), ids=REFUSED)
def test_wrong_usage_is_refused_before_anything_runs(tmp_path, sources, capsys, words, message):
    write(sources / "00_good.ipynb", GOOD)
    out = tmp_path / "out"
    with pytest.raises(SystemExit) as stop:
        run.main(["--source", str(sources), "--out", str(out), "--profile", "smoke", *words])
    assert stop.value.code == 2
    assert message in capsys.readouterr().err
    assert not out.exists()


UNFIT = {
    "no parameters cell": (None, "has 0 cells tagged 'parameters'"),
    "no profile": ("n: int = 1", "has no parameter `profile"),
    "no type": ('profile = "auto"', "reads `name: type = literal`"),
    "no literal": ('profile: str = "a".upper()', "reads `name: type = literal`"),
    "another statement": ('profile: str = "auto"\nimport os', "reads `name: type = literal`"),
    "no Python": ("profile: str = ", "reads `name: type = literal`"),
}


@pytest.mark.parametrize(("lines", "message"), UNFIT.values(), ids=UNFIT)
def test_an_unfit_parameters_cell_is_refused_before_anything_runs(
    go, sources, tmp_path, capsys, lines, message
):
    write(sources / "00_fit.ipynb", GOOD)
    write(sources / "01_unfit.ipynb", GOOD, parameters=lines)
    with pytest.raises(SystemExit) as stop:
        go()
    assert stop.value.code == 2
    assert message in capsys.readouterr().err
    assert not (tmp_path / "out").exists()


def test_two_parameters_cells_are_one_too_many(sources):
    path = write(sources / "00_x.ipynb", code("m: int = 2", "more", tags=["parameters"]))
    with pytest.raises(RunError, match="has 2 cells tagged"):
        read_parameters(path)


@pytest.mark.skipif(torch.cuda.is_available(), reason="this machine has a GPU")
def test_the_gpu_profile_asks_for_a_gpu():
    with pytest.raises(RunError, match="torch sees no CUDA device: choose cpu"):
        runner.choose_profile("gpu")
    assert runner.choose_profile("auto") == "cpu"


def test_a_corpus_that_is_not_there_is_refused(go, sources, tmp_path, capsys, monkeypatch):
    write(sources / "00_good.ipynb", GOOD)
    monkeypatch.setenv("NANOGPT_DATA", str(tmp_path / "gone.txt"))
    with pytest.raises(SystemExit) as stop:
        go()
    assert stop.value.code == 2
    assert "gone.txt, which is no file" in capsys.readouterr().err


# ------------------------------------------------------------------ where it goes


def test_a_folder_that_cannot_be_written(go, sources, tmp_path, capsys):
    write(sources / "00_good.ipynb", GOOD)
    (tmp_path / "file").write_text("a file, where a folder should be made")
    with pytest.raises(SystemExit) as stop:
        go(out=tmp_path / "file" / "out")
    assert stop.value.code == 2
    assert "choose another folder with --out" in capsys.readouterr().err


def test_the_published_run_is_no_place_to_play(go, sources, capsys):
    write(sources / "00_good.ipynb", GOOD)
    before = sorted(publish.BUILD.parents[1].rglob("*"))
    for out in (runner.PUBLISHED, runner.PUBLISHED / "figures"):
        with pytest.raises(SystemExit):
            go(out=out)
        assert "--publish alone writes there" in capsys.readouterr().err
    assert sorted(publish.BUILD.parents[1].rglob("*")) == before


def test_two_runs_in_one_folder(go, sources, tmp_path, capsys):
    write(sources / "00_good.ipynb", GOOD)
    out = tmp_path / "out"
    with locked(out):
        with pytest.raises(SystemExit) as stop:
            go()
        assert stop.value.code == 2
    assert f"another run (process {os.getpid()}) is writing into {out}" in capsys.readouterr().err
    assert not (out / "manifest.json").exists()


def test_what_a_killed_run_left_is_taken_over(tmp_path):
    out = tmp_path / "out"
    script = (
        "import os, sys; from pathlib import Path; from nanogpt.folder import locked\n"
        "with locked(Path(sys.argv[1])) as held:\n"
        "    Path(sys.argv[1], '.running-00_x-abc').mkdir(); os.kill(os.getpid(), 9)"
    )
    done = subprocess.run([sys.executable, "-c", script, str(out)], cwd=ROOT)
    assert done.returncode == -signal.SIGKILL
    assert (out / ".running-00_x-abc").exists()
    with locked(out):
        assert (out / ".lock").read_text() == str(os.getpid())
        assert not list(out.glob(".running-*"))


# ------------------------------------------------------------------ the run


@pytest.fixture(scope="module")
def ran(tmp_path_factory):
    """One run of three notebooks, the middle one failing: (exit code, output folder, printed)."""
    folder = tmp_path_factory.mktemp("ran")
    (folder / "little.txt").write_text("To be, or not to be.\n" * 100)
    notebooks, stale = folder / "notebooks", folder / "stale" / "kernels" / "python3"
    write(
        notebooks / "00_good.ipynb",
        GOOD,
        "print(json.dumps([sys.executable, os.getcwd()]))",
        "names = 'MPLBACKEND', 'TQDM_DISABLE', 'PYTHONHASHSEED', 'NANOGPT_RUN'\n"
        "print(json.dumps({name: os.environ.get(name) for name in names}))",
        "print(hash('order'))\n"
        "for i in range(3):\n    print(i, flush=True)\n"
        "print('10%\\r 50%\\r100%')\nobject",
    )
    write(notebooks / "01_bad.ipynb", GOOD, "print('as far as here')", "1 / 0", "print('never')")
    write(notebooks / "02_last.ipynb", "print('still run')", parameters='profile: str = "auto"')
    stale.mkdir(parents=True)
    (stale / "kernel.json").write_text(
        json.dumps(
            {
                "argv": ["/gone/python", "{connection_file}"],
                "display_name": "x",
                "language": "python",
            }
        )
    )
    out = folder / "out"
    environment = {
        **os.environ,
        "NANOGPT_DATA": str(folder / "little.txt"),
        "JUPYTER_PATH": str(folder / "stale"),
        "JUPYTER_PREFER_ENV_PATH": "0",
        "MPLBACKEND": "pdf",
    }
    command = [sys.executable, "-m", "nanogpt", "run", "--profile", "smoke", "-p", "n=5"]
    done = subprocess.run(
        [*command, "--source", str(notebooks), "--out", str(out)],
        cwd=ROOT,
        env=environment,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
    )
    return done, out


def test_a_failure_stops_no_other_and_is_not_forgotten(ran):
    done, out = ran
    assert done.returncode == 1, done.stderr
    assert [e["ok"] for e in manifest(out)["notebooks"]] == [True, False, True]
    assert "ZeroDivisionError: division by zero" in entry(out, "01_bad")["error"]
    assert entry(out, "00_good")["error"] is None


def test_the_closing_table(ran):
    lines = ran[0].stdout.splitlines()
    table = lines[lines.index(next(line for line in lines if line.startswith("notebook "))) :]
    assert [line.split()[0] for line in table[1:4]] == ["00_good", "01_bad", "02_last"]
    assert table[1].endswith("passed")
    assert table[2].endswith("FAILED  cell 'cell-3': ZeroDivisionError: division by zero")
    assert table[5].startswith("2 of 3 passed, profile smoke")
    assert "[2/3] 01_bad" in lines


def test_a_headless_run_prints_lines_and_no_bars(ran):
    assert "\r" not in ran[0].stdout + ran[0].stderr
    assert "WARNING" not in ran[0].stderr


def test_the_kernel_is_the_runners_own_interpreter(ran):
    printed = cells_of(ran[1] / "00_good.ipynb")["cell-2"].outputs[0].text
    assert json.loads(printed) == [sys.executable, str(ROOT)]


def test_the_kernels_environment(ran):
    told = json.loads(cells_of(ran[1] / "00_good.ipynb")["cell-3"].outputs[0].text)
    assert told["MPLBACKEND"] != "pdf"
    assert (told["TQDM_DISABLE"], told["PYTHONHASHSEED"], told["NANOGPT_RUN"]) == (
        "1",
        "0",
        str(ran[1]),
    )


def test_the_parameters_arrive(ran):
    cells = cells_of(ran[1] / "00_good.ipynb")
    assert cells["cell-1"].outputs[0].text == "smoke 5 None\n"
    assert cells["injected-parameters"].source == '# Parameters\nprofile = "smoke"\nn = 5'
    assert entry(ran[1], "02_last")["parameters"] == {"profile": "smoke"}


def test_a_passed_notebooks_files_are_in_place(ran):
    out = ran[1]
    for file in ("figures/00_a.png", "json/00.json", "00_good.ipynb", "02_last.ipynb"):
        assert (out / file).is_file(), file
        assert (out / file).stat().st_mode & 0o777 == 0o666 & ~_umask()
    assert not list(out.glob(".running-*"))
    assert "json/00.json" in entry(out, "00_good")["files"]


def _umask():
    mask = os.umask(0)
    os.umask(mask)
    return mask


def test_a_failed_notebooks_files_are_set_aside(ran):
    out = ran[1]
    assert not (out / "01_bad.ipynb").exists()
    failed = cells_of(out / "failed" / "01_bad" / "01_bad.ipynb")
    assert failed["cell-2"].outputs[0].text == "as far as here\n"
    assert failed["cell-3"].outputs[0].ename == "ZeroDivisionError"
    assert failed["cell-4"].outputs == []
    assert (out / "failed" / "01_bad" / "json" / "00.json").is_file()


def test_the_manifest_says_what_the_run_depends_on(ran):
    card = manifest(ran[1])
    assert card["profile"] == "smoke"
    assert card["settings"] == ["n=5"]
    assert card["corpus"]["name"] == "little.txt"
    assert len(card["corpus"]["sha256"]) == 64
    assert card["environment"]["torch"] == torch.__version__
    good = entry(ran[1], "00_good")
    assert len(good["sha256"]) == len(good["source_sha256"]) == 64
    assert good["seconds"] > 0


def test_executed_notebooks_are_plain(ran):
    nb = nbformat.read(ran[1] / "00_good.ipynb", 4)
    assert set(nb.metadata) == {"accelerator", "colab", "kernelspec", "language_info"}
    assert nb.metadata.language_info == {"name": "python"}
    assert all(set(cell.metadata) <= {"tags", "nanogpt"} for cell in nb.cells)
    text = cells_of(ran[1] / "00_good.ipynb")["cell-4"].outputs
    assert [o.output_type for o in text] == ["stream", "execute_result"]
    assert text[0].text.splitlines()[1:] == ["0", "1", "2", "100%"]


def test_the_pages_are_rendered_too(ran):
    assert page_faults(ran[1] / "html" / "index.html") == []
    assert page_faults(ran[1] / "html" / "00_good.html") == []
    assert not (ran[1] / "html" / "01_bad.html").exists()


def test_two_runs_make_equal_bytes(go, sources, tmp_path):
    text = "import random\nprint({str(i) for i in range(9)})\nfor i in range(50): print(i, flush=i % 7 == 0)"
    write(sources / "00_same.ipynb", text, "object")
    for out in ("a", "b"):
        assert go(out=tmp_path / out) == 0
    assert (tmp_path / "a" / "00_same.ipynb").read_bytes() == (
        tmp_path / "b" / "00_same.ipynb"
    ).read_bytes()


def test_a_failure_replaces_nothing_and_a_success_clears_it(go, sources, tmp_path):
    out = tmp_path / "out"
    write(sources / "00_good.ipynb", GOOD, "assert n < 3, 'too many'")
    assert go("-p", "n=2") == 0
    before = (out / "00_good.ipynb").read_bytes()
    assert go("-p", "n=3") == 1
    assert (out / "00_good.ipynb").read_bytes() == before
    assert (out / "json" / "00.json").read_text() == "2"
    assert (out / "failed" / "00_good" / "json" / "00.json").read_text() == "3"
    assert "too many" in entry(out, "00_good")["error"]
    assert go("-p", "n=1") == 0
    assert not (out / "failed" / "00_good").exists()
    assert (out / "json" / "00.json").read_text() == "1"
    assert not (out / "figures" / "00_b.png").exists(), "the run with n=2 made it, this one did not"


def test_weights_stay_for_others(go, sources, tmp_path):
    body = "import os, pathlib\nif n == 2:\n    path = pathlib.Path(os.environ['NANOGPT_OUT'], 'checkpoints')"
    write(
        sources / "00_w.ipynb",
        body + "\n    path.mkdir(); (path / 'own.safetensors').write_text('w')",
    )
    assert go("-p", "n=2") == 0
    assert go("-p", "n=1") == 0
    assert (tmp_path / "out" / "checkpoints" / "own.safetensors").read_text() == "w"


def test_a_run_of_one_notebook_keeps_the_others(go, sources, tmp_path):
    write(sources / "00_good.ipynb", GOOD)
    write(sources / "01_more.ipynb", "print(1)")
    assert go() == 0
    assert go("01") == 0
    assert [e["notebook"] for e in manifest(tmp_path / "out")["notebooks"]] == [
        "00_good",
        "01_more",
    ]


def test_fail_fast(go, sources, tmp_path, capsys):
    write(sources / "00_bad.ipynb", "1 / 0")
    write(sources / "01_next.ipynb", "print(1)")
    assert go("--fail-fast") == 1
    assert not (tmp_path / "out" / "01_next.ipynb").exists()
    assert "0 of 2 passed" in capsys.readouterr().out


def test_a_cell_that_takes_too_long(go, sources, tmp_path):
    write(sources / "00_slow.ipynb", "import time\nprint('before', flush=True)\ntime.sleep(60)")
    assert go("--timeout", "3") == 1
    error = entry(tmp_path / "out", "00_slow")["error"]
    assert error.endswith("ran longer than 3 s: give it more with --timeout")
    assert (tmp_path / "out" / "failed" / "00_slow" / "00_slow.ipynb").is_file()


def test_a_kernel_that_dies(go, sources, tmp_path):
    write(sources / "00_dead.ipynb", "import os\nos._exit(1)")
    assert go() == 1
    assert "cell 'cell-1' killed its kernel" in entry(tmp_path / "out", "00_dead")["error"]


@pytest.mark.parametrize("how", [signal.SIGINT, signal.SIGTERM])
def test_an_interrupted_run_tidies_up(sources, tmp_path, how):
    out, mark = tmp_path / "out", tmp_path / "kernel-runs"
    write(
        sources / "00_wait.ipynb",
        f"import os, time\nopen({str(mark)!r}, 'w').write(str(os.getpid()))\ntime.sleep(300)",
    )
    write(sources / "01_next.ipynb", "print(1)")
    command = [
        sys.executable,
        "-m",
        "nanogpt.run",
        "--source",
        sources,
        "--out",
        out,
        "--profile",
        "smoke",
        "--no-html",
    ]
    process = subprocess.Popen(
        [*map(str, command)],
        cwd=ROOT,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.default_int_handler),
    )
    while not (mark.is_file() and mark.read_text()):
        assert process.poll() is None, process.stderr.read()
        time.sleep(0.1)
    process.send_signal(how)
    printed, _ = process.communicate(timeout=60)
    assert process.returncode == 1
    assert "FAILED  interrupted" in printed
    assert not (out / "01_next.ipynb").exists()
    assert (out / "failed" / "00_wait" / "00_wait.ipynb").is_file()
    assert not list(out.glob(".running-*"))
    with pytest.raises(ProcessLookupError):
        os.kill(int(mark.read_text()), 0)


# ------------------------------------------------------------------ what may be shown


def test_streams_become_what_a_terminal_would_show():
    def stream(text, name="stdout"):
        return nbformat.v4.new_output("stream", name=name, text=text)

    merged = merge_streams(
        [stream("a\r"), stream("b\nc"), stream("d\r\n"), stream("e", "stderr"), stream("f")]
    )
    assert [(o.name, o.text) for o in merged] == [
        ("stdout", "b\ncd\n"),
        ("stderr", "e"),
        ("stdout", "f"),
    ]


def test_normalising_keeps_what_means_something(tmp_path):
    picture = output(picture=png(), alt="a red field")
    cell = code(
        "1",
        "one",
        [picture],
        tags=["timing"],
        nanogpt={"mirror": ["x"]},
        papermill={"duration": 3},
        collapsed=True,
    )
    path = write(tmp_path / "00_x.ipynb", cell)
    nb = normalise(nbformat.read(path, 4))
    assert nb.cells[-1].metadata == {"tags": ["timing"], "nanogpt": {"mirror": ["x"]}}
    assert nb.cells[-1].outputs[0].metadata["image/png"]["alt"] == "a red field"


SHOWN = {
    "a widget": (
        output(**{"application/vnd.jupyter.widget-view+json": {}}),
        "shows application/vnd.jupyter",
    ),
    "HTML": (output(**{"text/html": "<b>x</b>", "text/plain": "x"}), "shows text/html"),
    "SVG": (output(**{"image/svg+xml": "<svg/>"}), "shows image/svg"),
    "a picture without alt text": (output(picture=png()), "without alt text"),
    "too much": (output(text="x" * 1_000_001), "over 1,000,000"),
}


@pytest.mark.parametrize(("shown", "message"), SHOWN.values(), ids=SHOWN)
def test_outputs_that_not_everyone_can_see(tmp_path, shown, message):
    with pytest.raises(NotebookError, match=message):
        check_outputs(write(tmp_path / "00_x.ipynb", code("1", "one", [shown])))


def test_outputs_that_everyone_can_see(tmp_path):
    fine = [
        output("text"),
        output(picture=png(), alt="red"),
        output(**{"text/markdown": "*x*", "text/plain": "x"}),
    ]
    check_outputs(write(tmp_path / "00_x.ipynb", code("1", "one", fine)))


def test_a_notebook_that_shows_html_fails(go, sources, tmp_path):
    write(sources / "00_html.ipynb", "from IPython.display import HTML\nHTML('<b>x</b>')")
    assert go() == 1
    assert "shows text/html" in entry(tmp_path / "out", "00_html")["error"]


# ------------------------------------------------------------------ publishing


@pytest.fixture
def press(tmp_path, sources, monkeypatch):
    """A small repository in which --publish works; its corpus counts as the real one."""
    monkeypatch.setattr(runner, "ROOT", tmp_path)
    monkeypatch.setattr(runner, "PUBLISHED", tmp_path / "outputs" / "published")
    monkeypatch.setattr(publish, "BUILD", tmp_path / "outputs" / "run" / "publish")
    monkeypatch.setattr(publish, "SHA256", runner.load_corpus().sha256)
    monkeypatch.setenv("NANOGPT_CHECKPOINT", "/of/the/reader")
    first = "import os; assert os.environ['NANOGPT_CHECKPOINT'].endswith('publish/checkpoints/small.safetensors')"
    train = GOOD + "\nassert 'NANOGPT_CHECKPOINT' not in os.environ\n"
    train += "(out / 'checkpoints/small-last.safetensors').write_text('x')"
    write(sources / "00_first.ipynb", first)
    write(sources / "01_train.ipynb", train)
    published = tmp_path / "outputs" / "published"
    published.mkdir(parents=True)
    (published / "old.txt").write_text("the run before")
    return published


def test_publishing_exchanges_everything_at_once(press, sources):
    assert run.main(["--publish"]) == 0
    files = {str(path.relative_to(press)) for path in press.rglob("*") if path.is_file()}
    assert files == {
        "00_first.ipynb",
        "01_train.ipynb",
        "html/index.html",
        "html/00_first.html",
        "html/01_train.html",
        "figures/00_a.png",
        "json/00.json",
        "checkpoints/small.safetensors",
        "manifest.json",
    }
    assert manifest(press)["profile"] == "cpu"
    assert sorted(path.name for path in press.parent.iterdir()) == ["published", "run"]
    assert page_faults(press / "html" / "index.html") == []


def test_a_run_that_is_not_green_publishes_nothing(press, sources):
    write(sources / "02_bad.ipynb", "1 / 0")
    assert run.main(["--publish"]) == 1
    assert [path.name for path in press.iterdir()] == ["old.txt"]
    assert (publish.BUILD / "failed" / "02_bad" / "02_bad.ipynb").is_file()


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--profile", "smoke"], "--publish with profile smoke"),
        (["00"], "runs all notebooks as they are"),
        (["-p", "n=2"], "runs all notebooks as they are"),
        (["--out", "elsewhere"], "runs all notebooks as they are"),
    ],
)
def test_publishing_something_else_is_refused(press, capsys, words, message):
    with pytest.raises(SystemExit) as stop:
        run.main(["--publish", *words])
    assert stop.value.code == 2
    assert message in capsys.readouterr().err
    assert [path.name for path in press.iterdir()] == ["old.txt"]


def test_only_shakespeare_is_published(press, monkeypatch, capsys):
    monkeypatch.setattr(publish, "SHA256", "0" * 64)
    with pytest.raises(SystemExit):
        run.main(["--publish"])
    assert "--publish with little.txt" in capsys.readouterr().err


def test_reproducing_compares_with_what_is_published(press, sources, capsys):
    assert run.main(["--publish"]) == 0
    before = {path: path.read_bytes() for path in press.rglob("*") if path.is_file()}
    write(
        sources / "00_first.ipynb",
        "import os; assert 'reproduce/checkpoints' in os.environ['NANOGPT_CHECKPOINT']",
    )
    capsys.readouterr()
    assert run.main(["--reproduce"]) == 1
    said = capsys.readouterr().out
    assert "00_first, cell 'cell-1': its source has changed" in said
    assert "trained weights: the same bytes" in said
    assert "has the code changed since?" in said
    assert {path: path.read_bytes() for path in press.rglob("*") if path.is_file()} == before


def test_a_run_that_reproduces_says_so(press, sources, capsys):
    write(sources / "00_first.ipynb", "print('the same')")
    assert run.main(["--publish"]) == 0
    capsys.readouterr()
    assert run.main(["--reproduce"]) == 0
    said = capsys.readouterr().out
    assert "to the byte" in said
    assert sorted(path.name for path in press.parent.iterdir()) == ["published", "run"]


@pytest.mark.parametrize("killed_after", ["first rename", "second rename", "nothing"])
def test_an_exchange_that_was_killed(tmp_path, killed_after):
    """Whatever the moment, one complete folder stands there afterwards, and nothing else."""
    target, old = tmp_path / "published", tmp_path / ".published-old"
    if killed_after != "first rename":
        target.mkdir()
        (target / "which").write_text("new" if killed_after == "second rename" else "old")
    if killed_after != "nothing":
        old.mkdir()
        (old / "which").write_text("old")
    publish.recover(target)
    assert (target / "which").read_text() == ("new" if killed_after == "second rename" else "old")
    assert [path.name for path in tmp_path.iterdir()] == ["published"]


# ------------------------------------------------------------------ the series itself

SMOKE, TRAINED = ["--profile", "smoke"], ["-p", "steps=24"]  # of notebook 01
LESS = [*TRAINED, "-p", "n_new=60"]  # of notebook 00


@pytest.fixture(scope="session")
def series(tmp_path_factory):
    """All notebooks, once, with the smoke profile and still less work: the output folder.

    Those that prove are given the published weights; those that only time are given a smaller model.
    """
    out, own = (tmp_path_factory.mktemp("series") / name for name in ("out", "own"))
    corpus = runner.load_corpus()
    shape = GPTConfig(len(set(corpus.text)), block_size=64, n_layer=2, n_head=2, n_embd=32)
    device = Device(torch.device("cpu"), torch.float32, "tests")
    train(
        GPT(shape),
        corpus,
        TrainConfig(steps=2, eval_every=2, eval_batches=1),
        out=own,
        device=device,
    )
    timed = [path.stem for path in NOTEBOOKS if path.stem[:2] in ("04", "05")]
    rest = [path.stem for path in NOTEBOOKS if path.stem not in timed]
    codes = [
        run.main([*rest, *SMOKE, *LESS, "--out", str(out)]),
        run.main([*timed, *SMOKE, "-p", f"checkpoint={own}", "--out", str(out)]),
    ]
    return max(codes), out


@pytest.mark.parametrize("name", [path.stem for path in NOTEBOOKS])
def test_the_notebook_runs(series, name):
    found = entry(series[1], name)
    assert found["ok"], found["error"]


def test_the_whole_series_is_green(series):
    assert series[0] == 0
    for path in sorted((series[1] / "html").glob("*.html")):
        assert page_faults(path) == [], path.name


@pytest.mark.parametrize("name", [path.stem for path in NOTEBOOKS if path.stem.startswith("01")])
def test_a_second_run_differs_in_timings_alone(series, name, tmp_path):
    """Training included: the same losses, the same text, the same figures, to the last byte."""
    assert run.main([name, *SMOKE, *TRAINED, "--out", str(tmp_path / "again"), "--no-html"]) == 0
    first, second = (
        nbformat.read(out / f"{name}.ipynb", 4).cells for out in (series[1], tmp_path / "again")
    )
    for cell, again in zip(first, second, strict=True):
        assert cell == again or "timing" in cell.metadata.get("tags", []), (
            f"cell {cell.id!r} differs"
        )
    weights = {
        (out / "checkpoints" / "small.safetensors").read_bytes()
        for out in (series[1], tmp_path / "again")
    }
    assert len(weights) == 1


@pytest.mark.parametrize(
    "folder", [".", "notebooks", "notebooks/new", "nanogpt", "tests", "outputs"]
)
def test_the_project_itself_is_no_output_folder(capsys, folder):
    """Executed copies would take the place of the sources."""
    before = {path: path.read_bytes() for path in (ROOT / "notebooks").glob("*.ipynb")}
    with pytest.raises(SystemExit) as stop:
        run.main(["00", "--profile", "smoke", "--out", str(ROOT / folder)])
    assert stop.value.code == 2
    assert "part of the project itself" in capsys.readouterr().err
    assert all(path.read_bytes() == data for path, data in before.items())


def test_half_a_notebook_is_blamed_on_the_disk(tmp_path):
    """A full disk leaves a part of the file: not a notebook to be restored from git."""
    half = tmp_path / "x" / "00_half.ipynb"
    half.parent.mkdir()
    half.write_text('{"cells": [')
    with pytest.raises(NotebookError, match="could not be written whole .* MB are free"):
        _tidy(half)
