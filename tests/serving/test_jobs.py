"""Jobs of many texts: the same files for any number of workers; a killed job resumes."""

import contextlib
import importlib.util
import itertools
import json
import os
import signal
import subprocess
import sys
import time

import pytest
from checkpoint_fixtures import CHARS, meta_of
from conftest import seeded, tiny_model

from nanogpt.cli import main
from nanogpt.data import CharTokenizer
from nanogpt.decoder.checkpoint import load_checkpoint, save_checkpoint
from nanogpt.files import ROOT
from nanogpt.generation import complete
from nanogpt.sampling import SamplingParams
from nanogpt.serving import jobs
from nanogpt.serving.jobs import Job, read_prompts

PROMPTS = ["a", "bb", "c\u2028c", '"d"', "ée"]


def job(folder, **changes):
    """11 texts (the prompts, each up to three times) in 4 shards."""
    settings = {"checkpoint": "anywhere", "weights": "0" * 64, "samples": 3, "shard_size": 4}
    return Job(folder, PROMPTS, **settings | changes)


def texts(one, number):
    """Stands for a model: a text depends only on its prompt and its seed."""
    return [f'{prompt}→{seed}\r\n\u2028"' for _, prompt, seed in one.texts_of(number)]


def finish(one, order=list):
    """Write all shards that are not finished."""
    one.begin()
    for number in order(one.todo):
        one.write(number, texts(one, number))


def shards(folder):
    """The bytes of all shards, by name."""
    return {path.name: path.read_bytes() for path in (folder / "shards").glob("*.jsonl")}


def rows(folder):
    """The lines of all shards, in order."""
    data = b"".join(part for _, part in sorted(shards(folder).items()))
    return [json.loads(line) for line in data.decode().split("\n")[:-1]]


# ------------------------------------------------------------------ the folder


def test_every_text_is_written_once_and_in_order(tmp_path):
    one = job(tmp_path)
    finish(one)
    written = rows(tmp_path)
    assert [row["index"] for row in written] == [row["seed"] for row in written] == list(range(15))
    assert [row["prompt"] for row in written] == [p for p in PROMPTS for _ in range(3)]
    assert [row["text"] for row in written] == sum((texts(one, n) for n in range(4)), [])
    assert sorted(shards(tmp_path)) == [f"0000{n}.jsonl" for n in range(4)]


def test_the_files_do_not_depend_on_the_order_of_shards_or_the_path_of_the_weights(tmp_path):
    finish(job(tmp_path / "forwards"))
    finish(job(tmp_path / "backwards", checkpoint="elsewhere"), order=reversed)
    assert shards(tmp_path / "forwards") == shards(tmp_path / "backwards")


def test_finished_shards_are_skipped(tmp_path):
    one = job(tmp_path)
    one.begin()
    one.write(1, ["kept"] * 4)
    again = job(tmp_path)
    again.begin()
    assert again.todo == [0, 2, 3]
    finish(again)
    assert again.todo == []
    assert [row["text"] for row in rows(tmp_path)[4:8]] == ["kept"] * 4


@pytest.mark.skipif(not hasattr(os, "fork"), reason="this system has no fork")
def test_a_process_killed_while_it_writes_leaves_no_shard(tmp_path, monkeypatch):
    """The temporary file that it leaves is not taken for a shard."""
    one = job(tmp_path)
    one.begin()
    with monkeypatch.context() as patch:
        patch.setattr(os, "replace", lambda *_: os._exit(9))  # the moment before a shard is there
        child = os.fork()
        if not child:
            one.write(0, texts(one, 0))
            os._exit(0)  # not reached
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 9
    assert len(list((tmp_path / "shards").iterdir())) == 1
    assert job(tmp_path).todo == [0, 1, 2, 3]
    finish(job(tmp_path))
    assert len(rows(tmp_path)) == 15


CHANGES = {  # a setting of another job, and the words of the message
    "prompts": ({"prompts": [*PROMPTS[:-1], "x"]}, "whose --prompts is "),
    "seed": ({"seed": 1}, "whose --seed is 0, not 1: repeat its command to resume it, or name a"),
    "sampling": ({"sampling": SamplingParams(0.5)}, "whose --temperature is 1.0, not 0.5"),
    "weights": ({"weights": "1" * 64}, "whose --checkpoint is 000000000000, not 111111111111"),
}


@pytest.mark.parametrize("change", CHANGES)
def test_a_folder_of_another_job_is_refused(tmp_path, change):
    finish(job(tmp_path))
    before = (tmp_path / "job.json").read_bytes()
    changes, words = CHANGES[change]
    other = Job(**{**vars(job(tmp_path)), **changes})
    with pytest.raises(ValueError, match=words):
        other.begin()
    assert (tmp_path / "job.json").read_bytes() == before


# ------------------------------------------------------------------ prompts


def test_prompts_are_lines_or_objects(tmp_path):
    plain = tmp_path / "p.txt"
    plain.write_bytes("\ufeffTo be\r\n\n or\u2028not\n".encode())  # with a byte order mark
    assert read_prompts(plain) == ["To be", " or\u2028not"]
    objects = tmp_path / "p.jsonl"
    objects.write_text('{"prompt": "a\\nb"}\n\n{"prompt": "c"}\n', encoding="utf-8")
    assert read_prompts(objects) == ["a\nb", "c"]
    assert read_prompts(None) == ["\n"]


WRONG = {
    "a torn object": ("p.jsonl", b'{"prompt": "a"}\n{', r'p\.jsonl, line 2: write {"prompt"'),
    "one field more": ("p.jsonl", b'{"prompt": "a", "seed": 1}', "no other field"),
    "no prompt": ("p.txt", b"\n\r\n", r"p\.txt has no prompt"),
    "an image": ("p.txt", b"a\r\nb\nb\x89PNG\n", r"line 3 is not UTF-8 text \(.* at byte 2 of the"),
}


@pytest.mark.parametrize("what", WRONG)
def test_a_wrong_prompt_is_refused_with_file_and_line(tmp_path, what):
    name, data, words = WRONG[what]
    (tmp_path / name).write_bytes(data)
    with pytest.raises(ValueError, match=words):
        read_prompts(tmp_path / name)


def test_an_endless_file_of_prompts_is_refused(tmp_path, monkeypatch):
    monkeypatch.setattr(jobs, "LARGEST_FILE", 10_000)
    (tmp_path / "endless.txt").symlink_to("/dev/zero")
    with pytest.raises(ValueError, match="endless.txt has over 10,000 bytes: split it"):
        read_prompts(tmp_path / "endless.txt")


# ------------------------------------------------------------------ the command


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory):
    """A tiny model of the characters a to m, saved."""
    path = tmp_path_factory.mktemp("job") / "tiny"
    model = tiny_model()
    save_checkpoint(path, model, meta_of(model))
    return path


@pytest.fixture
def words(checkpoint, tmp_path):
    """The command line that writes 9 texts in 5 shards into a folder."""
    (tmp_path / "prompts.txt").write_text("a\nbcd\neeeee\n", encoding="utf-8")
    source = ["generate", "--checkpoint", checkpoint, "--prompts", tmp_path / "prompts.txt"]
    how = ["--samples", 3, "--max-new-tokens", 6, "--shard-size", 2, "--backend", "modules"]
    return lambda out, *more: [str(word) for word in (*source, *how, "--out", out, *more)]


def test_the_command_writes_the_same_texts_as_complete(words, checkpoint, tmp_path):
    assert main(words(tmp_path / "out", "--temperature", "0.8")) == 0
    model = load_checkpoint(checkpoint).model
    tokenizer = CharTokenizer(CHARS)
    written = rows(tmp_path / "out")
    assert len(written) == 9
    for row in written:
        prompt = tokenizer.encode(row["prompt"])[None]
        seed = row["seed"]
        alone = complete(model, prompt, 6, SamplingParams(temperature=0.8), generator=seeded(seed))
        assert row["prompt"] + row["text"] == tokenizer.decode(alone)


def test_ctrl_c_keeps_the_finished_shards(words, tmp_path, monkeypatch, capsys):
    assert main(words(tmp_path / "whole")) == 0
    plain = jobs.ShardWriter.continuations
    calls = itertools.count()

    def stopped(self, number):
        if next(calls) == 2:
            os.kill(os.getpid(), signal.SIGINT)
        return plain(self, number)

    monkeypatch.setattr(jobs.ShardWriter, "continuations", stopped)
    assert main(words(tmp_path / "cut")) == 130
    assert "2 of 5 shards are kept" in capsys.readouterr().err
    assert main(words(tmp_path / "cut")) == 0
    assert "9 texts in 5 shards, 2 are done" in capsys.readouterr().out
    assert shards(tmp_path / "cut") == shards(tmp_path / "whole")


@pytest.mark.parametrize(
    ("more", "said"),
    [
        (["--max-new-tokens", "30"], "prompts.txt, line 1: a prompt of 1 and 30 new tokens"),
        (["--workers", "0"], "--workers 0: must be an integer in [1, 1000]"),
        (["--prompts", "nope"], "error: No such file or directory: 'nope': check the path\n"),
        (["--top-k", "14"], "--top-k 14"),
        (["--checkpoint", "nowhere"], "no checkpoint at nowhere"),
        (["--prompts", "{}/unknown.txt"], "unknown.txt, line 3: 'z' not in"),
    ],
)
def test_wrong_options_are_refused_before_anything_is_written(words, tmp_path, capsys, more, said):
    (tmp_path / "unknown.txt").write_text("a\n\nbz\n", encoding="utf-8")
    assert main(words(tmp_path / "out", *(word.format(tmp_path) for word in more))) == 2
    assert said in capsys.readouterr().err
    assert not (tmp_path / "out").exists()


def test_workers_without_ray_are_refused_before_anything_is_written(
    words, tmp_path, capsys, monkeypatch
):
    monkeypatch.setitem(sys.modules, "ray", None)
    assert main(words(tmp_path / "out", "--workers", "2")) == 2
    advice = 'error: ray is not installed: pip install "nanogpt-notebooks[ray]"\n'
    assert capsys.readouterr() == ("", advice)
    assert not (tmp_path / "out").exists()


# ------------------------------------------------------------------ Ray itself


needs_ray = pytest.mark.skipif(not importlib.util.find_spec("ray"), reason="Ray is not installed")


def descendants(pid: int) -> dict[int, str]:
    """The processes that this one has started, and those they have started, with their titles."""
    found = subprocess.run(["ps", "-eo", "pid=,ppid=,args="], capture_output=True, encoding="utf-8")
    started = {}
    parents = {pid}
    for line in sorted(found.stdout.splitlines(), key=lambda line: int(line.split()[0])):
        child, parent, title = line.split(None, 2)
        if int(parent) in parents:
            parents.add(int(child))
            started[int(child)] = title
    return started


@contextlib.contextmanager
def started(words, out):
    """The command in a process with two workers, once it has written its first shard."""
    command = [sys.executable, "-m", "nanogpt", *words(out, *MANY, "--workers", "2")]
    with subprocess.Popen(
        command, cwd=ROOT, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, encoding="utf-8"
    ) as process:
        while process.poll() is None and not list(out.glob("shards/*.jsonl")):
            time.sleep(0.01)
        yield process


MANY = ["--samples", "40", "--shard-size", "1"]  # so many that the job is not over too soon


@pytest.mark.release
@needs_ray
def test_an_error_of_a_worker_of_ray_is_one_line(tmp_path):
    lost = job(tmp_path, checkpoint=str(tmp_path / "nowhere"))
    with pytest.raises(ChildProcessError) as error:
        list(jobs.generate_shards(lost, workers=2))
    assert "no checkpoint at" in str(error.value)
    assert "\n" not in str(error.value)


@pytest.mark.release
@needs_ray
def test_workers_of_ray_write_the_same_files_though_one_is_killed(words, tmp_path):
    assert main(words(tmp_path / "whole", *MANY)) == 0
    with started(words, tmp_path / "ray") as process:
        titles = descendants(process.pid)
        actors = [child for child, title in titles.items() if "ray::MapWorker" in title]
        os.kill(actors[0], signal.SIGKILL)
        process.communicate()
    assert process.returncode == 0
    assert shards(tmp_path / "ray") == shards(tmp_path / "whole")


@pytest.mark.release
@needs_ray
@pytest.mark.parametrize(("name", "code"), [("SIGTERM", 143), ("SIGINT", 130), ("SIGKILL", -9)])
def test_a_job_with_workers_of_ray_that_is_killed_resumes(words, tmp_path, name, code):
    out = tmp_path / "ray"
    with started(words, out) as process:
        process.send_signal(getattr(signal, name))
        said = process.communicate()[1]
    assert process.returncode == code
    n_done = len(list(out.glob("shards/*.jsonl")))
    assert 0 < n_done < 120
    assert name == "SIGKILL" or f"{n_done} of 120 shards are kept" in said
    assert main(words(out, *MANY)) == 0
    assert main(words(tmp_path / "whole", *MANY)) == 0
    assert shards(out) == shards(tmp_path / "whole")
