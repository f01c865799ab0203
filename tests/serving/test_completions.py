"""The fields of a completion request, refusals by name, and texts that end at a stop."""

import json
import random

import pytest
from server_fixtures import CHARS

from nanogpt.sampling import SamplingParams
from nanogpt.serving.completions import usage
from nanogpt.serving.parser import RequestParser
from nanogpt.serving.refused import Refused
from nanogpt.serving.sequence import Output

READER = RequestParser(CHARS, "tiny", 24)


def read(**body):
    return READER.read(json.dumps({"prompt": "abc"} | body).encode())[0]


def test_fields_left_out_or_null_have_defaults_and_each_request_a_seed_of_its_own():
    first = read(stop=None, n=1, echo=False, logprobs=None, user="me")
    second = read(model="tiny", max_tokens=None)
    assert first.request.sampling == SamplingParams()
    assert (first.request.max_new_tokens, len({first.request.seed, second.request.seed})) == (16, 2)
    assert read(temperature=0, top_p=0.5, top_k=-1).request.sampling == SamplingParams(greedy=True)
    assert read(top_p=0).request.sampling == SamplingParams(greedy=True)
    for same in ("ab", ["ab"], CHARS.encode("ab").tolist(), [1.0, 2.0]):
        assert read(prompt=same).request.prompt.tolist() == CHARS.encode("ab").tolist()
    assert read(stop="\n").body.stop == ["\n"]
    # Tasks of lm-eval also ask for this: humaneval has five stops, translations name a beam.
    stops = ["\nclass", "\ndef", "\n#", "\nif", "\nprint"]
    assert read(stop=stops, num_beams=1).body.stop == stops


@pytest.mark.parametrize(
    ("prompt", "asked", "given"),
    [
        ("abc", {"max_tokens": 5}, 5),
        ("abc", {"max_tokens": 22}, 22),
        ("abc", {"max_tokens": 23}, 22),
        ("abc", {"max_tokens": 256}, 22),  # LangChain's default
        ("abc", {"max_tokens": 10**30}, 22),
        ("abc", {"max_tokens": -1}, 22),
        ("abc", {"n_predict": -1}, 22),
        ("abc", {"max_completion_tokens": 7}, 7),
        ("a" * 24, {}, 1),
        ("a" * 24, {"max_tokens": -1}, 1),
        ("a" * 24, {"max_tokens": 256, "min_tokens": 256}, 1),
        ("abc", {"max_tokens": 0}, 1),  # it is not shown
    ],
)
def test_a_text_has_as_many_tokens_as_fit(prompt, asked, given):
    assert read(prompt=prompt, **asked).request.max_new_tokens == given


def test_each_prompt_has_its_own_room_and_each_choice_its_own_seed():
    body = {"prompt": ["a" * 20, "abc"], "max_tokens": 100, "n": 2, "seed": 2**64 - 3}
    found = READER.read(json.dumps(body).encode())
    assert [one.request.max_new_tokens for one in found] == [5, 5, 22, 22]
    assert [one.request.seed for one in found] == [2**64 - 3, 2**64 - 2, 2**64 - 1, 0]
    assert [one.index for one in found] == [0, 1, 2, 3]
    assert [one.request.seed for one in READER.read(b'{"prompt": "a", "n": 3, "seed": -9}')] == [
        -9,
        -8,
        -7,
    ]
    assert usage(found)["prompt_tokens"] == 23


@pytest.mark.parametrize(
    ("body", "param", "says"),
    [
        ({"prompt": "aé"}, "prompt", "'é' not in the vocabulary"),
        ({"prompt": ""}, "prompt", "empty"),
        ({"prompt": None}, "prompt", "prompt is missing: send {"),
        ({"prompt": ["a", 1]}, "prompt", "pass text"),
        ({"prompt": ["a", None]}, "prompt", "pass text"),
        ({"prompt": [1, 13]}, "prompt", "token 13: must be in [0, 12]"),
        ({"prompt": [1, 10**30]}, "prompt", f"token {10**30}: must be in [0, 12]"),
        ({"prompt": [True]}, "prompt", "pass text"),
        ({"prompt": []}, "prompt", "empty"),
        ({"prompt": "a" * 25}, "prompt", "a prompt of 25 tokens + 16 new > the context of 24: "),
        ({"prompt": ["a", "a" * 30], "max_tokens": 3}, "prompt", "30 tokens + 3 new > the context"),
        ({"prompt": "a" * 25, "max_tokens": -1}, "prompt", "25 tokens + 1 new > the context"),
        ({"prompt": ["a"] * 2000}, "prompt", "2,000 prompts: at most 1024 texts in a request"),
        ({"n": 1025}, "n", "n=1025: at most 1024 texts in a request, n for each prompt"),
        ({"logprobs": 21}, "logprobs", "logprobs=21: input should be less than or equal to 20"),
        ({"echo": 1}, "echo", "echo=1: input should be a valid boolean"),
    ],
    ids=lambda value: str(value)[:30],
)
def test_a_refusal_names_the_field(body, param, says):
    with pytest.raises(Refused) as caught:
        read(**body)
    error = caught.value.body()["error"]
    assert caught.value.status == 400
    assert (error["type"], error["param"]) == ("invalid_request_error", param)
    assert says in error["message"]


@pytest.mark.parametrize("data", [b"1", b"[]", b"\xff", b"[" * 100_000, b"9" * 500])
def test_a_body_that_is_no_object_is_refused(data):
    with pytest.raises(Refused, match="JSON"):
        READER.read(data)


def cut(text: str, stops: tuple[str, ...], skip: int, include: bool) -> tuple[str, str]:
    """The text up to the stop that is complete first, of several the longest; and why it ends.

    A stop that is complete within the first `skip` characters is text like any other.
    """
    for end in range(skip + 1, len(text) + 1):
        found = [stop for stop in stops if text[:end].endswith(stop)]
        if found:
            return text[: end - (0 if include else max(map(len, found)))], "stop"
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
        skip = draw.choice([0, 0, 3])
        include = draw.random() < 0.3
        how = {"min_tokens": skip, "include_stop_str_in_output": include}
        completion = read(prompt="a", stop=stops, **how)
        sent = ""
        for i, token in enumerate(tokens):
            completion.take([Output(completion.request, token, i, i == len(tokens) - 1)])
            sent += completion.choice()["text"]
            assert cut(text, stops, skip, include)[0].startswith(sent)
            if completion.reason:
                break
        assert (sent, completion.reason) == cut(text, stops, skip, include)
