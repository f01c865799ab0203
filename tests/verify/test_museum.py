"""Every model of notebooks/museum is convicted, and acquitted once its bug is taken out."""

import pytest
from rows import quick

from nanogpt.cli import main
from nanogpt.files import read_json
from nanogpt.verify.museum import VERDICTS_FILE, exhibits, verdicts_on

SAID = read_json(VERDICTS_FILE)
PUBLISHED = {row["name"]: row for row in SAID["exhibits"]}


# One exhibit of each group is judged in every run, all of them for a release.
PATHS = {path.stem: path for path in exhibits()}
ALWAYS = ["transformers_48280", "fairseq_757", "textgen_4145", "fairseq_3908", "tinyllm_17"]
ALWAYS += ["ng_video_lecture_16", "mlx_vlm_1818"]


@pytest.mark.parametrize("name", quick(PATHS, *ALWAYS))
def test_a_public_bug_is_convicted_and_its_repair_acquitted(name):
    row = verdicts_on(PATHS[name], [0])  # the published verdicts are over more seeds
    assert (row["convicted"], row["acquitted"]) == (1, 1), row
    published = PUBLISHED[name]
    same = ["name", "thread", "group", "about", "way"]
    assert {key: published[key] for key in same} == {key: row[key] for key in same}


def test_every_group_has_an_exhibit_that_is_always_judged():
    assert {PUBLISHED[name]["group"] for name in ALWAYS} == {x["group"] for x in SAID["exhibits"]}


def test_the_published_verdicts_are_those_of_these_files_over_all_seeds():
    assert [*PUBLISHED] == [path.stem for path in exhibits()]
    counts = {(row["convicted"], row["acquitted"]) for row in PUBLISHED.values()}
    assert counts == {(SAID["seeds"], SAID["seeds"])}
    assert SAID["seeds"] >= 2


def test_the_command_judges_those_that_are_named_and_writes_what_it_found(tmp_path, capsys):
    path = tmp_path / "verdicts.json"
    words = ["verify", "museum", "vllm_43810", "--seeds", "1", "--json", str(path)]
    assert main(words) == 0
    assert "1 of 1 bugs convicted, 1 of their repairs acquitted" in capsys.readouterr().out
    (row,) = read_json(path)["exhibits"]
    assert row["turn"].keys() >= {"expected", "got", "sizes"}
    assert main(["verify", "museum", "vllm_1"]) == 2
    assert "no exhibit 'vllm_1' among the" in capsys.readouterr().err
