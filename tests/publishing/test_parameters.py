"""Which notebooks a run means, and which values they get."""

import pytest
from notebook_fixtures import code, write

from nanogpt.publishing.parameters import RunError, assign, convert, parse, read_parameters
from nanogpt.publishing.runner import choose_profile, select

NAMES = ["3", "03", "last", "03_last", "03_last.ipynb", "notebooks/03_last.ipynb"]


def test_a_notebook_has_many_names(sources):
    for name in ("00_first", "03_last", "10_other"):
        write(sources / f"{name}.ipynb")
    for name in NAMES:
        assert [path.stem for path in select([name], sources)] == ["03_last"], name


def test_notebooks_run_once_and_in_order(sources):
    for name in ("00_first", "03_last"):
        write(sources / f"{name}.ipynb")
    chosen = [path.stem for path in select(["3", "0", "last"], sources)]
    assert chosen == ["00_first", "03_last"]
    assert len(select([], sources)) == 2


def test_values_get_the_type_of_their_parameter(sources):
    lines = 'profile: str = "auto"\na: int = 1\nb: float = 1.5\nc: bool = True\nd: str = "x"'
    path = write(sources / "00_x.ipynb", parameters=lines + "\ne: int | None = None\nf: list = []")
    settings = ["a=7", "b=2", "c=false", "d=1=2", "e=3", "f=[1, 2]"]
    values = assign([path], settings, "smoke")["00_x"]
    expected = {"a": 7, "b": 2.0, "c": False, "d": "1=2", "e": 3, "f": [1, 2]}
    assert values == {"profile": "smoke"} | expected
    assert type(values["b"]) is float
    known = read_parameters(path)
    assert convert(known["e"], "None") is None
    assert known["d"].default == "x"


@pytest.mark.parametrize("text", ["two", "1.5", "", "None"])
def test_a_value_of_another_type_is_refused(sources, text):
    path = write(sources / "00_x.ipynb")
    with pytest.raises(RunError, match=rf"-p n={text}: a value of type int .* -p n=1"):
        assign([path], [f"n={text}"], "smoke")


def test_a_setting_goes_to_the_notebooks_that_know_it(sources):
    a = write(sources / "00_a.ipynb")
    b = write(sources / "01_b.ipynb", parameters='profile: str = "auto"')
    values = assign([a, b], ["n=2"], "cpu")
    assert values == {"00_a": {"profile": "cpu", "n": 2}, "01_b": {"profile": "cpu"}}


@pytest.mark.parametrize("setting", ["n", "=1", "n n=1", "1n=2", ""])
def test_a_malformed_setting_is_refused(setting):
    with pytest.raises(RunError, match="write name=value"):
        parse([setting])


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


def test_two_parameters_cells_are_one_too_many(sources):
    path = write(sources / "00_x.ipynb", code("m: int = 2", "more", tags=["parameters"]))
    with pytest.raises(RunError, match="has 2 cells tagged"):
        read_parameters(path)


def test_the_gpu_profile_needs_a_gpu():
    with pytest.raises(RunError, match="torch sees no CUDA device: choose cpu"):
        choose_profile("gpu", cuda=False)
    assert choose_profile("gpu", cuda=True) == choose_profile("auto", cuda=True) == "gpu"
    assert choose_profile("auto", cuda=False) == "cpu"
