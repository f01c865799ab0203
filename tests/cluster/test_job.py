"""A job of many texts: one checksum however it is cut, stopped and resumed; nothing is lost."""

import hashlib
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
from checkpoint_fixtures import CHARS, meta_of
from conftest import seeded, tiny_model

from nanogpt.cli import main
from nanogpt.cluster import job as module
from nanogpt.cluster.job import Job, Task, read_prompts
from nanogpt.data import CharTokenizer
from nanogpt.decoder.checkpoint import load_checkpoint, save_checkpoint
from nanogpt.generation import complete
from nanogpt.sampling import SamplingParams

ROOT = Path(__file__).parents[2]
PROMPTS = [("ab"[i % 2] * (1 + i % 3), i) for i in range(11)]
TASK = {"checkpoint": "anywhere", "weights": "0" * 64, "max_new_tokens": 3}


def texts(prompts):
    """Stands for a model: each text from its prompt and seed alone, with characters that try."""
    return [f'{prompt}→{seed}\r\n\u2028"' for prompt, seed in prompts]


def job(folder, prompts=PROMPTS, shard_size=3, **changes):
    return Job(folder, prompts, Task(**TASK | changes), shard_size)


def done(folder, order=sorted, **changes) -> str:
    """Do all that is to do; the checksum."""
    with job(folder, **changes).opened() as it:
        for number in order(it.todo):
            it.keep(number, texts(it.shards[number]))
        return it.checksum()


@pytest.fixture
def whole(tmp_path):
    return done(tmp_path / "whole")


def lines(folder):
    files = sorted((folder / "shards").glob("*.jsonl"))
    return [json.loads(line) for p in files for line in p.read_text("utf-8").split("\n")[:-1]]


def checksum(folder):
    """As of `cat shards/* | sha256sum`."""
    files = sorted((folder / "shards").glob("*.jsonl"))
    return hashlib.sha256(b"".join(path.read_bytes() for path in files)).hexdigest()


def test_every_text_is_written_once_in_order_and_the_checksum_is_the_same_however(tmp_path, whole):
    rows = lines(tmp_path / "whole")
    assert [row["index"] for row in rows] == list(range(11))
    assert [(row["prompt"], row["seed"]) for row in rows] == PROMPTS
    assert [row["text"] for row in rows] == texts(PROMPTS)
    assert checksum(tmp_path / "whole") == whole
    assert len(list((tmp_path / "whole" / "shards").iterdir())) == 4
    backwards = {"order": lambda todo: sorted(todo)[::-1]}
    assert done(tmp_path / "backwards", checkpoint="elsewhere", **backwards) == whole
    assert done(tmp_path / "one", shard_size=100) == whole


def test_a_job_resumes_from_what_is_done(tmp_path, whole):
    with job(tmp_path / "cut").opened() as it:
        it.keep(1, texts(it.shards[1]))
    before = it.path(1).stat().st_mtime_ns
    with job(tmp_path / "cut").opened() as it:
        assert it.todo == [0, 2, 3]
    assert done(tmp_path / "cut") == whole == done(tmp_path / "cut")
    assert it.path(1).stat().st_mtime_ns == before


CHANGES = {  # what happens to a shard between two runs
    "cut": lambda path: path.write_bytes(path.read_bytes()[:-1]),
    "one character of a text": lambda path: path.write_bytes(path.read_bytes().replace(b"a", b"b")),
    "another's": lambda path: path.write_bytes(path.with_name("00002.jsonl").read_bytes()),
    "a link": lambda path: path.unlink() or path.symlink_to("00000.jsonl"),
    "a folder": lambda path: path.unlink() or path.mkdir(),
}


@pytest.mark.parametrize("change", CHANGES)
def test_a_shard_that_was_changed_is_refused_by_name_and_written_again_once_it_is_gone(
    tmp_path, whole, change
):
    path = job(tmp_path / "whole").path(1)
    CHANGES[change](path)
    before = (tmp_path / "whole" / "job.json").read_bytes()
    with pytest.raises(ValueError, match=r"1 shards in .* \(00001\.jsonl\): move them away, and"):
        done(tmp_path / "whole")
    assert (tmp_path / "whole" / "job.json").read_bytes() == before
    os.rename(path, tmp_path / "moved")
    assert done(tmp_path / "whole") == whole


def test_the_digests_can_be_checked_by_sha256sum_and_outlive_a_cut_line(tmp_path, whole):
    sums = tmp_path / "whole" / "SHA256SUMS"
    for line in sums.read_text(encoding="utf-8").splitlines():
        digest, name = line.split("  ")
        assert hashlib.sha256((tmp_path / "whole" / name).read_bytes()).hexdigest() == digest
    with open(sums, "a", encoding="utf-8") as file:
        file.write("0123 a cut li")
    job(tmp_path / "whole").path(3).unlink()
    assert done(tmp_path / "whole") == whole
    assert len(sums.read_text(encoding="utf-8").splitlines()) == 5, (
        "four, and the new one of the last"
    )


def test_a_kill_between_a_digest_and_its_shard_is_resumed(tmp_path, whole, monkeypatch):
    with job(tmp_path / "cut").opened() as it, monkeypatch.context() as patch:
        patch.setattr(module, "write_whole", lambda *_: sys.exit("killed"))
        with pytest.raises(SystemExit):
            it.keep(0, texts(it.shards[0]))
    assert done(tmp_path / "cut") == whole


def test_a_folder_of_another_job_or_of_something_else_is_refused_and_left_alone(tmp_path, whole):
    for name in ("other", "damaged"):
        (tmp_path / name).mkdir()
    (tmp_path / "file").write_text("mine", encoding="utf-8")
    (tmp_path / "other" / "thesis.txt").write_text("mine", encoding="utf-8")
    (tmp_path / "damaged" / "job.json").write_text('{"format": ', encoding="utf-8")
    before = {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()}
    for name, changes, word in [
        ("whole", {"prompts": [*PROMPTS[:-1], ("b", 10)]}, "of --prompts, --samples or --seed"),
        ("whole", {"max_new_tokens": 4}, "of --max-new-tokens 3, not 4"),
        ("whole", {"sampling": SamplingParams(0.5)}, "of --temperature"),
        ("whole", {"weights": "1" * 64}, "of --checkpoint"),
        ("other", {}, "thesis.txt"),
        ("damaged", {}, "contains job.json"),
        ("file", {}, "is a file"),
    ]:
        with pytest.raises((ValueError, OSError), match=word):
            job(tmp_path / name, **changes).opened().__enter__()
    assert {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()} == before


def test_two_jobs_in_one_folder(tmp_path):
    other = job(tmp_path).opened()
    with job(tmp_path).opened(), pytest.raises(ValueError, match="another run"):
        other.__enter__()
    assert len(done(tmp_path)) == 64


def test_prompts_and_their_seeds(tmp_path):
    plain = tmp_path / "p.txt"
    plain.write_bytes("\ufeffTo be\n\n or\u2028not\n".encode())  # a byte order mark is no text
    assert read_prompts(plain, seed=5) == [("To be", 5), (" or\u2028not", 6)]
    objects = tmp_path / "p.jsonl"
    objects.write_text('{"prompt": "a\\nb"}\n\n{"prompt": "c"}\n', encoding="utf-8")
    assert read_prompts(objects, samples=2) == [("a\nb", 0), ("a\nb", 1), ("c", 2), ("c", 3)]
    assert read_prompts(None, samples=2) == [("\n", 0), ("\n", 1)]


def test_prompts_that_are_none_are_refused_with_their_line(tmp_path):
    wrong = '{"text": "a"}', '{"prompt": 3}', '{"prompt": "a", "b": 1}'
    for line in ("{", "[]", "[" * 9999, *wrong):
        (tmp_path / "p.jsonl").write_text('{"prompt": "a"}\n' + line + "\n", encoding="utf-8")
        with pytest.raises(ValueError, match=r"p\.jsonl, line 2"):
            read_prompts(tmp_path / "p.jsonl")
    for data, says in (
        (b"\n\r\n", r"p\.txt has no prompt"),
        (b"a\r\nb\n\x89PNG\r\n\x1a\n", r"p\.txt is not UTF-8 text .* position 5"),
    ):
        (tmp_path / "p.txt").write_bytes(data)
        with pytest.raises(ValueError, match=says):
            read_prompts(tmp_path / "p.txt")
    with pytest.raises(ValueError, match="the number of texts"):
        read_prompts(None, 10**9)


def test_an_endless_file_of_prompts_ends_with_a_message(monkeypatch, tmp_path):
    with pytest.raises(ValueError, match="line 1 has over 1,000,000 characters"):
        read_prompts(Path("/dev/zero"))
    monkeypatch.setattr(module, "MOST", 1000)
    (tmp_path / "empty.txt").write_text("\n" * 10_001, encoding="utf-8")
    with pytest.raises(ValueError, match="has over 10,000 lines"):
        read_prompts(tmp_path / "empty.txt")
    monkeypatch.setattr(
        module, "_lines", lambda path: zip(itertools.repeat(""), itertools.repeat("a"))
    )
    with pytest.raises(ValueError, match="the number of texts"):
        read_prompts(Path("yes.txt"))


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
    (tmp_path / "prompts.txt").write_text("a\nbcd\neeeee\n", encoding="utf-8")
    where = ["generate", "--checkpoint", checkpoint, "--prompts", tmp_path / "prompts.txt"]
    how = ["--samples", 3, "--max-new-tokens", 6, "--shard-size", 2, "--backend", "modules"]
    return lambda out, *more: [str(word) for word in (*where, *how, "--out", out, *more)]


def test_the_command_writes_what_generate_gives_each_text_alone(words, checkpoint, tmp_path):
    assert main(words(tmp_path / "out", "--temperature", "0.8")) == 0
    model = load_checkpoint(checkpoint).model
    tokenizer = CharTokenizer(CHARS)
    for row in lines(tmp_path / "out"):
        prompt = tokenizer.encode(row["prompt"])[None]
        seed = row["seed"]
        alone = complete(model, prompt, 6, SamplingParams(temperature=0.8), generator=seeded(seed))
        assert row["prompt"] + row["text"] == tokenizer.decode(alone)


def test_ctrl_c_keeps_the_shards_that_are_done(words, tmp_path, monkeypatch, capsys):
    assert main(words(tmp_path / "whole")) == 0
    plain = module.ShardWriter.__call__
    calls = itertools.count()

    def stopped(self, shard):
        if next(calls) == 2:
            os.kill(os.getpid(), signal.SIGINT)
        return plain(self, shard)

    monkeypatch.setattr(module.ShardWriter, "__call__", stopped)
    assert main(words(tmp_path / "cut")) == 130
    assert "2 of 5 shards are kept" in capsys.readouterr().err
    assert main(words(tmp_path / "cut")) == 0
    assert checksum(tmp_path / "cut") == checksum(tmp_path / "whole")


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
def test_options_that_do_not_fit_are_refused_before_anything_is_written(
    words, tmp_path, capsys, more, said
):
    (tmp_path / "unknown.txt").write_text("a\n\nbz\n", encoding="utf-8")
    assert main(words(tmp_path / "out", *(word.format(tmp_path) for word in more))) == 2
    assert said in capsys.readouterr().err
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("asked", [["--workers", "2"], ["--cluster", "nowhere"]], ids=str)
def test_workers_without_ray_are_refused_before_all_else(
    words, tmp_path, capsys, monkeypatch, asked
):
    monkeypatch.setitem(sys.modules, "ray", None)
    assert main(words(tmp_path / "out", *asked)) == 2
    cure = "error: a cluster or several workers need Ray: pip install '.[ray]'\n"
    assert capsys.readouterr() == ("", cure)
    assert not (tmp_path / "out").exists()


def ray_actors(pid: int) -> list[int]:
    """The processes below this one in which Ray Data runs our class."""
    found = subprocess.run(["ps", "-eo", "pid=,ppid=,args="], capture_output=True, encoding="utf-8")
    rows = [line.split(None, 2) for line in found.stdout.splitlines()]
    below = {str(pid)}
    for _ in range(5):  # generations
        below |= {child for child, parent, _ in rows if parent in below}
    return [int(child) for child, _, args in rows if child in below and "ray::MapWorker" in args]


@pytest.mark.release
@pytest.mark.skipif(not importlib.util.find_spec("ray"), reason="Ray is not installed")
def test_actors_of_ray_write_the_same_texts_though_one_is_killed(words, tmp_path):
    many = ["--samples", "40", "--shard-size", "1"]
    assert main(words(tmp_path / "whole", *many)) == 0
    out = tmp_path / "ray"
    killed = []
    command = [sys.executable, "-m", "nanogpt", "generate", *words(out, *many, "--workers", "2")]
    with subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, encoding="utf-8") as process:
        threading.Thread(target=process.stdout.read, daemon=True).start()
        while process.poll() is None:
            if not killed and list(out.glob("shards/*.jsonl")):
                killed = ray_actors(process.pid)[:1]
                for actor in killed:
                    os.kill(actor, signal.SIGKILL)
            time.sleep(0.01)
    assert process.returncode == 0
    assert killed
    assert checksum(out) == checksum(tmp_path / "whole")
