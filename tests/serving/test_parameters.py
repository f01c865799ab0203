"""Fields of a completion: served, neutral values that clients send, refused, and ignored.

A value is accepted if the request is the one without it, and refused by name if it would change the
answer. Each row says which client sends it, or what kind of value it stands for.
"""

import json

import pytest
from server_fixtures import CHARS

from nanogpt.data import CharTokenizer
from nanogpt.serving.parser import RequestParser
from nanogpt.serving.refused import Refused
from nanogpt.serving.requests import CompletionBody
from nanogpt.serving.unserved import CHAT_UNSERVED, UNSERVED

READER = RequestParser(CHARS, "tiny", 24)
V = len(CHARS)
N = None  # left out and null are the same for every parameter

# name, value, and the other parameters on which it depends; test_clients.py has whole bodies
ACCEPTED = [
    # Served fields at their default, or at what it stands for.
    ("echo", False),
    ("logprobs", N),
    ("logprobs", False),
    ("max_tokens", 16),
    ("n", 1),
    ("stop", N),
    ("stream", False),
    ("stream_options", {"include_usage": True, "continuous_usage_stats": True}),
    ("temperature", 1.0),
    ("top_p", 1),
    ("top_k", -1),
    ("top_k", len(CHARS)),
    ("min_tokens", 5),
    ("ignore_eos", True),
    ("n_predict", 16),
    # Values that change nothing because of another field: LangChain, lm-eval, llama.cpp's clients.
    ("best_of", 1),
    ("best_of", 2, {"n": 2}),
    ("do_sample", False, {"temperature": 0}),
    ("do_sample", True),
    ("min_p", 0.05, {"temperature": 0}),
    ("samplers", ["dry", "top_k", "top_p", "min_p", "temperature"], {"temperature": 0}),
    # UIs with an empty input field, and one without a list of models.
    ("stop", ""),
    ("stop", [""]),
    ("model", "gpt-4o-mini"),
    # Fields that nobody knows: of a client newer than this server, and a misspelt name.
    ("a_parameter_of_tomorrow", {"x": 1}),
    ("temprature", 0.5),
    ("user", 5),
]

REFUSED = [
    # Values that would change the text, because of another field or in any case.
    ("best_of", 2),
    ("do_sample", True, {"temperature": 0}),
    ("frequency_penalty", 0.5),
    ("min_p", 0.05),
    ("min_tokens", 17),
    ("n_predict", 4, {"max_tokens": 5}),
    ("response_format", {"type": "json_object"}),
    ("samplers", ["top_p", "temperature"]),
    # Values of another type, or out of their range: one of each kind.
    ("logprobs", 21),
    ("logprobs", True),
    ("max_tokens", "16"),
    ("max_tokens", True),
    ("max_tokens", 1.5),
    ("model", 5),
    ("n", 0),
    ("seed", 2**64),
    ("stop", ["a"] * 17),
    ("stop", [None]),
    ("stream", 1),
    ("stream_options", {"include_usage": 1}),
    ("temperature", -1),
    ("top_p", 1.1),
]


def read(body: dict) -> list:
    return READER.read(json.dumps(body).encode())


def asked(body: dict) -> list:
    """The result for a body, without the fields that name the answer."""
    found = []
    for one in read(body):
        request = one.request
        fields = {name: getattr(one.body, name) for name in ("stop", "stream", "echo")}
        shown = (request.prompt.tolist(), request.max_new_tokens, request.sampling, request.seed)
        found.append((*shown, request.logprobs, request.echo, fields))
    return found


def label(value) -> str:
    return str(value)[:40]


@pytest.mark.parametrize("row", ACCEPTED, ids=label)
def test_a_neutral_value_that_a_client_sends_changes_nothing(row):
    name, value, others = (*row, {})[:3]
    body = {"prompt": "abc", "seed": 5, **others}
    assert asked({**body, name: value}) == asked(body)


@pytest.mark.parametrize("row", REFUSED, ids=label)
def test_a_value_that_would_change_the_answer_is_refused_by_its_name(row):
    name, value, others = (*row, {})[:3]
    with pytest.raises(Refused) as caught:
        read({"prompt": "abc", **others, name: value})
    error = caught.value.body()["error"]
    assert caught.value.status == 400
    assert error["type"] == "invalid_request_error"
    assert error["param"].partition("[")[0] in (name, "max_tokens")
    assert name in error["message"]
    assert one_line(error["message"])


def one_line(message: str) -> bool:
    return len(message.splitlines()) == 1 and message.isprintable() and len(message) < 400


# A value of every kind of JSON, for a parameter of every kind.
ODD = [True, -1, 0.5, 10**400, "", "\ud800", "\x00\n\x1b[2J", "x" * 100_000, [[]], {"": {}}]


@pytest.mark.parametrize(
    "name", ["prompt", "seed", "stop", "stream_options", "request_id", "logit_bias"]
)
def test_an_odd_value_is_refused_in_one_line(name):
    texts = [json.dumps(value) for value in ODD]
    texts += ["[" * 900 + "]" * 900, "NaN", "9" * 5000]
    refusals = 0
    for text in texts:
        body = f"{{{json.dumps(name)}: {text}"
        body += "}" if name == "prompt" else ', "prompt": "a"}'
        refusal = refused(body.encode())
        if refusal is not None:
            refusals += 1
            assert refusal.status == 400
            assert one_line(str(refusal)), refusal
            json.dumps(refusal.body())
    assert refusals > 5


def refused(body: bytes) -> Refused | None:
    try:
        READER.read(body)
    except Refused as refusal:
        return refusal
    return None


def test_every_neutral_value_of_the_table_changes_nothing():
    plain = asked({"prompt": "abc", "seed": 5})
    for name, row in UNSERVED.items():
        for value in row.values:
            assert asked({"prompt": "abc", "seed": 5, name: value}) == plain, name


def test_every_field_of_the_table_is_refused_with_another_value_and_none_is_served():
    for name in UNSERVED | CHAT_UNSERVED:
        assert name not in CompletionBody.model_fields or name == "echo"
    for name in UNSERVED:
        for value in ("a value of no field", -7, [None]):
            refusal = refused(json.dumps({"prompt": "abc", name: value}).encode())
            assert (refusal.param, refusal.code) == (name, "unsupported_parameter")


@pytest.mark.parametrize(
    ("name", "value", "says"),
    [
        (
            "repetition_penalty",
            1.2,
            "repetition_penalty=1.2: not implemented; leave it out, or send 1",
        ),
        ("top_n_sigma", 5, "top_n_sigma=5: not implemented; leave it out, or send -1 or 0"),
        ("n_probs", 3, "or send logprobs instead"),
        ("max_tokens", "4", 'max_tokens="4": input should be a valid integer'),
        ("max_tokens", -2, "max_tokens=-2: input should be greater than or equal to -1"),
        ("request_id", "x" * 201, "at most 200 characters"),
        ("min_tokens", 20, "min_tokens=20: must be at most max_tokens=16"),
        ("stream_options", {"include_usage": 1}, "stream_options[include_usage]=1: input should"),
        ("stop", ["a"] * 17, "should have at most 16 items"),
        ("stop", ["a", 5], "stop[1]=5: input should be a valid string"),
    ],
)
def test_a_refusal_says_what_to_send(name, value, says):
    with pytest.raises(Refused) as caught:
        read({"prompt": "abc", name: value})
    assert says in str(caught.value)


def test_one_parameter_under_two_names_is_refused_unless_they_agree():
    assert read({"prompt": "a", "max_tokens": 5, "n_predict": 5.0})[0].request.max_new_tokens == 5
    with pytest.raises(Refused, match="max_completion_tokens=1.5: input should be") as caught:
        read({"prompt": "a", "max_completion_tokens": 1.5})
    assert caught.value.param == "max_completion_tokens"
    with pytest.raises(Refused, match="max_tokens=5, n_predict=4: these are names of one"):
        read({"prompt": "a", "max_tokens": 5, "n_predict": 4})


def test_fields_that_nobody_knows_are_named_in_the_order_of_the_body():
    body = {"x": 1, "prompt": "a", "temprature": None, "user": "me", "top_k": 3, "n_probs": 0}
    assert read(body)[0].shared.ignored == ("x", "user")


def test_a_chat_sent_to_the_address_of_completions_is_told_where_it_belongs():
    refusal = refused(b'{"messages": [{"role": "user", "content": "abc"}]}')
    assert (refusal.status, refusal.param) == (400, "prompt")
    assert "prompt is missing: send messages to /v1/chat/completions" in str(refusal)


@pytest.mark.parametrize(
    ("body", "says"),
    [
        (b'{"prompt": "a", "seed": 1, "seed": 2}', '"seed" is in the body twice'),
        (b'{"prompt": "a", "metadata": {"x": 1, "x": 1}}', '"x" is in the body twice'),
        (b'{"prompt": "a", "temperature": NaN}', "NaN is not a JSON value"),
        (b'{"prompt": "a", "top_p": Infinity}', "Infinity is not a JSON value"),
        (b"", "the body is empty"),
        (b" \n", "the body is empty"),
        (b'"abc"', "must be a JSON object"),
        (b'{"prompt": "a"', "not JSON"),
        (b"\x1f\x8b\x08", "not JSON"),
        (b'{"prompt": "a", "n": %s}' % (b"9" * 5000), "5,000 digits: at most 1,000"),
    ],
)
def test_a_body_that_is_ambiguous_or_no_json_is_refused(body, says):
    with pytest.raises(Refused) as caught:
        READER.read(body)
    assert caught.value.status == 400
    assert says in str(caught.value)
    assert one_line(str(caught.value))


def test_a_message_shows_at_most_ten_characters_of_a_vocabulary():
    chars = "".join(map(chr, range(0x4E00, 0x4E00 + 2500)))
    reader = RequestParser(CharTokenizer(chars), "novel", 24)
    for prompt in ("abcdefghijklmnopqrstuvwx", "é", chars[0] + "A"):
        with pytest.raises(Refused) as caught:
            reader.read(json.dumps({"prompt": prompt}).encode())
        message = str(caught.value)
        assert sum(char in chars for char in message) <= 10
        assert sum(f"{char!r}" in message for char in "abcdefghijklmnopqrstuvwx") <= 10
        assert "2,500" in message or "2500" in message
        assert one_line(message)
