"""Clients that people have: their defaults work, and their errors name the parameter.

`pip install -e ".[test,clients]"` installs them all; a client that is missing is skipped. Each is
used as its own documentation says for a server of one's own, without a network.
"""

import asyncio
import importlib
import importlib.util
import json
import os
from http.client import HTTPConnection
from urllib.parse import urlsplit

import pytest
from conftest import tiny_model
from server_fixtures import CHARS, expected

from nanogpt.sampling import SamplingParams
from nanogpt.serving.http import Server, listening

GREEDY = SamplingParams(greedy=True)
QUIET = {"LITELLM_LOCAL_MODEL_COST_MAP": "True", "LITELLM_TELEMETRY": "False"}


@pytest.fixture(scope="module")
def url():
    with listening(Server(tiny_model(), CHARS, name="tiny")) as url:
        yield url


def needs(name: str):
    return pytest.mark.skipif(not importlib.util.find_spec(name), reason=f"{name} not installed")


def text(n: int, sampling=GREEDY, prompt: str = "abc") -> str:
    """The answer that a client should get for this prompt."""
    return expected(tiny_model(), prompt, n, sampling, 5)


# ------------------------------------------------------------------ bodies, as programs send them

CALL = {"model": "tiny", "prompt": "abc"}
BODIES = {
    "vLLM's benchmark": {
        **CALL,
        "repetition_penalty": 1.0,
        "max_tokens": 8,
        "logprobs": None,
        "stream": True,
        "stream_options": {"include_usage": True},
        "temperature": 0.0,
        "ignore_eos": True,
    },
    "vLLM's benchmark, all of its flags": {
        **CALL,
        "repetition_penalty": 1.0,
        "max_tokens": 8,
        "logprobs": 5,
        "stream": True,
        "stream_options": {"include_usage": True},
        "temperature": 0.0,
        "top_p": 1.0,
        "top_k": -1,
        "min_p": 0.0,
        "frequency_penalty": 0.0,
        "presence_penalty": 0.0,
    },
    "SGLang's benchmark": {
        **CALL,
        "temperature": 0.0,
        "best_of": 1,
        "max_tokens": 8,
        "stream": True,
        "ignore_eos": True,
    },
    "GuideLLM": {
        **CALL,
        "max_tokens": 8,
        "temperature": 0.0,
        "stop": None,
        "ignore_eos": True,
        "stream": True,
        "stream_options": {"include_usage": True, "continuous_usage_stats": True},
    },
    "GenAI-Perf": {
        "model": "tiny",
        "prompt": ["abc"],
        "max_tokens": 8,
        "min_tokens": 8,
        "ignore_eos": True,
        "temperature": 0,
        "stream": True,
    },
    "lm-eval, text": {
        "model": "tiny",
        "prompt": ["abc"],
        "max_tokens": 8,
        "temperature": 0,
        "stop": ["é", "<|endoftext|>"],
        "seed": 1234,
    },
    "llama.cpp's options at their neutral values": {
        "prompt": "abc",
        "n_predict": 8,
        "temperature": 0.0,
        "top_k": 40,
        "top_p": 0.95,
        "min_p": 0.05,
        "typical_p": 1.0,
        "xtc_probability": 0.0,
        "repeat_penalty": 1.0,
        "repeat_last_n": 64,
        "mirostat": 0,
        "cache_prompt": True,
        "id_slot": -1,
        "seed": -1,
        "samplers": ["dry", "top_k", "typ_p", "top_p", "min_p", "xtc", "temperature"],
    },
}


@pytest.mark.parametrize("program", BODIES)
def test_the_body_of_a_program_gets_its_text(url, program):
    body = BODIES[program]
    connection = HTTPConnection(urlsplit(url).netloc, timeout=20)
    headers = {"Content-Type": "application/json", "Accept": "*/*", "x-request-id": "bench-7"}
    headers |= {"Accept-Encoding": "gzip, deflate, br", "Authorization": "Bearer none"}
    connection.request("POST", "/v1/completions", json.dumps(body), headers)
    answer = connection.getresponse()
    data = answer.read().decode()
    connection.close()
    assert answer.status == 200, data
    if not body.get("stream"):
        assert json.loads(data)["choices"][0]["text"] == text(8)
        return
    messages = [message.removeprefix("data: ") for message in data.strip().split("\n\n")]
    assert messages.pop() == "[DONE]"
    found = [json.loads(message) for message in messages]
    pieces = [event["choices"][0]["text"] for event in found if event["choices"]]
    assert "".join(pieces) == text(8)
    if "stream_options" in body:
        assert (found[-1]["choices"], found[-1]["usage"]["completion_tokens"]) == ([], 8)


# ------------------------------------------------------------------ openai


@pytest.mark.release
@needs("openai")
def test_openai(url):
    openai = importlib.import_module("openai")
    with openai.OpenAI(base_url=f"{url}/v1", api_key="none", max_retries=0) as client:
        create = client.completions.create
        ask = {"model": "tiny", "prompt": "abc"}
        answer = create(**ask)
        assert len(answer.choices[0].text) == 16
        again = create(**ask, seed=answer.seed)
        assert again.choices[0].text == answer.choices[0].text

        neutral = {"best_of": 1, "echo": False, "frequency_penalty": 0, "logit_bias": {}, "n": 1}
        neutral |= {"presence_penalty": 0, "stop": None, "suffix": None, "user": "me", "top_p": 1}
        body = {"top_k": -1, "repetition_penalty": 1.0, "min_p": 0}
        answer = create(**ask, **neutral, temperature=0, logprobs=2, extra_body=body)
        assert answer.choices[0].text == text(16)
        assert len(answer.choices[0].logprobs.tokens) == 16

        stream = create(**ask, temperature=0, stream=True, stream_options={"include_usage": True})
        *pieces, last = stream
        assert "".join(piece.choices[0].text for piece in pieces) == text(16)
        assert (last.choices, last.usage.completion_tokens) == ([], 16)

        answer = create(**ask, n=2, seed=5, max_tokens=256)
        assert answer.choices[0].text == text(22, SamplingParams())
        assert [choice.finish_reason for choice in answer.choices] == ["length", "length"]

        assert [model.id for model in client.models.list()] == ["tiny"]
        assert client.models.retrieve("tiny").id == "tiny"
        with pytest.raises(openai.BadRequestError) as caught:
            create(**ask, frequency_penalty=0.5)
        assert caught.value.param == "frequency_penalty"
        with pytest.raises(openai.BadRequestError, match="no chat template"):
            client.chat.completions.create(model="tiny", messages=[])
        with pytest.raises(openai.NotFoundError, match="this server has"):
            client.models.retrieve("gpt-4")


@pytest.mark.release
@needs("openai")
def test_openai_in_an_event_loop(url):
    openai = importlib.import_module("openai")

    async def ask() -> list[str]:
        async with openai.AsyncOpenAI(base_url=f"{url}/v1", api_key="none") as client:
            calls = [client.completions.create(model="tiny", prompt="abc", seed=5) for _ in "123"]
            return [answer.choices[0].text for answer in await asyncio.gather(*calls)]

    assert asyncio.run(ask()) == [text(16, SamplingParams())] * 3


# ------------------------------------------------------------------ clients on top of it


@pytest.mark.release
@needs("langchain_openai")
def test_langchain(url):
    langchain = importlib.import_module("langchain_openai")
    settings = {"model": "tiny", "base_url": f"{url}/v1", "api_key": "none", "max_retries": 0}
    model = langchain.OpenAI(**settings, temperature=0)
    assert model.invoke("abc") == text(22)  # of the 256 tokens that it asks for
    assert "".join(model.stream("abc")) == text(22)
    assert model.batch(["abc", "l"]) == [text(22), text(24, prompt="l")]
    assert model.invoke("abc", stop=[text(22)[3]]) == text(22)[: text(22).index(text(22)[3])]
    several = langchain.OpenAI(**settings, n=2, best_of=2, seed=5, max_tokens=4)
    (found,) = several.generate(["abc"]).generations
    assert found[0].text == text(4, SamplingParams())
    assert asyncio.run(model.ainvoke("abc")) == text(22)


@pytest.mark.release
@needs("litellm")
def test_litellm(url, monkeypatch):
    for name, value in QUIET.items():
        monkeypatch.setenv(name, value)
    litellm = importlib.import_module("litellm")
    ask = {"model": "text-completion-openai/tiny", "prompt": "abc", "temperature": 0}
    ask |= {"api_base": f"{url}/v1", "api_key": "none"}
    answer = litellm.text_completion(**ask, max_tokens=8)
    assert answer.choices[0].text == text(8)
    pieces = litellm.text_completion(**ask, max_tokens=8, stream=True)
    assert "".join(piece.choices[0].text or "" for piece in pieces) == text(8)
    with pytest.raises(litellm.BadRequestError, match="frequency_penalty"):
        litellm.text_completion(**ask, frequency_penalty=0.5)


@pytest.mark.release
@needs("llm")
def test_llm(url, tmp_path, monkeypatch):
    models = f"- model_id: mine\n  model_name: tiny\n  api_base: {url}/v1\n  completion: true\n"
    (tmp_path / "extra-openai-models.yaml").write_text(models, encoding="utf-8")
    monkeypatch.setenv("LLM_USER_PATH", os.fspath(tmp_path))
    llm = importlib.import_module("llm")
    model = llm.get_model("mine")
    for stream in (False, True):
        answer = model.prompt("abc", stream=stream, temperature=0, max_tokens=8)
        assert answer.text() == text(8)
