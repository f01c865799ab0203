"""A job of many texts: one checksum however it is cut, stopped and resumed; nothing is lost."""

import importlib.util
import itertools
import json
import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest
import torch

from nanogpt.cli.generate import main
from nanogpt.data.tokenizer import CharTokenizer
from nanogpt.decoding.generate import complete
from nanogpt.engines.toolchain import CannotBuild
from nanogpt.model.checkpoint import load_checkpoint, save_checkpoint
from nanogpt.model.gpt import GPT, GPTConfig
from nanogpt.serving import ray_workers, writer
from nanogpt.serving.job import Job, Row, read_rows, shards_of

ROOT = Path(__file__).parents[2]
ROWS = [Row("ab"[i % 2] * (1 + i % 3), i) for i in range(11)]
SETTINGS = {"weights": "0" * 64, "max_new_tokens": 3}


def texts(rows):
    """Stands for a model: each text from its prompt and seed alone, with characters that try."""
    return [f'{row.prompt}→{row.seed}\n\u2028"' for row in rows]


def job(folder, rows=ROWS, **changes):
    return Job(folder, rows, SETTINGS | changes, shard_size=3)


def done(folder) -> str:
    """Do all that is to do; the checksum."""
    with job(folder).opened() as it:
        for number, rows in shards_of(it):
            it.keep(number, texts(rows))
        return it.finish()


@pytest.fixture
def whole(tmp_path):
    return done(tmp_path / "whole")


def lines(folder):
    files = sorted((folder / "shards").glob("*.jsonl"))
    return [json.loads(line) for p in files for line in p.read_text("utf-8").split("\n")[:-1]]


def test_every_text_is_written_once_in_the_order_of_the_input(tmp_path, whole):
    rows = lines(tmp_path / "whole")
    assert [row["index"] for row in rows] == list(range(11))
    assert [Row(row["prompt"], row["seed"]) for row in rows] == ROWS
    assert [row["text"] for row in rows] == texts(ROWS)
    manifest = json.loads((tmp_path / "whole" / "job.json").read_text())
    assert (manifest["checksum"], manifest["shards"]) == (whole, 4)


def test_the_checksum_is_the_same_in_any_order_and_any_shards(tmp_path, whole):
    with job(tmp_path / "other").opened() as it:
        for number in (2, 0, 3, 1):
            it.keep(number, texts(it.rows_of(number)))
        assert it.finish() == whole
    with Job(tmp_path / "large", ROWS, SETTINGS, shard_size=100).opened() as it:
        it.keep(0, texts(ROWS))
        assert it.finish() == whole


def test_a_job_resumes_from_what_is_done(tmp_path, whole):
    with job(tmp_path / "cut").opened() as it:
        it.keep(1, texts(it.rows_of(1)))
    before = it.path(1).stat().st_mtime_ns
    with job(tmp_path / "cut").opened() as it:
        assert it.todo == [0, 2, 3]
    assert done(tmp_path / "cut") == whole
    assert it.path(1).stat().st_mtime_ns == before
    with job(tmp_path / "cut").opened() as it:
        assert it.todo == []
        assert it.finish() == whole


@pytest.mark.parametrize("fault", ["altered", "cut", "gone"])
def test_a_damaged_shard_is_written_again_and_kept_aside(tmp_path, whole, fault):
    folder = tmp_path / "whole"
    path = folder / "shards" / "00002.jsonl"
    data = path.read_bytes()
    bad = data.replace(b"a", b"b", 1) if fault == "altered" else data[:-5]
    path.write_bytes(bad) if fault != "gone" else path.unlink()
    with job(folder).opened() as it:
        assert it.damaged == it.todo == [2]
        it.keep(2, texts(it.rows_of(2)))
        assert it.finish() == whole
    assert path.read_bytes() == data
    kept = path.with_name("00002.jsonl.damaged")
    assert not kept.exists() if fault == "gone" else kept.read_bytes() == bad


def test_a_shard_altered_meanwhile_is_noticed_at_the_end(tmp_path, whole):
    with job(tmp_path / "whole").opened() as it:
        it.path(0).write_text("{}\n")
        with pytest.raises(ValueError, match="00000.jsonl was changed: the same command mends it"):
            it.finish()


@pytest.mark.parametrize(
    ("rows", "changes", "words"),
    [
        (ROWS[:-1], {}, "texts 11, not 10"),
        ([*ROWS[:-1], Row("b", 10)], {}, "input "),
        (ROWS, {"max_new_tokens": 4}, "max_new_tokens 3, not 4"),
        (ROWS, {"weights": "1" * 64}, "weights "),
    ],
)
def test_another_job_in_the_same_folder_is_refused(tmp_path, whole, rows, changes, words):
    before = lines(tmp_path / "whole")
    with (
        pytest.raises(ValueError, match=f"began with .*{words}.*name a new folder"),
        job(tmp_path / "whole", rows, **changes).opened(),
    ):
        pass
    assert lines(tmp_path / "whole") == before


def test_a_folder_of_something_else_a_file_and_a_damaged_manifest_are_refused(tmp_path, whole):
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "thesis.txt").write_text("mine")
    (tmp_path / "file").write_text("mine")
    (tmp_path / "whole" / "job.json").write_text('{"format": ')
    for name, words in (
        ("other", "holds something else"),
        ("file", "is a file: name a folder"),
        ("whole", "damaged or of another version"),
    ):
        with pytest.raises(ValueError, match=words), job(tmp_path / name).opened():
            pass
    assert [p.name for p in (tmp_path / "other").iterdir()] == ["thesis.txt"]


def test_two_jobs_in_one_folder(tmp_path):
    other = job(tmp_path).opened()
    with job(tmp_path).opened(), pytest.raises(ValueError, match="another run is writing to"):
        other.__enter__()
    assert len(done(tmp_path)) == 64


def test_on_a_full_disk_what_is_done_stays_and_the_rest_follows(disk, whole):
    folder = disk.mine / "job"
    with job(folder).opened() as it:
        it.keep(0, texts(it.rows_of(0)))
        disk.fill(0)
        with pytest.raises(OSError, match="could not be written|cannot write"):
            it.keep(1, texts(it.rows_of(1)))
        disk.clear()
    assert done(folder) == whole


@pytest.mark.skipif(not hasattr(os, "fork"), reason="this system has no fork")
@pytest.mark.parametrize("at", [1, 2], ids=["before the shard", "before its note"])
def test_a_job_that_is_killed_resumes(tmp_path, whole, at):
    """SIGKILL at the very rename that makes a file whole: that of shard 1, or that of job.json."""
    if not (child := os.fork()):
        with job(tmp_path / "killed").opened() as it:
            it.keep(0, texts(it.rows_of(0)))
            plain, calls = os.replace, itertools.count(1)

            def replace(a, b):
                if next(calls) == at:
                    os.kill(os.getpid(), signal.SIGKILL)
                plain(a, b)

            os.replace = replace
            it.keep(1, texts(it.rows_of(1)))
        os._exit(0)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == -signal.SIGKILL
    with job(tmp_path / "killed").opened() as it:
        assert it.todo == [1, 2, 3]
    assert done(tmp_path / "killed") == whole


# ------------------------------------------------------------------ prompts


def test_prompts_of_both_kinds_and_their_seeds(tmp_path):
    plain, objects = tmp_path / "p.txt", tmp_path / "p.jsonl"
    plain.write_text("To be\n\n or\u2028not\n")
    objects.write_text('{"prompt": "a\\nb", "seed": 7}\n\n{"prompt": "c"}\n')
    assert read_rows(plain, seed=5) == [Row("To be", 5), Row(" or\u2028not", 6)]
    assert read_rows(objects, samples=2) == [
        Row("a\nb", 7),
        Row("a\nb", 8),
        Row("c", 2),
        Row("c", 3),
    ]
    assert read_rows(None, samples=2) == [Row("\n", 0), Row("\n", 1)]


@pytest.mark.parametrize(
    "line",
    [
        "{",
        "[]",
        "3",
        '{"text": "a"}',
        '{"prompt": ""}',
        '{"prompt": 3}',
        '{"prompt": "a", "seed": -1}',
        '{"prompt": "a", "seed": true}',
        "[" * 9999,
    ],
)
def test_a_bad_line_is_named(tmp_path, line):
    path = tmp_path / "p.jsonl"
    path.write_text('{"prompt": "a"}\n' + line + "\n")
    with pytest.raises(ValueError, match=r"p\.jsonl, line 2"):
        read_rows(path)


def test_no_prompt_and_bytes_are_refused(tmp_path):
    for data, words in ((b"\n\n", "holds no prompt"), (b"\xff\xfe", "is not UTF-8")):
        (tmp_path / "p.txt").write_bytes(data)
        with pytest.raises(ValueError, match=words):
            read_rows(tmp_path / "p.txt")


# ------------------------------------------------------------------ the command


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory):
    """A tiny model of the characters a to e, saved."""
    shape = GPTConfig(vocab_size=5, block_size=16, n_layer=1, n_head=2, n_embd=16)
    model = GPT(shape, generator=torch.Generator().manual_seed(1))
    meta = {"format": "nanogpt-notebooks checkpoint 1", "config": vars(shape), "step": 1}
    meta |= {"vocabulary": "abcde", "corpus": {"name": "letters", "sha256": "0" * 64}}
    path = tmp_path_factory.mktemp("job") / "tiny"
    save_checkpoint(path, model, meta | {"losses": {"train": 1.0, "val": 1.0}})
    return path


@pytest.fixture
def words(checkpoint, tmp_path):
    (tmp_path / "prompts.txt").write_text("a\nbcd\neeeee\n")
    where = ["--checkpoint", checkpoint, "--prompts", tmp_path / "prompts.txt"]
    how = ["--samples", 3, "--max-new-tokens", 6, "--shard-size", 2, "--backend", "modules"]
    return lambda out, *more: [str(word) for word in (*where, *how, "--out", out, *more)]


def checksum(folder):
    return json.loads((folder / "job.json").read_text())["checksum"]


def test_the_command_writes_what_generate_gives_each_text_alone(words, checkpoint, tmp_path):
    assert main(words(tmp_path / "out", "--temperature", "0.8")) == 0
    saved, tokenizer = load_checkpoint(checkpoint), CharTokenizer("abcde")
    for row in lines(tmp_path / "out"):
        seed = torch.Generator().manual_seed(row["seed"])
        drawn = writer.SamplingParams(temperature=0.8)
        alone = complete(
            saved.model, tokenizer.encode(row["prompt"])[None], 6, drawn, generator=seed
        )
        assert row["prompt"] + row["text"] == tokenizer.decode(alone)


def test_ctrl_c_keeps_the_shards_that_are_done(words, tmp_path, monkeypatch, capsys):
    assert main(words(tmp_path / "whole")) == 0
    plain, calls = writer.Writer.__call__, itertools.count()

    def stopped(self, rows):
        if next(calls) == 2:
            os.kill(os.getpid(), signal.SIGINT)
        return plain(self, rows)

    monkeypatch.setattr(writer.Writer, "__call__", stopped)
    assert main(words(tmp_path / "cut")) == 130
    assert "2 of 5 shards are kept" in capsys.readouterr().err
    assert main(words(tmp_path / "cut")) == 0
    assert "2 of them done" in capsys.readouterr().out
    assert checksum(tmp_path / "cut") == checksum(tmp_path / "whole")


@pytest.mark.parametrize(
    ("more", "said"),
    [
        (["--max-new-tokens", "20"], "exceed block_size 16: ask for at most 16"),
        (["--workers", "0"], "--workers=0: must be an integer"),
        (["--top-k", "9"], "top_k=9"),
        (["--checkpoint", "nowhere"], "no checkpoint at nowhere"),
        (["--prompts", "nowhere"], "No such file"),
        (["--shard-size", "0"], "shard_size=0"),
    ],
)
def test_what_cannot_be_is_refused_before_anything_is_written(words, tmp_path, capsys, more, said):
    assert main(words(tmp_path / "out", *more)) == 2
    assert said in capsys.readouterr().err
    assert not (tmp_path / "out").exists()


def test_an_unknown_character_names_its_text(words, tmp_path, capsys):
    (tmp_path / "prompts.txt").write_text("a\nbz\n")
    assert main(words(tmp_path / "out")) == 2
    assert "text 3: 'z' in 'bz' is not among the 5" in capsys.readouterr().err


def test_without_ray_several_workers_say_what_to_install(words, tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(ray_workers.importlib.util, "find_spec", lambda name: None)
    assert main(words(tmp_path / "out", "--workers", "2")) == 2
    assert "pip install -r requirements-ray.txt" in capsys.readouterr().err
    assert not (tmp_path / "out").exists()


def test_where_nothing_can_be_built_modules_write(checkpoint, monkeypatch):
    def cannot(*arguments):
        raise CannotBuild("no compiler")

    monkeypatch.setattr(writer.NativeBackend, "__init__", cannot)
    assert writer.choose_backend(load_checkpoint(checkpoint)) == ("modules", "no compiler")


# ------------------------------------------------------------------ Ray


def ray_actors(pid: int) -> list[int]:
    """The processes below this one in which Ray Data runs our class."""
    parents, names = {}, {}
    for path in Path("/proc").glob("[0-9]*"):
        try:
            parents[int(path.name)] = int(
                path.joinpath("stat").read_text().rsplit(")", 1)[1].split()[1]
            )
            names[int(path.name)] = path.joinpath("cmdline").read_text()
        except (OSError, IndexError):
            continue
    below, found = {pid}, True
    while found:
        found = {child for child, parent in parents.items() if parent in below} - below
        below |= found
    return [child for child in below if names.get(child, "").startswith("ray::MapWorker")]


@pytest.mark.slow
@pytest.mark.skipif(not importlib.util.find_spec("ray"), reason="Ray is not installed")
@pytest.mark.skipif(not Path("/proc/self/environ").exists(), reason="finds actors in /proc")
def test_actors_of_ray_write_the_same_texts_though_one_is_killed(words, tmp_path):
    assert main(words(tmp_path / "whole", "--samples", "40", "--shard-size", "1")) == 0
    out = tmp_path / "ray"
    command = [sys.executable, "-m", "nanogpt", "generate"]
    command += words(out, "--samples", "40", "--shard-size", "1", "--workers", "2")
    killed = []
    with subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, text=True) as process:
        threading.Thread(target=process.stdout.read, daemon=True).start()
        while process.poll() is None:
            if (
                not killed
                and list(out.glob("shards/*.jsonl"))
                and (actors := ray_actors(process.pid))
            ):
                os.kill(actors[0], signal.SIGKILL)
                killed.append(actors[0])
            time.sleep(0.01)
    assert process.returncode == 0
    assert killed
    assert checksum(out) == checksum(tmp_path / "whole")


def test_a_byte_order_mark_is_no_part_of_a_prompt(tmp_path):
    path = tmp_path / "prompts.txt"
    path.write_bytes(b"\xef\xbb\xbfKING:\n")
    assert read_rows(path) == [Row("KING:", 0)]


def test_more_texts_than_memory_holds_are_refused_at_once():
    with pytest.raises(ValueError, match="1,000,000,000 texts are too many"):
        read_rows(None, samples=10**9)
