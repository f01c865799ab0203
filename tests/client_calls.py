"""How each client is used with a server of one's own: as its documentation says, one call a row.

A driver holds a conversation with the server at `url`, asks each question in turn, sends back the
answers it got, and gives them. serving/test_clients.py makes the calls to `serve`;
record_clients.py keeps the bodies that they send in serving/client_bodies.json.
"""

from __future__ import annotations

import asyncio
import importlib
import os
import tempfile
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

SYSTEM = "Be brief."
QUESTIONS = ("Hello, fox", "And the dog?")
PROMPT = "the fox"
SCHEMA = {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}
NAMED = {"name": "weather", "parameters": SCHEMA}
TOOL = {"type": "function", "function": NAMED}
FORMAT = {"type": "json_schema", "json_schema": {"name": "city", "schema": SCHEMA}}
# No call to the world outside: of prices, of traces, of usage.
QUIET = {
    "DO_NOT_TRACK": "1",
    "LITELLM_LOCAL_MODEL_COST_MAP": "True",
    "LITELLM_TELEMETRY": "False",
    "OPENAI_AGENTS_DISABLE_TRACING": "1",
    "OPENAI_API_KEY": "none",
}


@dataclass(frozen=True)
class Call:
    """A conversation of one client: its settings, and the field for which it is refused, if any."""

    package: str  # as pip knows it
    driver: Callable[..., list[str]]
    fields: dict[str, Any] = field(default_factory=dict)
    questions: tuple[str, ...] = QUESTIONS[:1]
    refused: str | None = None

    def __str__(self) -> str:
        return " ".join([self.driver.__name__, *self.fields])

    def run(self, url: str) -> list[str]:
        return self.driver(f"{url}/v1", self.questions, **self.fields)


def weather(city: str) -> str:
    """The weather of a city."""
    return "rain"


def _joined(pieces) -> str:
    return "".join(piece or "" for piece in pieces)


# ------------------------------------------------------------------ openai


def _openai(url: str):
    return importlib.import_module("openai").OpenAI(base_url=url, api_key="none", max_retries=0)


def openai_chat(url, questions, stream=False, dump=False, model="tiny", **fields) -> list[str]:
    answers = []
    messages = [{"role": "system", "content": SYSTEM}]
    with _openai(url) as client:
        create = client.chat.completions.create
        for question in questions:
            messages.append({"role": "user", "content": question})
            asked = {"model": model, "messages": messages, **fields}
            if stream:
                parts = [part for part in create(**asked, stream=True) if part.choices]
                answers.append(_joined(part.choices[0].delta.content for part in parts))
                messages.append({"role": "assistant", "content": answers[-1]})
            else:
                message = create(**asked).choices[0].message
                answers.append(message.content)
                # As it came, or with null in each field that it does not have.
                messages.append(message.model_dump() if dump else message)
    return answers


def openai_completions(url, questions, stream=False, **fields) -> list[str]:
    with _openai(url) as client:
        made = client.completions.create(model="tiny", prompt=PROMPT, stream=stream, **fields)
        if not stream:
            return [made.choices[0].text]
        return [_joined(part.choices[0].text for part in made if part.choices)]


def openai_parse(url, questions, **fields) -> list[str]:
    pydantic = importlib.import_module("pydantic")
    city = pydantic.create_model("City", city=(str, ...))
    with _openai(url) as client:
        messages = [{"role": "user", "content": questions[0]}]
        client.chat.completions.parse(model="tiny", messages=messages, response_format=city)
    return []


def openai_responses(url, questions, **fields) -> list[str]:
    with _openai(url) as client:
        return [client.responses.create(model="tiny", input=questions[0]).output_text]


# ------------------------------------------------------------------ LangChain


def langchain_chat(url, questions, stream=False, tools=(), schema=None, **fields) -> list[str]:
    langchain = importlib.import_module("langchain_openai")
    how = {"model": "tiny", "base_url": url, "api_key": "none", "max_retries": 0}
    model = langchain.ChatOpenAI(**how, **fields)
    if tools:
        model = model.bind_tools(list(tools))
    if schema:
        model = model.with_structured_output(schema)
    answers = []
    messages: list[Any] = [("system", SYSTEM)]
    for question in questions:
        messages.append(("human", question))
        if stream:
            answers.append(_joined(part.content for part in model.stream(messages)))
            messages.append(("ai", answers[-1]))
        else:
            messages.append(model.invoke(messages))
            answers.append(messages[-1].content)
    return answers


def langchain_completions(url, questions, stream=False, **fields) -> list[str]:
    langchain = importlib.import_module("langchain_openai")
    how = {"model": "tiny", "base_url": url, "api_key": "none", "max_retries": 0}
    model = langchain.OpenAI(**how, **fields)
    return [_joined(model.stream(PROMPT)) if stream else model.invoke(PROMPT)]


# ------------------------------------------------------------------ LiteLLM


def litellm_chat(url, questions, stream=False, provider="openai", **fields) -> list[str]:
    litellm = importlib.import_module("litellm")
    answers = []
    messages: list[Any] = [{"role": "system", "content": SYSTEM}]
    how = {"model": f"{provider}/tiny", "api_base": url, "api_key": "none", "max_retries": 0}
    for question in questions:
        messages.append({"role": "user", "content": question})
        made = litellm.completion(messages=messages, stream=stream, **how, **fields)
        if stream:
            answers.append(_joined(part.choices[0].delta.content for part in made))
            messages.append({"role": "assistant", "content": answers[-1]})
        else:
            messages.append(made.choices[0].message)
            answers.append(messages[-1].content)
    return answers


def litellm_completions(url, questions, stream=False, **fields) -> list[str]:
    litellm = importlib.import_module("litellm")
    how = {"model": "text-completion-openai/tiny", "api_base": url, "api_key": "none"}
    made = litellm.text_completion(prompt=PROMPT, stream=stream, **how, **fields)
    if not stream:
        return [made.choices[0].text]
    return [_joined(part.choices[0].text for part in made)]


# ------------------------------------------------------------------ llm


def _llm(url: str, completion: bool):
    """Its model, from the file in which its users list servers of their own."""
    lines = ["- model_id: mine", "  model_name: tiny", f"  api_base: {url}"]
    lines += ["  supports_tools: true", "  supports_schema: true"]
    lines += ["  completion: true"] if completion else []
    with tempfile.TemporaryDirectory() as folder:
        Path(folder, "extra-openai-models.yaml").write_text("\n".join(lines), encoding="utf-8")
        os.environ["LLM_USER_PATH"] = folder
        try:
            return importlib.import_module("llm").get_model("mine")
        finally:
            del os.environ["LLM_USER_PATH"]


def llm_chat(url, questions, stream=False, **fields) -> list[str]:
    conversation = _llm(url, completion=False).conversation()
    answers = []
    for question in questions:
        system = None if answers else SYSTEM
        made = conversation.prompt(question, system=system, stream=stream, **fields)
        answers.append(made.text())
    return answers


def llm_completions(url, questions, stream=False, **fields) -> list[str]:
    return [_llm(url, completion=True).prompt(PROMPT, stream=stream, **fields).text()]


# ------------------------------------------------------------------ AutoGen


def autogen_agent(url, questions, stream=False, tools=(), model="tiny", **fields) -> list[str]:
    """An assistant, to whom each question is a task."""
    openai = importlib.import_module("autogen_ext.models.openai")
    agents = importlib.import_module("autogen_agentchat.agents")
    info = dict.fromkeys(["vision", "json_output", "structured_output"], False)
    info |= {"function_calling": True, "family": "unknown"}
    client = openai.OpenAIChatCompletionClient(
        model=model, base_url=url, api_key="none", model_info=info, max_retries=0, **fields
    )
    agent = agents.AssistantAgent(
        "fox", client, tools=list(tools), system_message=SYSTEM, model_client_stream=stream
    )

    async def talk() -> list[str]:
        answers = []
        for question in questions:
            answers.append((await agent.run(task=question)).messages[-1].content)
        await client.close()
        return answers

    return asyncio.run(talk())


# ------------------------------------------------------------------ pydantic-ai


def pydantic_ai_agent(url, questions, stream=False, tools=(), **fields) -> list[str]:
    ai = importlib.import_module("pydantic_ai")
    models = importlib.import_module("pydantic_ai.models.openai")
    providers = importlib.import_module("pydantic_ai.providers.openai")
    provider = providers.OpenAIProvider(base_url=url, api_key="none")
    output = fields.pop("output_type", str)
    model = models.OpenAIChatModel("tiny", provider=provider)
    agent = ai.Agent(model, instructions=SYSTEM, tools=list(tools), output_type=output)

    async def talk() -> list[str]:
        answers = []
        history = None
        for question in questions:
            how = {"model_settings": fields or None, "message_history": history}
            if stream:
                async with agent.run_stream(question, **how) as result:
                    answers.append(await result.get_output())
            else:
                result = await agent.run(question, **how)
                answers.append(result.output)
            history = result.all_messages()
        return answers

    return asyncio.run(talk())


# ------------------------------------------------------------------ openai-agents


def openai_agents_agent(url, questions, stream=False, tools=(), **fields) -> list[str]:
    agents = importlib.import_module("agents")
    openai = importlib.import_module("openai")

    async def talk() -> list[str]:
        answers: list[str] = []
        async with openai.AsyncOpenAI(base_url=url, api_key="none", max_retries=0) as client:
            agent = agents.Agent(
                "fox",
                instructions=SYSTEM,
                model=agents.OpenAIChatCompletionsModel("tiny", client),
                model_settings=agents.ModelSettings(**fields),
                tools=[agents.function_tool(tool) for tool in tools],
            )
            asked: list[Any] = []
            for question in questions:
                asked.append({"role": "user", "content": question})
                if stream:
                    result = agents.Runner.run_streamed(agent, asked)
                    async for _ in result.stream_events():
                        pass
                else:
                    result = await agents.Runner.run(agent, asked)
                answers.append(result.final_output)
                asked = result.to_input_list()
        return answers

    return asyncio.run(talk())


# ------------------------------------------------------------------ the calls

SHORT = {"temperature": 0, "max_tokens": 8}
NEWER = {"temperature": 0, "max_completion_tokens": 8}
STREAM = {"stream": True}
USAGE = {"stream_options": {"include_usage": True}}
NEUTRAL = {"n": 1, "top_p": 1, "frequency_penalty": 0, "presence_penalty": 0, "logit_bias": {}}
CALLS = [
    # openai: the README's calls, and each setting of the API reference at its default.
    Call("openai", openai_chat),
    Call("openai", openai_chat, STREAM | USAGE),
    Call("openai", openai_chat, NEWER | {"seed": 5, "stop": ["\n\n"]}, QUESTIONS),
    Call("openai", openai_chat, SHORT | {"dump": True}, QUESTIONS),
    Call("openai", openai_chat, SHORT | {"logprobs": True, "top_logprobs": 2, "user": "me"}),
    Call(
        "openai",
        openai_chat,
        SHORT
        | NEUTRAL
        | {"response_format": {"type": "text"}, "tools": [], "stop": None, "store": False}
        | {"metadata": {"a": "b"}, "service_tier": "auto", "parallel_tool_calls": True},
    ),
    Call("openai", openai_chat, SHORT | {"model": "gpt-4o-mini", "stop": ""}),
    Call(
        "openai",
        openai_chat,
        SHORT | {"extra_body": {"chat_template_kwargs": {"enable_thinking": False}, "top_k": -1}},
    ),
    Call("openai", openai_chat, {"tools": [TOOL]}, refused="tools"),
    Call("openai", openai_chat, {"frequency_penalty": 0.5}, refused="frequency_penalty"),
    Call("openai", openai_parse, refused="response_format"),
    Call("openai", openai_responses, refused="/v1/chat/completions"),
    Call("openai", openai_completions),
    Call("openai", openai_completions, SHORT | STREAM | USAGE),
    Call(
        "openai",
        openai_completions,
        SHORT | NEUTRAL | {"best_of": 1, "echo": False, "suffix": None, "logprobs": 2},
    ),
    # LangChain.
    Call("langchain-openai", langchain_chat, {}, QUESTIONS),
    Call("langchain-openai", langchain_chat, STREAM),
    Call("langchain-openai", langchain_chat, SHORT | {"stop": ["\n\n"], "seed": 5, "top_p": 1}),
    Call("langchain-openai", langchain_chat, SHORT | {"logprobs": True, "top_logprobs": 2}),
    Call("langchain-openai", langchain_chat, {"tools": [weather]}, refused="tools"),
    Call("langchain-openai", langchain_chat, {"schema": NAMED}, refused="response_format"),
    Call("langchain-openai", langchain_completions),
    Call("langchain-openai", langchain_completions, SHORT | STREAM),
    Call("langchain-openai", langchain_completions, SHORT | {"seed": 5, "logprobs": 2}),
    # LiteLLM, by the two names that its pages give to such a server.
    Call("litellm", litellm_chat, {}, QUESTIONS),
    Call("litellm", litellm_chat, STREAM),
    Call("litellm", litellm_chat, SHORT | {"stop": ["\n\n"], "seed": 5, "user": "me"}),
    Call("litellm", litellm_chat, {"provider": "hosted_vllm"} | STREAM),
    Call("litellm", litellm_chat, {"provider": "hosted_vllm"} | SHORT),
    Call("litellm", litellm_chat, {"tools": [TOOL]}, refused="tools"),
    Call("litellm", litellm_chat, {"response_format": FORMAT}, refused="response_format"),
    Call("litellm", litellm_completions),
    Call("litellm", litellm_completions, SHORT | STREAM),
    # llm.
    Call("llm", llm_chat, {}, QUESTIONS),
    Call("llm", llm_chat, STREAM),
    Call("llm", llm_chat, SHORT | {"seed": 5, "stop": "\n\n", "top_p": 1.0}),
    Call("llm", llm_chat, {"tools": [weather]}, refused="tools"),
    Call("llm", llm_chat, {"schema": SCHEMA}, refused="response_format"),
    Call("llm", llm_completions),
    Call("llm", llm_completions, SHORT | STREAM),
    # AutoGen.
    Call("autogen-ext", autogen_agent, {}, QUESTIONS),
    Call("autogen-ext", autogen_agent, STREAM),
    Call("autogen-ext", autogen_agent, SHORT | {"seed": 5, "stop": ["\n\n"], "user": "me"}),
    Call("autogen-ext", autogen_agent, {"tools": [weather]}, refused="tools"),
    # pydantic-ai.
    Call("pydantic-ai-slim", pydantic_ai_agent, {}, QUESTIONS),
    Call("pydantic-ai-slim", pydantic_ai_agent, STREAM, QUESTIONS),
    Call(
        "pydantic-ai-slim",
        pydantic_ai_agent,
        SHORT | {"seed": 5, "stop_sequences": ["\n\n"], "top_p": 1.0, "parallel_tool_calls": False},
    ),
    Call("pydantic-ai-slim", pydantic_ai_agent, {"tools": [weather]}, refused="tools"),
    Call("pydantic-ai-slim", pydantic_ai_agent, {"output_type": bool}, refused="tool"),
    # openai-agents.
    Call("openai-agents", openai_agents_agent, {}, QUESTIONS),
    Call("openai-agents", openai_agents_agent, STREAM, QUESTIONS),
    Call("openai-agents", openai_agents_agent, SHORT | {"top_p": 1.0, "include_usage": True}),
    Call("openai-agents", openai_agents_agent, {"tools": [weather]}, refused="tools"),
]
