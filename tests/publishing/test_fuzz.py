"""Anything at all: the right result, or our own error that names what was wrong."""

import contextlib
import io
import json
from pathlib import Path

import hypothesis.strategies as st
import pytest
from fuzz_fixtures import (
    attempt,
    examples,
)
from hypothesis import example, given
from notebook_fixtures import write

from nanogpt.cli import run
from nanogpt.data.corpus import CorpusError
from nanogpt.publishing import runner
from nanogpt.publishing.parameters import Parameter, RunError, assign, convert

CELL = """profile: str = "auto"
n: int = 1
x: float = 0.5
flag: bool = True
word: str = "w"
maybe: int | None = None
many: tuple[int, ...] = (1, 2)"""


STEMS = ["00_first", "03_last", "10_other_one"]


# A command line holds no NUL; bytes that are no UTF-8 arrive as surrogates.
word = st.text(st.characters(exclude_characters="\0"), max_size=8)


spelled = st.sampled_from(
    "0 00 first 00_first 3 03.ipynb x/last 10_other_one.ipynb other_one ./10".split()
    + "000 ² ٣ 3. .ipynb -3 03_".split()
    + [""]
)


lists = st.recursive(
    st.none() | st.booleans() | st.integers(), lambda inner: st.lists(inner, max_size=3)
)


value = st.one_of(
    word,
    st.integers().map(str),
    st.floats().map(str),
    st.sampled_from(["true", "FALSE", "none", "1_0", " 7 "]),
    lists.map(repr),
)


setting = st.one_of(
    word,
    st.tuples(st.sampled_from(["n", "x", "flag", "word", "maybe", "many"]), value).map("=".join),
    st.tuples(st.sampled_from(["n", "profile", "steps", "n ", "", "ñ"]), value).map("=".join),
)


@pytest.fixture(scope="module")
def sources(tmp_path_factory):
    folder = tmp_path_factory.mktemp("notebooks")
    for stem in STEMS:
        write(
            folder / f"{stem}.ipynb",
            parameters=CELL if stem != "10_other_one" else CELL.splitlines()[0],
        )
    return folder


@given(names=st.lists(spelled | word, max_size=3))
@examples(100)
def test_any_names_are_notebooks_in_order_or_the_first_unknown_is_named(sources, names):
    spellings = {stem: {stem, stem[:2], stem[3:], str(int(stem[:2]))} for stem in STEMS}
    meant = [
        {stem for stem in STEMS if Path(name).name.removesuffix(".ipynb") in spellings[stem]}
        for name in names
    ]
    if all(meant):
        chosen = [path.stem for path in runner.select(names, sources)]
        assert chosen == (sorted(set().union(*meant)) if names else STEMS)
        return
    with pytest.raises(RunError) as error:
        runner.select(names, sources)
    unknown = names[meant.index(set())]
    assert f"{unknown!r} names no notebook: there is {', '.join(STEMS)}" in str(error.value)


def read_literal(text: str):
    """Lists of integers, True, False and None, read by another reader."""
    return json.loads(
        text.replace("True", "true").replace("False", "false").replace("None", "null")
    )


READERS = {
    "n": int,
    "x": float,
    "flag": lambda text: {"true": True, "false": False}[text.lower()],
    "word": str,
    "maybe": lambda text: None if text.lower() == "none" else int(text),
}


@given(settings=st.lists(setting, max_size=3))
@examples(150)
@example(settings=["n=1", "n=1"])
@example(settings=["profile=smoke"])
@example(settings=["many=[1, [None, True]]"])
def test_any_settings_are_values_of_their_type_or_the_wrong_one_is_named(sources, settings):
    paths = [sources / f"{stem}.ipynb" for stem in STEMS]
    values, said = attempt(lambda: assign(paths, settings, "smoke"), RunError)
    assert said is None or any(
        f"-p {text.partition('=')[0]}" in said or f"-p {text!r}" in said for text in settings
    )
    pairs = [text.partition("=") for text in settings]
    names = [name for name, _, _ in pairs]
    sound = len(set(names)) == len(names) and all(
        e and name in (*READERS, "many") for name, e, _ in pairs
    )
    wanted = {"profile": "smoke"}
    for name, _, text in pairs if sound else ():
        try:
            wanted[name] = READERS[name](text) if name in READERS else values["00_first"]["many"]
        except (ValueError, KeyError, TypeError):
            sound = False
    assert (values is not None) == sound
    if sound:
        assert repr(values["00_first"]) == repr(values["03_last"]) == repr(wanted)  # nan is nan
        assert values["10_other_one"] == {"profile": "smoke"}
        for name, _, text in pairs:
            assert (
                name != "many"
                or text[:1] != "["
                or values["00_first"]["many"] == read_literal(text)
            )


def test_a_literal_that_cannot_be_built_is_refused():
    with pytest.raises(RunError, match="a value of type dict is needed"):
        convert(Parameter("d", "dict", {}), "{[]: 1}")


options = st.one_of(
    spelled.map(lambda text: [text]),
    word.map(lambda text: [text]),
    setting.map(lambda text: ["-p", text]),
    st.sampled_from(["auto", "smoke", "cpu", "gpu", "AUTO", "", "tpu"]).map(
        lambda text: ["--profile", text]
    ),
    (value | st.integers().map(str)).map(lambda text: ["--timeout", text]),
    st.sampled_from("--fail-fast --no-html --publish -h -- -p --out --p".split()).map(
        lambda text: [text]
    ),
    st.sampled_from(["outputs", "nanogpt", ".", "outputs/x"]).map(lambda text: ["--out", text]),
)


@given(words=st.lists(options, max_size=4).map(lambda parts: [w for part in parts for w in part]))
@examples(100)
@example(words=["3", "first", "-p", "n=7", "--timeout", "9", "--out", "outputs/x", "--no-html"])
@example(words=["--timeout", "9" * 5000])
@example(words=["-p", "word=\udcff", "--profile", "\udcff"])
def test_any_words_are_a_run_or_end_with_2_and_a_line(sources, words):
    """The run itself stops where it looks for its corpus: all of its words are read by then."""

    def stop():
        raise CorpusError("this is where the test stops")

    error, printed = io.StringIO(), io.StringIO()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(runner, "load_corpus", stop)
        patch.setattr(runner.publish, "recover", lambda *_: None)
        with contextlib.redirect_stderr(error), contextlib.redirect_stdout(printed):
            try:
                code = run.main(["--source", str(sources), *words])
            except SystemExit as end:  # argparse's own way
                code = end.code
    if code == 0:
        assert printed.getvalue().startswith("usage: python -m nanogpt run")
        return
    assert code == 2
    last = error.getvalue().splitlines()
    assert any(line.startswith(("error: ", "python -m nanogpt run: error: ")) for line in last)
    if words[:3] == ["3", "first", "-p"]:
        assert "where the test stops" in error.getvalue()
