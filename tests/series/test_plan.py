"""What is planned: which notebooks, their values, how long they take; how far a run is."""

import re
from types import SimpleNamespace

import pytest
from notebook_fixtures import NOTEBOOKS, write

from nanogpt.cli import main
from nanogpt.files import ROOT
from nanogpt.series import execute, plan, runner
from nanogpt.series.parameters import RunError, assign
from nanogpt.series.plan import DEFAULT, estimate, make_plan, select
from nanogpt.site.nbfile import read_manifest

REAL_CORPUS = True  # whose weights are published, so that no notebook trains some first
NAMES = [path.stem for path in NOTEBOOKS]
ALL = [name[:2] for name in NAMES]


SPEEDS = [4.0, 1.0, 0.1]


@pytest.fixture
def machine(monkeypatch):
    """Sets the speed of this machine; the measured runs note their own as 0.2."""

    def make(speed: float):
        entries = [{"notebook": name, "seconds": 80.0} for name in NAMES]
        manifest = {"work_seconds": 0.2, "notebooks": entries}
        monkeypatch.setattr(plan, "read_manifest", lambda _: manifest)
        monkeypatch.setattr(plan, "seconds_of_work", lambda: 0.2 / speed)

    return make


@pytest.mark.parametrize("profile", ["smoke", "laptop", "full"])
def test_the_work_is_the_same_however_fast_the_machine_is(machine, profile):
    planned = []
    for speed in SPEEDS:
        machine(speed)
        made = make_plan(profile=profile)
        planned.append((made.sources, made.values, made.profile))
    assert planned[0] == planned[1] == planned[2]
    assert {values["profile"] for values in planned[0][1].values()} == {profile}


def test_a_slow_machine_is_told_that_it_takes_longer(machine):
    for speed in SPEEDS:
        machine(speed)
        for profile in plan.MEASURED:
            seconds = 80 * len(NAMES) / speed
            assert estimate(profile, NAMES).total == pytest.approx(seconds, rel=0.01)
    assert estimate("gpu", NAMES) == plan.Pace("gpu"), "nothing is known of it"


def test_the_minutes_and_seconds_in_the_readme_are_those_of_the_measured_runs():
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    seconds = {profile: {} for profile in plan.MEASURED}
    for profile, folder in plan.MEASURED.items():
        for entry in read_manifest(folder)["notebooks"]:
            seconds[profile][entry["notebook"]] = entry["seconds"]
    # 1. The minutes of `make run`, which are said twice.
    minutes = sum(seconds["laptop"][name] for name in NAMES if name[:2] in DEFAULT) / 60
    for said in (f"about {minutes:.0f} minutes once installed", f"took {minutes:.0f} minutes"):
        assert said in readme
    # 2. The last column of the table of notebooks.
    rows = re.findall(r"^\|.*\(notebooks/(\w+)\.ipynb\).* (\d+) \|$", readme, re.M)
    assert dict(rows) == {name: f"{took:.0f}" for name, took in seconds["full"].items()}


def test_a_dry_run_prints_the_minutes_and_runs_nothing(machine, capsys, monkeypatch):
    monkeypatch.setattr(runner.Series, "watch", None)
    machine(1.0)
    assert main(["run", "--profile", "full", "--all", "--plan"]) == 0
    said = capsys.readouterr().out
    assert "profile full: the same work on every machine" in said
    assert "1.00 times as fast" in said
    assert all(f"{name} " in said for name in [*NAMES, "in all, about"])


@pytest.mark.parametrize(
    ("profile", "names", "every", "numbers"),
    [
        ("laptop", [], False, DEFAULT),
        ("laptop", [], True, ALL),
        ("laptop", ["08", "11"], False, ("08", "11")),
        ("smoke", [], False, ALL),
        ("full", [], False, DEFAULT),
    ],
)
def test_without_names_the_default_list_runs(machine, profile, names, every, numbers):
    machine(1.0)
    planned = make_plan(names, profile=profile, every=every)
    assert [path.stem[:2] for path in planned.sources] == list(numbers)


def test_a_run_says_how_far_it_is(sources, tmp_path, monkeypatch, capsys):
    write(sources / "00_a.ipynb", "1", "2")

    def run_cells(nb_man, kernel_name, *, options, **_):
        _, target, _, before_cell = options
        assert len(nb_man.nb.cells) == 5, "papermill adds one, of parameters"
        before_cell(3, {"id": "train"})
        one._tick()
        before_cell(4, {"id": "next"})
        one._tick()
        execute.save(nb_man.nb, target)

    monkeypatch.setattr(execute.Strict, "execute_managed_notebook", run_cells)
    one = runner.Series(make_plan(profile="smoke", source=sources, out=tmp_path / "out"))
    monkeypatch.setattr(runner, "time", SimpleNamespace(monotonic=lambda: 1000.0))
    one.begun = 935.0
    one.prepare()
    assert one.run_one(sources / "00_a.ipynb", tmp_path) is None
    first, second = capsys.readouterr().out.splitlines()
    assert first.startswith("1:05 ")
    assert first.endswith("00_a: cell 4 of 5, train, 0:00")
    assert second.endswith("00_a: cell 5 of 5, next, 0:00")


# ------------------------------------------------------------------ names and parameters


def test_a_notebook_has_many_names_and_runs_once_and_in_order(sources):
    for name in ("00_first", "03_last", "10_other"):
        write(sources / f"{name}.ipynb")
    for name in ["3", "03", "last", "03_last", "03_last.ipynb", f"{sources}/03_last.ipynb"]:
        assert [path.stem for path in select([name], sources)] == ["03_last"], name
    chosen = [path.stem for path in select(["3", "0", "last"], sources)]
    assert chosen == ["00_first", "03_last"]
    assert len(select([], sources)) == 3
    for default, number in ((("03", "07"), 1), (("07",), 3)):
        assert len(select([], sources, default)) == number, "all, where it names none of them"


def test_values_get_the_type_of_their_parameter_in_the_notebooks_that_know_it(sources):
    lines = 'profile: str = "auto"\na: int = 1\nb: float = 1.5\nc: bool = True\nd: str = "x"'
    path = write(sources / "00_x.ipynb", parameters=lines + "\ne: int | None = None")
    other = write(sources / "01_y.ipynb", parameters='profile: str = "auto"\na: float = 2.0')
    settings = ["a=7", "b=2", "c=false", "d=1=2", "e=3"]
    values = assign([path, other], settings, "smoke")
    expected = {"a": 7, "b": 2.0, "c": False, "d": "1=2", "e": 3}
    assert values == {"00_x": {"profile": "smoke"} | expected, "01_y": {"profile": "smoke", "a": 7}}
    assert [type(values[name]["a"]) for name in values] == [int, float]
    assert assign([path], ["e=None"], "smoke")["00_x"]["e"] is None


@pytest.mark.parametrize(
    "setting", ["n=two", "n=1.5", "n=", "n=None", "n", "=1", "1n=2", "", "m=1"]
)
def test_a_setting_that_does_not_fit_is_refused(sources, setting):
    of_a_type = setting[:2] == "n="
    message = "must be of type int, .*-p n=1" if of_a_type else "write name=value.*: n"
    with pytest.raises(RunError, match=message):
        assign([write(sources / "00_x.ipynb")], [setting], "smoke")


UNFIT = {
    "no parameters cell": (None, "has 0 cells tagged 'parameters'"),
    "no type": ('profile = "auto"', "must be `name: type = literal`"),
    "no literal": ('profile: str = "a".upper()', "must be `name: type = literal`"),
    "another statement": ('profile: str = "auto"\nimport os', "must be `name: type = literal`"),
    "no Python": ("profile: str = ", "must be `name: type = literal`"),
}


@pytest.mark.parametrize(("lines", "message"), UNFIT.values(), ids=UNFIT)
def test_an_unfit_parameters_cell_is_refused(sources, lines, message):
    fit = write(sources / "00_fit.ipynb")
    with pytest.raises(RunError, match=message):
        assign([fit, write(sources / "01_unfit.ipynb", parameters=lines)], [], "smoke")


@pytest.mark.parametrize(("kind", "code"), [("cpu", 2), ("cuda", 0)])
def test_the_gpu_profile_needs_a_gpu(kind, code, monkeypatch, capsys):
    device = SimpleNamespace(device=SimpleNamespace(type=kind))
    monkeypatch.setattr(plan, "pick_device", lambda: device)
    assert main(["run", "--profile", "gpu", "--plan"]) == code
    said = capsys.readouterr()
    assert ("and torch sees none: choose laptop" in said.err) == bool(code)
