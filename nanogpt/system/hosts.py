"""Two hosts on one machine: network namespaces with a cable between them, or only loopback."""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
from contextlib import contextmanager
from dataclasses import dataclass

NETWORKS = ("auto", "namespaces", "loopback")


@dataclass(frozen=True)
class Host:
    """Where a process can be started: its address there, and the words before its command."""

    address: str = "127.0.0.1"
    interface: str | None = None  # None: the library that asks chooses one
    prefix: tuple[str, ...] = ()


def loopback() -> Host:
    """This machine, with traffic on its loopback interface alone."""
    names = {name for _, name in socket.if_nameindex()}
    return Host(interface=next((name for name in ("lo", "lo0") if name in names), None))


@contextmanager
def two_hosts(network: str = "auto"):
    """Gives two Hosts for a with-block, and what they are: "namespaces" or "loopback".

    In network namespaces, which only root may make, each host has its own interfaces, and they
    reach each other by one cable (veth) and nothing else. "auto" takes them where they can be
    made. Raises OSError when "namespaces" cannot be made, ValueError for an unknown network.
    """
    if network not in NETWORKS:
        raise ValueError(f"network={network!r}: choose from {', '.join(NETWORKS)}")
    names = [f"nanogpt-{os.getpid()}-{side}" for side in "ab"]
    try:
        why = _make(names) if network != "loopback" else ""
        if why and network == "namespaces":
            raise OSError(f"no network namespaces here ({why}): use loopback")
        if why or network == "loopback":
            yield [loopback(), loopback()], "loopback"
        else:
            yield [_inside(name, i) for i, name in enumerate(names, 1)], "namespaces"
    finally:
        if network != "loopback":
            for name in names:
                _ip("netns", "delete", name)


def _inside(name: str, number: int) -> Host:
    return Host(f"198.18.0.{number}", "veth0", ("ip", "netns", "exec", name))


def _make(names: list[str]) -> str:
    """Two namespaces and a cable; why it could not be done, empty when it was."""
    if os.name != "posix" or not shutil.which("ip"):
        return "there is no command `ip`"
    a, b = names
    commands = [("netns", "add", a), ("netns", "add", b)]
    ends = ("veth0", "netns", a, "type", "veth", "peer", "name", "veth0", "netns", b)
    commands.append(("link", "add", *ends))
    for number, name in enumerate(names, 1):
        commands.append(("-n", name, "address", "add", f"198.18.0.{number}/30", "dev", "veth0"))
        commands += [("-n", name, "link", "set", device, "up") for device in ("lo", "veth0")]
    return next(filter(None, (_ip(*words) for words in commands)), "")


def _ip(*words: str) -> str:
    """Run `ip`; its error, empty when there was none."""
    try:
        done = subprocess.run(["ip", *words], capture_output=True, text=True, timeout=20)
    except (OSError, subprocess.TimeoutExpired) as error:
        return str(error)
    return done.stderr.strip() or "it failed" if done.returncode else ""
