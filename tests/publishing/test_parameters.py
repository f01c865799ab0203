"""Which notebooks a run means, and which values they get."""

import pytest
from notebook_fixtures import code, write

from nanogpt.publishing.plan import RunError, assign, convert, read_parameters
from nanogpt.publishing.runner import choose_profile, select


def test_a_notebook_has_many_names_and_runs_once_and_in_order(sources):
    for name in ("00_first", "03_last", "10_other"):
        write(sources / f"{name}.ipynb")
    for name in "3 03 last 03_last 03_last.ipynb notebooks/03_last.ipynb".split():
        assert [path.stem for path in select([name], sources)] == ["03_last"], name
    chosen = [path.stem for path in select(["3", "0", "last"], sources)]
    assert chosen == ["00_first", "03_last"]
    assert len(select([], sources)) == 3


def test_values_get_the_type_of_their_parameter_in_the_notebooks_that_know_it(sources):
    lines = 'profile: str = "auto"\na: int = 1\nb: float = 1.5\nc: bool = True\nd: str = "x"'
    path = write(sources / "00_x.ipynb", parameters=lines + "\ne: int | None = None\nf: list = []")
    other = write(sources / "01_y.ipynb", parameters='profile: str = "auto"\na: float = 2.0')
    settings = ["a=7", "b=2", "c=false", "d=1=2", "e=3", "f=[1, 2]"]
    values = assign([path, other], settings, "smoke")
    expected = {"a": 7, "b": 2.0, "c": False, "d": "1=2", "e": 3, "f": [1, 2]}
    assert values == {"00_x": {"profile": "smoke"} | expected, "01_y": {"profile": "smoke", "a": 7}}
    assert [type(values[name]["a"]) for name in values] == [int, float]
    assert convert(read_parameters(path)["e"], "None") is None


@pytest.mark.parametrize(
    "setting", ["n=two", "n=1.5", "n=", "n=None", "n", "=1", "1n=2", "", "m=1"]
)
def test_a_setting_that_does_not_fit_is_refused(sources, setting):
    of_a_type = setting[:2] == "n="
    message = "a value of type int .* -p n=1" if of_a_type else "write name=value.*: n"
    with pytest.raises(RunError, match=message):
        assign([write(sources / "00_x.ipynb")], [setting], "smoke")


UNFIT = {
    "no parameters cell": (None, "has 0 cells tagged 'parameters'"),
    "no profile": ("n: int = 1", "has no parameter `profile"),
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
    two = write(sources / "02_two.ipynb", code("m: int = 2", "more", tags=["parameters"]))
    with pytest.raises(RunError, match="has 2 cells tagged"):
        read_parameters(two)


def test_the_gpu_profile_needs_a_gpu():
    with pytest.raises(RunError, match="torch sees no CUDA device: choose cpu"):
        choose_profile("gpu", cuda=False)
    assert choose_profile("gpu", cuda=True) == choose_profile("auto", cuda=True) == "gpu"
    assert choose_profile("auto", cuda=False) == "cpu"
