"""What a body asks for, what is refused by name, and texts that end at a stop."""

import json
import random

import pytest
from server_fixtures import CHARS

from nanogpt.sampling import SamplingParams
from nanogpt.serving.completions import Reader, Refused
from nanogpt.serving.sequence import Output

READER = Reader(CHARS, "tiny", 24)


def read(**body):
    return READER.read(json.dumps({"prompt": "abc"} | body).encode())[0]


def test_what_is_left_out_or_null_has_a_default_and_each_request_a_seed_of_its_own():
    first = read(stop=None, n=1, echo=False, logprobs=None, user="me")
    second = read(model="tiny")
    assert first.request.sampling == SamplingParams()
    assert (first.request.max_new_tokens, len({first.request.seed, second.request.seed})) == (16, 2)
    assert read(prompt="a" * 24).request.max_new_tokens == 1
    assert read(temperature=0, top_p=0.5, top_k=-1).request.sampling == SamplingParams(greedy=True)
    for same in ("ab", ["ab"], CHARS.encode("ab").tolist()):
        assert read(prompt=same).request.prompt.tolist() == CHARS.encode("ab").tolist()
    assert read(stop="\n").fields["stop"] == ["\n"]
    # What tasks of lm-eval ask for beside: humaneval has five stops, and translations name a beam.
    stops = ["\nclass", "\ndef", "\n#", "\nif", "\nprint"]
    assert read(stop=stops, num_beams=1).fields["stop"] == stops


@pytest.mark.parametrize(
    ("body", "param", "says"),
    [
        ({"prompt": "aé"}, "prompt", "'é' not in the vocabulary"),
        ({"prompt": ""}, "prompt", "empty"),
        ({"prompt": None}, "prompt", "prompt=null: pass text"),
        ({"prompt": ["a", 1]}, "prompt", "pass text"),
        ({"prompt": [1, 13]}, "prompt", "token 13: must be in [0, 12]"),
        ({"prompt": [1, 10**30]}, "prompt", f"token {10**30}: must be in [0, 12]"),
        ({"prompt": [True]}, "prompt", "pass text"),
        ({"prompt": []}, "prompt", "empty"),
        ({"prompt": "a" * 25}, "prompt", "a prompt of 25 tokens: the model reads 24 at most"),
        ({"max_tokens": 0}, "max_tokens", "[1, 22]"),
        ({"max_tokens": 10**30}, "max_tokens", "[1, 22]"),
        ({"max_tokens": "4"}, "max_tokens", 'max_tokens="4": must be an integer in [1, 22]'),
        ({"max_tokens": True}, "max_tokens", "max_tokens=true: "),
        ({"max_tokens": 23}, "max_tokens", "[1, 22]"),
        ({"temperature": -1}, "temperature", "[0,"),
        ({"top_p": 0}, "top_p", "top_p=0"),
        ({"top_k": 14}, "top_k", "top_k=14"),
        ({"seed": 2**64}, "seed", "seed="),
        ({"stop": [""]}, "stop", "none empty"),
        ({"stop": ["a"] * 17}, "stop", "up to 16"),
        ({"stream": 1}, "stream", "stream=1: must be true or false"),
        ({"stream_options": [": "]}, "stream_options", '=[": "]: must be an object'),
        ({"logprobs": 6}, "logprobs", "logprobs=6: must be an integer in [0, 5]"),
        ({"echo": 1}, "echo", "echo=1: must be true or false"),
        ({"model": "gpt-4"}, "model", "this server has 'tiny'"),
        ({"n": 2}, "n", "n=2: this server does not have it"),
        ({"num_beams": 5}, "num_beams", "num_beams=5: this server does not have it"),
        ({"temprature": 1}, "temprature", "temprature=1: this server does not have it"),
    ],
    ids=lambda value: str(value)[:30],
)
def test_what_cannot_be_served_is_named(body, param, says):
    with pytest.raises(Refused) as caught:
        read(**body)
    error = caught.value.body()["error"]
    assert caught.value.status == (404 if param == "model" else 400)
    assert (error["type"], error["param"]) == ("invalid_request_error", param)
    assert says in error["message"]


@pytest.mark.parametrize("data", [b"", b"[]", b"\xff", b"[" * 100_000, b"9" * 5000])
def test_a_body_that_is_no_object_is_refused(data):
    with pytest.raises(Refused, match="JSON"):
        READER.read(data)


def cut(text: str, stops: tuple[str, ...]) -> tuple[str, str]:
    """The text up to the stop that is complete first, of several the longest; and why it ends."""
    for end in range(1, len(text) + 1):
        found = [stop for stop in stops if text[:end].endswith(stop)]
        if found:
            return text[: end - max(map(len, found))], "stop"
    return text, "length"


def test_a_stop_ends_the_text_and_no_part_of_it_is_sent():
    draw = random.Random(1)
    for _ in range(2000):
        tokens = [draw.randrange(2) for _ in range(draw.randint(1, 12))]
        text = "".join(CHARS.chars[token] for token in tokens)
        stops = tuple(
            "".join(draw.choice(CHARS.chars[:2]) for _ in range(draw.randint(1, 4)))
            for _ in range(draw.randint(0, 3))
        )
        completion = read(prompt="a", stop=stops)
        sent = ""
        for i, token in enumerate(tokens):
            completion.take([Output(completion.request, token, i, i == len(tokens) - 1)])
            sent += completion.choice()["text"]
            assert cut(text, stops)[0].startswith(sent)
            if completion.reason:
                break
        assert (sent, completion.reason) == cut(text, stops)
