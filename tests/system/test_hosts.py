"""Two hosts on one machine, and nothing left of them."""

import subprocess

import pytest

from nanogpt.system import hosts
from nanogpt.system.hosts import two_hosts


def shown(*words) -> str:
    return subprocess.run(words, capture_output=True, text=True).stdout


def test_loopback_needs_nothing():
    with two_hosts("loopback") as ((a, b), where):
        assert (a.address, b.address, where) == ("127.0.0.1", "127.0.0.1", "loopback")
        assert a.prefix == b.prefix == ()


def test_namespaces_have_an_address_each_and_are_gone_at_the_end():
    before = shown("ip", "netns", "list") if hosts.shutil.which("ip") else ""
    with two_hosts() as ((a, b), where):
        if where == "loopback":
            pytest.skip("network namespaces cannot be made here")
        for host in (a, b):
            assert f"{host.address}/30" in shown(*host.prefix, "ip", "-brief", "address")
        assert a.address != b.address
    assert shown("ip", "netns", "list") == before


def test_where_none_can_be_made_auto_is_loopback_and_namespaces_say_why(monkeypatch):
    monkeypatch.setattr(hosts.shutil, "which", lambda name: None)
    with two_hosts() as (_, where):
        assert where == "loopback"
    with pytest.raises(OSError, match="no command `ip`.*use loopback"), two_hosts("namespaces"):
        pass
    with pytest.raises(ValueError, match="network='wifi': choose from"), two_hosts("wifi"):
        pass
