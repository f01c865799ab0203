"""Hundreds of requests at once, of which some break off and some are nonsense: nothing is lost.

NANOGPT_SOAK=2000 asks for as many as that.
"""

import functools
import os
import random
from collections import Counter
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch
from decoding_fixtures import build
from server_fixtures import CHARS, Counted, ask, expected, post, send, stream, until

from nanogpt.sampling import SamplingParams
from nanogpt.serving.http import listening
from nanogpt.serving.native_steps import NativeBackend

KINDS = 60  # different texts; connections
AT_ONCE = 24
NONSENSE = [
    b"{",
    b'{"prompt": "a\xff"}',
    b'{"prompt": "\\u00e9"}',
    b'{"prompt": "a", "max_tokens": -2}',
    b'{"prompt": "a", "top_p": 2}',
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


def request(url: str, number: int) -> str:
    """One client: what it was and whether it got what it should."""
    draw = random.Random(f"client {number}")
    fate = draw.random()
    kind = draw.randrange(KINDS)
    if fate < 0.05:
        code, _ = ask(url, "POST", "/v1/completions", draw.choice(NONSENSE))
        return "refused" if code == 400 else "WRONG: nonsense served"
    asked = fields(kind)
    if fate < 0.15:  # it leaves: at once, or at the first bytes
        with send(url, **asked) as connection:
            connection.recv(draw.choice([0, 100]))
        return "left"
    if asked.pop("stream"):
        text = "".join(stream(url, **asked))
    else:
        text = post(url, **asked)[1]["choices"][0]["text"]
    return "equal" if text == answer(kind) else f"WRONG: {kind} {text}"


@pytest.mark.release
def test_clients_that_leave_and_talk_nonsense_take_nothing_from_the_others():
    n = int(os.environ.get("NANOGPT_SOAK", "300"))
    limits = {"running": 8, "waiting": AT_ONCE}
    server = Counted(build(torch.float32), backend=NativeBackend, **limits)
    with listening(server) as url:
        with ThreadPoolExecutor(AT_ONCE) as clients:
            found = Counter(clients.map(lambda number: request(url, number), range(n)))
        assert not [what for what in found if what.startswith("WRONG")], found
        until(lambda: not server.answers)
        until(lambda: server.free)
    server.engine.audit()
    assert min(found["left"], found["refused"]) > n / 50
