"""Clients that people have: each gets the model's text, or the name of the field that is refused.

client_bodies.json holds the bodies of client_calls.py, as record_clients.py recorded them; PROGRAMS
holds those of programs that no call there runs. In the release tests the clients themselves make
the calls: `pip install -e ".[test,clients]"` installs them all; a client that is missing is
skipped. No network is used.
"""

import importlib
import json
import re
from http.client import HTTPConnection
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from urllib.parse import urlsplit

import jinja2
import pytest
import torch
from chat_fixtures import END, LLAMA, llama, tokenizer
from client_calls import CALLS, PROMPT, QUIET
from conftest import tiny_model
from pretrained_fixtures import their_tokenizer_json
from server_fixtures import CHARS, expected
from tokenizers import Tokenizer

from nanogpt.decoder.config import DecoderConfig
from nanogpt.decoder.model import Decoder
from nanogpt.engines.generation import generate
from nanogpt.pretrained.padding import without_spare_tokens
from nanogpt.sampling import SamplingParams
from nanogpt.serving.http import listening
from nanogpt.serving.server import Server

GREEDY = SamplingParams(greedy=True)
CONTEXT = 512
# As the templates of current models, it writes a speaker's name and an earlier thought.
TEMPLATE = (
    "{% for message in messages %}{{ '<|im_start|>' + message.role + '\\n' }}"
    "{% if message.name %}{{ message.name + ': ' }}{% endif %}"
    "{% if message.reasoning_content %}{{ '(' + message.reasoning_content + ') ' }}{% endif %}"
    "{{ message.content if message.content is string else '' }}{{ '<|im_end|>\\n' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}"
    "{% if enable_thinking is defined and not enable_thinking %}{{ '()' }}{% endif %}"
)


def sure_model() -> Decoder:
    """A model so sure of each token that any seed, temperature and filter leaves the same text."""
    model = Decoder(DecoderConfig(**LLAMA | {"block_size": CONTEXT})).eval()
    model.load_state_dict(llama().state_dict())
    with torch.no_grad():
        model.ln_f.weight *= 1e5
    return model


MODEL = sure_model()
SERVED = without_spare_tokens(MODEL, tokenizer())
ENDS = (END, *range(150, 165))  # tokens that end a text, so many that most are short


@pytest.fixture(scope="module")
def url():
    with listening(Server(MODEL, tokenizer(TEMPLATE, ENDS), name="tiny")) as url:
        yield url


def continuation(asked: str | list[dict], n: int | None, ends: bool = True, **variables) -> str:
    """What the model writes after a text, or after messages, in at most `n` tokens."""
    text = asked
    if not isinstance(asked, str):
        template = jinja2.Template(TEMPLATE)
        text = template.render(messages=asked, add_generation_prompt=True, **variables)
    whole = Tokenizer.from_str(their_tokenizer_json())
    prompt = torch.tensor(whole.encode(text, add_special_tokens=False).ids)
    room = CONTEXT + 1 - len(prompt)
    tokens = generate(SERVED, prompt[None], min(n or room, room), GREEDY)
    return "".join(tokenizer(stop=ENDS if ends else ()).stream(tokens))


# ------------------------------------------------------------------ bodies, as clients send them

RECORDED = json.loads(Path(__file__).with_name("client_bodies.json").read_text(encoding="utf-8"))
HELLO = {"role": "user", "content": "Hello, fox"}
PARTS = {"role": "user", "content": [{"type": "text", "text": "Hello,"}]}
CHAT = {"model": "tiny", "messages": [HELLO], "max_tokens": 8}
TEXT = {"model": "tiny", "prompt": PROMPT, "max_tokens": 8}
# How benchmarks ask for a stream, the length of chats, and a length that no token ends.
USAGE = {"stream": True, "stream_options": {"include_usage": True}}
OFTEN = {"stream": True, "stream_options": {"include_usage": True, "continuous_usage_stats": True}}
WHOLE = {"max_tokens": None, "max_completion_tokens": 8, "ignore_eos": True}
LM_EVAL = {"temperature": 0, "stop": ["\n\n", "<|endoftext|>"], "seed": 1234}


def history(**fields) -> dict:
    """The messages of a chat whose earlier answer has these fields."""
    return {"messages": [HELLO, {"role": "assistant", "content": "Hi", **fields}, HELLO]}


# Programs that are not run here. Who sends a body (with the version, if its source was read in a
# package), where it is written, and the body.
PROGRAMS = {
    # vllm/benchmarks/lib/endpoint_request_func.py and vllm/benchmarks/serve.py, main branch.
    "vLLM's benchmark": TEXT
    | USAGE
    | {"repetition_penalty": 1.0, "logprobs": None, "ignore_eos": True},
    "vLLM's benchmark, all its flags": TEXT
    | USAGE
    | {"temperature": 0.0, "top_p": 1.0, "top_k": -1, "min_p": 0.0, "logprobs": 5}
    | {"frequency_penalty": 0.0, "presence_penalty": 0.0, "repetition_penalty": 1.0},
    "vLLM's benchmark of chats": CHAT | USAGE | WHOLE | {"messages": [PARTS]},
    # sglang/benchmark/serving.py.
    "SGLang 0.5.23": TEXT | {"best_of": 1, "stream": True, "temperature": 0.0, "ignore_eos": True},
    "SGLang 0.5.23, chats": CHAT | WHOLE | {"stream": True, "temperature": 0.0},
    # guidellm/backends/openai/request_handlers.py.
    "GuideLLM 0.8.1": TEXT | OFTEN | {"stop": None, "ignore_eos": True},
    "GuideLLM 0.8.1, chats": CHAT | OFTEN | WHOLE | {"stop": None},
    # genai_perf/inputs/converters/openai_completions_converter.py, extra inputs as documented.
    "GenAI-Perf 0.0.16": TEXT
    | {"prompt": [PROMPT], "stream": True, "min_tokens": 8, "ignore_eos": True},
    # lm_eval/models/openai_completions.py.
    "lm-eval 0.4.13": TEXT | LM_EVAL | {"prompt": [PROMPT]},
    "lm-eval 0.4.13, chats": CHAT | LM_EVAL,
    # What these packages sent to a server that recorded it.
    "@ai-sdk/openai-compatible 2.0.92": CHAT
    | {"messages": [{**PARTS, "content": PARTS["content"] * 2}]},
    "@ai-sdk/openai-compatible 2.0.92, streamed": CHAT
    | USAGE
    | {"temperature": 0, "stop": ["\n\n"], "seed": 5},
    "@langchain/openai 1.5.8": TEXT | {"prompt": [PROMPT], "n": 1, "stream": False},
    # Programs that send back messages with fields of their own, or of another server.
    "OpenAISwift (adamrushy/OpenAISwift issue 99)": CHAT | history(id="msg-7"),
    "Spring AI (spring-projects/spring-ai pull 6296)": CHAT | history(reasoning_content="A fox."),
    "a thought without an answer (vllm-project/vllm issue 39103)": CHAT
    | history(content=None, reasoning_content="A fox."),
    "an empty answer (vllm-project/vllm issue 21089)": CHAT | history(content=""),
    # Forms whose stop is left empty.
    "an empty stop (mlc-ai/mlc-llm pull 2070)": CHAT | {"stop": ""},
    "an empty stop and another (MegaGrindStone/mcp-web-ui issue 5)": TEXT | {"stop": ["", "\n\n"]},
    # Names written into programs: one for the titles of chats, and any with Ollama's tag.
    "NextChat (ChatGPTNextWeb/NextChat issue 5603)": CHAT | {"model": "gpt-4o-mini"},
    "a name with Ollama's tag": CHAT | {"model": "tiny:latest"},
}
BODIES = [
    *[(row["path"], row["body"], row["refused"], row["clients"][0]) for row in RECORDED],
    *[
        ("/v1/chat/completions" if "messages" in body else "/v1/completions", body, None, program)
        for program, body in PROGRAMS.items()
    ],
]


def text_for(body: dict) -> str:
    """The text that a body asks for."""
    n = body.get("max_completion_tokens") or body.get("max_tokens")
    if "messages" in body:
        asked = [dict(message) for message in body["messages"]]
        for message in asked:
            if isinstance(message["content"], list):
                message["content"] = "\n".join(part["text"] for part in message["content"])
    else:
        asked = body["prompt"] if isinstance(body["prompt"], str) else body["prompt"][0]
        n = n or 16
    ends = not body.get("ignore_eos")
    text = continuation(asked, n, ends, **body.get("chat_template_kwargs", {}))
    stops = body.get("stop") or []
    for stop in filter(None, [stops] if isinstance(stops, str) else stops):
        text = text.split(stop)[0]
    return text


NAMES = [client for *_, client in BODIES]
HEADERS = {"Accept": "*/*", "Accept-Encoding": "gzip, deflate, br", "x-request-id": "bench-7"}
HEADERS |= {"Content-Type": "application/json", "Authorization": "Bearer none"}


def answer_to(url: str, path: str, body: dict, more=(), chunked=False) -> tuple[int, str]:
    """The status and the text of an answer, asked for with the headers of a client, and more."""
    connection = HTTPConnection(urlsplit(url).netloc, timeout=20)
    sent = json.dumps(body).encode()
    headers = HEADERS | dict(more)
    connection.request("POST", path, iter([sent]) if chunked else sent, headers)
    answer = connection.getresponse()
    data = answer.read().decode()
    connection.close()
    return answer.status, data


def text_of_choice(choice: dict) -> str:
    """A completion's text, a chat's or a piece of it."""
    said = choice.get("message") or choice.get("delta") or {"content": choice.get("text")}
    return said.get("content") or ""


@pytest.mark.parametrize(("path", "body", "refused", "client"), BODIES, ids=NAMES)
def test_the_body_of_a_client_gets_its_text(url, path, body, refused, client):
    status, data = answer_to(url, path, body)
    if refused and refused.startswith("/"):  # a path that is not served, and the one that is
        assert status == 404
        assert refused in json.loads(data)["error"]["message"]
    elif refused:
        assert status == 400
        assert refused in json.loads(data)["error"]["param"]
    elif body.get("stream"):
        assert status == 200, data
        messages = [message.removeprefix("data: ") for message in data.strip().split("\n\n")]
        assert messages.pop() == "[DONE]"
        found = [json.loads(message) for message in messages]
        assert {event["model"] for event in found} == {"tiny"}
        pieces = [text_of_choice(event["choices"][0]) for event in found if event["choices"]]
        assert "".join(pieces) == text_for(body)
        if "stream_options" in body:
            assert found[-1]["choices"] == []
            assert found[-1]["usage"]["completion_tokens"] > 0
    else:
        assert status == 200, data
        answer = json.loads(data)
        assert answer["model"] == "tiny"  # whatever was asked for: it is the only one
        assert text_of_choice(*answer["choices"]) == text_for(body)


UPGRADE = {"Connection": "Upgrade, HTTP2-Settings", "Upgrade": "h2c", "HTTP2-Settings": "AAMAAABk"}


@pytest.mark.parametrize("chunked", [False, True])
def test_an_offer_of_http_2_is_answered_over_http_1(url, chunked):
    """Java's HttpClient makes it with each request: Kludex/uvicorn issue 2722."""
    status, data = answer_to(url, "/v1/completions", TEXT, UPGRADE, chunked)
    assert status == 200, data
    assert json.loads(data)["choices"][0]["text"] == text_for(TEXT)


# ------------------------------------------------------------------ the clients themselves


def installed(package: str) -> bool:
    try:
        return bool(version(package))
    except PackageNotFoundError:
        return False


@pytest.mark.release
@pytest.mark.parametrize("call", CALLS, ids=str)
def test_a_client_gets_the_texts_of_its_conversation(url, call, monkeypatch):
    if not installed(call.package):
        pytest.skip(f"{call.package} is not installed")
    for name, value in QUIET.items():
        monkeypatch.setenv(name, value)
    if call.refused:
        with pytest.raises(Exception, match=re.escape(call.refused)):
            call.run(url)
        return
    answers = call.run(url)
    rows = [row for row in RECORDED if any(one.endswith(f": {call}") for one in row["clients"])]
    bodies = sorted((row["body"] for row in rows), key=lambda body: len(body.get("messages", "")))
    assert len(answers) == len(call.questions) == len(bodies)
    for body, found in zip(bodies, answers, strict=True):
        assert found == text_for(with_answers(body, answers))


def with_answers(body: dict, answers: list[str]) -> dict:
    """A recorded body with the model's answers in place of those of the recording."""
    if "messages" not in body:
        return body
    given = iter(answers)
    messages = [dict(message) for message in body["messages"]]
    for message in messages:
        if message["role"] == "assistant":
            message["content"] = next(given)
    return body | {"messages": messages}


# ------------------------------------------------------------------ openai, beyond one text

PLAIN = {"model": "tiny", "prompt": "abc"}


@pytest.fixture(scope="module")
def plain():
    """The URL of a model of texts, which has no template for chats."""
    with listening(Server(tiny_model(), CHARS, name="tiny")) as url:
        yield url


@pytest.mark.release
@pytest.mark.skipif(not installed("openai"), reason="openai not installed")
def test_openai(plain):
    openai = importlib.import_module("openai")
    with openai.OpenAI(base_url=f"{plain}/v1", api_key="none", max_retries=0) as client:
        create = client.completions.create
        answer = create(**PLAIN)
        assert create(**PLAIN, seed=answer.seed).choices[0].text == answer.choices[0].text
        answer = create(**PLAIN, n=2, seed=5, max_tokens=8)
        texts = [expected(tiny_model(), "abc", 8, seed=seed) for seed in (5, 6)]
        assert [choice.text for choice in answer.choices] == texts
        assert [model.id for model in client.models.list()] == ["tiny"]
        assert client.models.retrieve("tiny").id == "tiny"
        with pytest.raises(openai.BadRequestError) as caught:
            create(**PLAIN, frequency_penalty=0.5)
        assert caught.value.param == "frequency_penalty"
        with pytest.raises(openai.BadRequestError, match="no chat template"):
            client.chat.completions.create(model="tiny", messages=[HELLO])
        with pytest.raises(openai.NotFoundError, match="this server has"):
            client.models.retrieve("gpt-4")
