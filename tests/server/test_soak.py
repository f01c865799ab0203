"""Hundreds of requests at once, of which some break off and some are nonsense: nothing is lost.

NANOGPT_SOAK=2000 asks for as many as that.
"""

import asyncio
import functools
import json
import os
import random
import re
from collections import Counter

import pytest
import torch
from decoding_fixtures import build
from server_fixtures import CHARS, expected, metrics, until

from nanogpt.decoding.sampling import SamplingParams
from nanogpt.server.server import Server, serving
from nanogpt.serving.native import NativeBackend

KINDS, AT_ONCE = 60, 24  # different texts; connections
NONSENSE = [
    b"{",
    b'{"prompt": "a\xff"}',
    b'{"prompt": "\\u00e9"}',
    b'{"prompt": "a", "max_tokens": -1}',
    b'{"prompt": "a", "temprature": 1}',
]


def fields(kind: int) -> dict:
    """Request number `kind`."""
    draw = random.Random(kind)
    prompt = "".join(draw.choices(CHARS.chars, k=draw.choice([1, 3, 8, 12])))
    prompt = "abcdabcdabcd"[: draw.choice([0, 4, 8])] + prompt if kind % 2 else prompt
    n = draw.randint(1, 24 - len(prompt))
    greedy = {"temperature": 0} if kind % 5 == 0 else {}
    return {"prompt": prompt, "max_tokens": n, "seed": kind, "stream": kind % 3 > 0, **greedy}


@functools.cache
def answer(kind: int) -> str:
    asked = fields(kind)
    sampling = SamplingParams(greedy="temperature" in asked)
    return expected(build(torch.float32), asked["prompt"], asked["max_tokens"], sampling, kind)


async def request(port: int, number: int) -> str:
    """One client: what it was and whether it got what it should."""
    draw = random.Random(f"client {number}")
    fate, kind = draw.random(), draw.randrange(KINDS)
    body = json.dumps(fields(kind)).encode()
    if fate < 0.05:
        body = draw.choice(NONSENSE)
    head = f"POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Length: {len(body)}\r\n"
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    try:
        writer.write(head.encode() + b"Connection: close\r\n\r\n" + body)
        if 0.05 <= fate < 0.15:
            return await leave(reader, writer, draw.randrange(3))
        data = await reader.read()
    finally:
        writer.close()
    if fate < 0.05:
        return "refused" if b" 400 " in data.split(b"\r\n")[0] else "WRONG: nonsense served"
    return "equal" if text(data.decode()) == answer(kind) else f"WRONG: {kind} {data}"


async def leave(reader, writer, when: int) -> str:
    """Break off: at once, at the first bytes, or by a reset."""
    if when == 1:
        await reader.read(100)
    if when == 2:
        writer.transport.abort()
    return "left"


def text(data: str) -> str:
    """What an answer says, whole or in pieces."""
    head, body = data.split("\r\n\r\n", 1)
    if "text/event-stream" not in head:
        return json.loads(body)["choices"][0]["text"]
    events = re.findall(r"^data: (\{.*\})\r?$", body, re.M)
    assert "data: [DONE]" in body
    return "".join(json.loads(event)["choices"][0]["text"] for event in events)


async def soak(port: int, n: int) -> Counter:
    """So many requests, AT_ONCE at a time."""
    numbers, found = iter(range(n)), Counter()

    async def client():
        for number in numbers:
            found[await request(port, number)] += 1

    await asyncio.gather(*(client() for _ in range(AT_ONCE)))
    return found


@pytest.mark.slow
def test_clients_that_leave_and_talk_nonsense_take_nothing_from_the_others():
    n = int(os.environ.get("NANOGPT_SOAK", "300"))
    server = Server(build(torch.float32), CHARS, backend=NativeBackend, running=8, waiting=AT_ONCE)
    with serving(server) as url:
        found = asyncio.run(soak(int(url.rpartition(":")[2]), n))
        assert not [what for what in found if what.startswith("WRONG")], found
        until(lambda: not server.answers)
        until(lambda: metrics(url)["blocks_used"] == 0)
        outcomes = {
            name.split('"')[1]: count
            for name, count in metrics(url).items()
            if name.startswith("requests_total")
        }
    server.engine.audit()
    assert min(found["left"], found["refused"]) > n / 50
    assert outcomes["invalid"] == found["refused"]
    assert outcomes["completed"] >= found["equal"]
    assert 0 < outcomes["aborted"] <= found["left"]
    assert not outcomes["failed"] + outcomes["timeout"] + outcomes["refused"]
