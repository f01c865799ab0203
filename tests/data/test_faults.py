"""Faults that are really caused.

After each one: an error that names the thing, what was there before still there to the byte,
nothing half-written beside it, and a next plain attempt that works.
"""

import re

import pytest
from fault_fixtures import body, contents, moved, read_only

from nanogpt.data import corpus
from nanogpt.data.corpus import CorpusError, fetch, load_corpus
from nanogpt.system.files import sha256

pytestmark = pytest.mark.usefixtures("little_corpus")


TEXT = b"To be, or not to be.\n" * 10_000


def get(url, target):
    return fetch(target, url, sha256(TEXT), len(TEXT))


REDIRECTS = {
    "to another file": ("{here}/other.txt", "not the file we know"),
    "to another host's other file": ("{there}/other.txt", "not the file we know"),
    "to a page that asks to log in": ("{there}/login", "cut: 20 of"),
    "to a larger file": ("{there}/larger", "larger than the"),
    "to itself": ("{here}/input.txt", "no file .*HTTPError"),
    "to a file of this machine": ("file:///etc/hostname", "no file .*not allowed"),
    "to a host that is not there": ("http://127.0.0.1:9/input.txt", "no connection: .*refused"),
    "to no address": pytest.param(
        ("http://[broken/input.txt", "no file|no connection"),
    ),
}


@pytest.mark.parametrize("case", REDIRECTS.values(), ids=REDIRECTS)
def test_a_download_that_is_sent_elsewhere_brings_the_known_file_or_none(servers, tmp_path, case):
    here, there = servers
    to, message = case
    for server in servers:
        server.routes = {
            "/other.txt": body(TEXT.replace(b"be", b"BE", 1)),
            "/login": body(b"<html>log in</html>\n"),
            "/larger": body(TEXT + b"!"),
            "/right": body(TEXT),
        }
    here.routes["/input.txt"] = moved(
        to.format(here=here.url(""), there=there.url("", "localhost"))
    )
    target = tmp_path / "input.txt"
    target.write_text("mine")
    with pytest.raises(CorpusError, match=message):
        get(here.url(), target)
    assert contents(tmp_path) == {"input.txt": b"mine"}
    here.routes["/input.txt"] = moved(there.url("/right"))
    assert get(here.url(), target).read_bytes() == TEXT, "the sum decides, not the address"
    assert sorted(contents(tmp_path)) == ["input.txt"]


@pytest.fixture
def project(tmp_path, monkeypatch):
    """A project without a corpus that asks the address given for one."""

    def ask(url, root=tmp_path / "project"):
        monkeypatch.setattr(corpus, "ROOT", root)
        monkeypatch.setattr(corpus, "fetch", lambda target: get(url, target))
        return load_corpus()

    (tmp_path / "project" / "data").mkdir(parents=True)
    monkeypatch.delenv("NANOGPT_DATA")
    monkeypatch.delenv("NANOGPT_OFFLINE", raising=False)
    monkeypatch.setattr(corpus, "TIMEOUT", 0.3)
    return ask


def test_after_each_failed_download_the_next_plain_one_works(servers, tmp_path, project):
    server = servers[0]
    server.stalls = "/stalled"
    server.routes = {
        "/cut": body(TEXT[:-1], says=len(TEXT)),
        "/altered": body(b"t" + TEXT[1:]),
        "/oversized": body(TEXT + b"\n"),
        "/stalled": body(TEXT[:1000], says=len(TEXT)),
        "/input.txt": body(TEXT),
    }
    local = tmp_path / "project" / "data" / "input.txt"
    urls = [server.url(path) for path in list(server.routes)[:-1]] + ["http://127.0.0.1:9/refused"]
    for url in urls:
        assert not project(url).real
        assert contents(tmp_path / "project") == {}, url
        assert project(server.url()).source == str(local)
        assert local.read_bytes() == TEXT
        assert project(urls[0]).real, "the file that is there is taken, and no download tried"
        local.unlink()


def test_a_disk_that_is_full_stops_no_run_for_want_of_a_corpus(servers, disk, project):
    servers[0].routes["/input.txt"] = body(TEXT)
    (disk.mine / "data").mkdir()
    (disk.mine / "data" / "notes.txt").write_text("mine")
    disk.fill(65_536)
    found = project(servers[0].url(), disk.mine)
    assert re.search("the download did not work .*(No space left|too large)", found.banner)
    assert contents(disk.mine) == {"data/notes.txt": b"mine"}
    disk.clear()
    assert project(servers[0].url(), disk.mine).real


def test_a_closed_folder_stops_no_run_for_want_of_a_corpus(servers, tmp_path, project):
    servers[0].routes["/input.txt"] = body(TEXT)
    with read_only(tmp_path / "project" / "data"):
        assert re.search(
            "did not work .*cannot write into .*project/data", project(servers[0].url()).banner
        )
    assert contents(tmp_path / "project") == {}
    assert project(servers[0].url()).real
