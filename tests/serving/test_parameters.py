"""The fields of a completion: served, neutral values that clients send, refused, and ignored.

A value is accepted if the request is the one without it, and refused by name if it would change the
answer. Each row says which client sends it, or what kind of value it stands for. test_clients.py
has the whole bodies of clients.
"""

import json
import random

import pytest
from server_fixtures import CHARS

from nanogpt.data import CharTokenizer
from nanogpt.sampling import SamplingParams
from nanogpt.serving.completions import usage
from nanogpt.serving.parser import RequestParser
from nanogpt.serving.requests import CompletionBody, Refused
from nanogpt.serving.sequence import Output
from nanogpt.serving.unserved import CHAT_UNSERVED, UNSERVED

READER = RequestParser(CHARS, "tiny", 24)

# name and value; a value that changes nothing
ACCEPTED = [
    # Served fields at their default, or at what it stands for.
    ("echo", False),
    ("logprobs", None),
    ("logprobs", False),
    ("max_tokens", 16),
    ("n", 1),
    ("stop", None),
    ("temperature", 1.0),
    ("top_k", -1),
    ("top_k", len(CHARS)),
    ("n_predict", 16),
    # UIs with an empty input field, and one without a list of models.
    ("stop", ""),
    ("stop", [""]),
    ("model", "gpt-4o-mini"),
    # Fields that nobody knows: of a client newer than this server, and a misspelt name.
    ("a_parameter_of_tomorrow", {"x": 1}),
    ("temprature", 0.5),
    ("user", 5),
    *((name, value) for name, values in UNSERVED.items() for value in (None, *values)),
]

# name, value, the field that is to blame, and what the message says
REFUSED = [
    # Values that would change the text.
    ("repetition_penalty", 1.2, "=1.2: not implemented; leave it out, or send 1"),
    ("best_of", 2, "not implemented; leave it out, or send 1"),
    ("frequency_penalty", 0.5, "=0.5: not implemented; leave it out"),
    ("response_format", {"type": "json_object"}, "not implemented"),
    ("min_tokens", 17, "=17: must be at most max_tokens=16"),
    # Values of another type, or out of their range: one of each kind.
    ("logprobs", True, "input should be a valid integer"),
    ("logprobs", 21, "=21: input should be less than or equal to 20"),
    ("max_tokens", "16", '="16": input should be a valid integer'),
    ("max_tokens", 1.5, "=1.5: input should be"),
    ("max_tokens", -2, "=-2: input should be greater than or equal to -1"),
    ("model", 5, "=5: input should be a valid string"),
    ("n", 1025, "=1025: at most 1024 texts in a request, n for each prompt"),
    ("seed", 2**64, "input should be less than"),
    ("stop", ["a"] * 17, "should have at most 16 items"),
    ("stop", ["a", 5], "[1]=5: input should be a valid string"),
    ("stream_options", {"include_usage": 1}, "[include_usage]=1: input should"),
    ("temperature", float("nan"), "=NaN: input should be"),
    # Prompts.
    ("prompt", "aé", "'é' not in the vocabulary"),
    ("prompt", "", "empty"),
    ("prompt", [], "empty"),
    ("prompt", None, " is missing: send {"),
    ("prompt", ["a", 1], ": pass text"),
    ("prompt", [True], ": pass text"),
    ("prompt", [1, 10**30], f"token {10**30}: must be in [0, 12]"),
    ("prompt", "a" * 25, "a prompt of 25 tokens + 16 new > the context of 24: "),
    ("prompt", ["a"] * 2000, "2,000 prompts: at most 1024 texts in a request"),
]


def read(**body) -> list:
    return READER.read(json.dumps({"prompt": "abc"} | body).encode())


def asked(**body) -> list:
    """The result for a body, without the fields that name the answer."""
    found = []
    for one in read(seed=5, **body):
        request = one.request
        fields = {name: getattr(one.body, name) for name in ("stop", "stream", "echo")}
        shown = (request.prompt.tolist(), request.max_new_tokens, request.sampling, request.seed)
        found.append((*shown, request.logprobs, request.echo, fields))
    return found


def label(value) -> str:
    return str(value)[:40]


@pytest.mark.parametrize(("name", "value"), ACCEPTED, ids=label)
def test_a_neutral_value_that_a_client_sends_changes_nothing(name, value):
    assert asked(**{name: value}) == asked()


def one_line(message: str) -> bool:
    return len(message.splitlines()) == 1 and message.isprintable() and len(message) < 400


def refusal_of(data: bytes) -> Refused:
    with pytest.raises(Refused) as caught:
        READER.read(data)
    assert caught.value.status == 400
    assert one_line(str(caught.value))
    return caught.value


@pytest.mark.parametrize(("name", "value", "says"), REFUSED, ids=label)
def test_a_value_that_would_change_the_answer_is_refused_by_its_name(name, value, says):
    refused = refusal_of(json.dumps({"prompt": "abc"} | {name: value}).encode())
    error = refused.body()["error"]
    assert error["type"] == "invalid_request_error"
    assert error["param"].partition("[")[0] == name
    assert says in error["message"]


# A value of every kind of JSON, for a parameter of every kind.
ODD = [True, -1, 0.5, 10**400, "", "\ud800", "\x00\n\x1b[2J", "x" * 100_000, [[]], {"": {}}]


@pytest.mark.parametrize("name", ["prompt", "seed", "stop", "stream_options", "logit_bias"])
def test_an_odd_value_is_refused_in_one_line(name):
    texts = [json.dumps(value) for value in ODD] + ["[" * 900 + "]" * 900, "NaN", "9" * 5000]
    refusals = 0
    for text in texts:
        body = f"{{{json.dumps(name)}: {text}"
        body += "}" if name == "prompt" else ', "prompt": "a"}'
        refused = None
        try:
            READER.read(body.encode())
        except Refused as error:
            refused = error
        if refused is not None:
            refusals += 1
            assert refused.status == 400
            assert one_line(str(refused)), refused
            json.dumps(refused.body())
    assert refusals > 5


def test_every_field_of_the_table_is_refused_with_another_value_and_none_is_served():
    for name in UNSERVED | CHAT_UNSERVED:
        assert name not in CompletionBody.model_fields or name == "echo"
    for name in UNSERVED:
        for value in ("a value of no field", -7, [None]):
            refused = refusal_of(json.dumps({"prompt": "abc", name: value}).encode())
            assert (refused.param, refused.code) == (name, "unsupported_parameter")
    # true is not the number that changes nothing.
    assert refusal_of(b'{"prompt": "abc", "repetition_penalty": true}').param is not None


def test_one_parameter_has_several_names_of_which_the_usual_one_counts():
    assert read(n_predict=5.0)[0].request.max_new_tokens == 5
    (both,) = read(max_tokens=5, n_predict=4)
    assert (both.request.max_new_tokens, both.shared.ignored) == (5, ("n_predict",))
    with pytest.raises(Refused, match="max_completion_tokens=1.5: input should be") as caught:
        read(max_completion_tokens=1.5)
    assert caught.value.param == "max_completion_tokens"


def test_fields_that_nobody_knows_are_named_in_the_order_of_the_body():
    body = {"x": 1, "prompt": "a", "temprature": None, "user": "me", "top_k": 3, "n_probs": 0}
    assert READER.read(json.dumps(body).encode())[0].shared.ignored == ("x", "user")


@pytest.mark.parametrize(
    ("body", "says"),
    [
        (b"", "the body is empty"),
        (b'"abc"', "must be a JSON object"),
        (b"\xff", "not JSON"),
        (b"[" * 100_000, "not JSON"),
        (b'{"prompt": "a", "n": %s}' % (b"9" * 5000), "not JSON"),
        (b'{"messages": [{"role": "user"}]}', "send messages to /v1/chat/completions"),
    ],
)
def test_a_body_that_is_no_json_or_of_the_other_api_is_refused(body, says):
    assert says in str(refusal_of(body))


def test_a_message_shows_at_most_ten_characters_of_a_vocabulary():
    chars = "".join(map(chr, range(0x4E00, 0x4E00 + 2500)))
    reader = RequestParser(CharTokenizer(chars), "novel", 24)
    for prompt in ("abcdefghijklmnopqrstuvwx", "é", chars[0] + "A"):
        with pytest.raises(Refused) as caught:
            reader.read(json.dumps({"prompt": prompt}).encode())
        message = str(caught.value)
        assert sum(char in chars for char in message) <= 10
        assert "2,500" in message or "2500" in message
        assert one_line(message)


# ------------------------------------------------------------------ what is served


def test_fields_left_out_or_null_have_defaults_and_each_request_a_seed_of_its_own():
    (first,) = read(stop=None, n=1, echo=False, logprobs=None, user="me")
    (second,) = read(model="tiny", max_tokens=None)
    assert first.request.sampling == SamplingParams()
    assert (first.request.max_new_tokens, len({first.request.seed, second.request.seed})) == (16, 2)
    greedy = SamplingParams(greedy=True)
    for sent in ({"temperature": 0, "top_p": 0.5, "top_k": -1}, {"top_p": 0}):
        assert read(**sent)[0].request.sampling == greedy
    for same in ("ab", ["ab"], CHARS.encode("ab").tolist(), [1.0, 2.0]):
        assert read(prompt=same)[0].request.prompt.tolist() == CHARS.encode("ab").tolist()
    # Tasks of lm-eval: humaneval has five stops.
    stops = ["\nclass", "\ndef", "\n#", "\nif", "\nprint"]
    assert read(stop=stops)[0].body.stop == stops
    assert read(stop="\n")[0].body.stop == ["\n"]


@pytest.mark.parametrize(
    ("prompt", "asked", "given"),
    [
        ("abc", {"max_tokens": 5}, 5),
        ("abc", {"max_tokens": 23}, 22),
        ("abc", {"max_tokens": 256}, 22),  # LangChain's default
        ("abc", {"max_tokens": 10**30}, 22),
        ("abc", {"max_tokens": -1}, 22),
        ("abc", {"n_predict": -1}, 22),
        ("a" * 24, {}, 1),
        ("a" * 24, {"max_tokens": 256, "min_tokens": 256}, 1),
        ("abc", {"max_tokens": 0}, 1),  # it is not shown
    ],
)
def test_a_text_has_as_many_tokens_as_fit(prompt, asked, given):
    assert read(prompt=prompt, **asked)[0].request.max_new_tokens == given


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
        (completion,) = read(prompt="a", stop=stops, **how)
        sent = ""
        for i, token in enumerate(tokens):
            completion.take([Output(completion.request, token, i, i == len(tokens) - 1)])
            sent += completion.choice()["text"]
            assert cut(text, stops, skip, include)[0].startswith(sent)
            if completion.reason:
                break
        assert (sent, completion.reason) == cut(text, stops, skip, include)
