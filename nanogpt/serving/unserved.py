"""The fields of other servers that would change a response, and are not implemented here.

A client sends more than its user has set: vLLM's benchmark a `repetition_penalty` of 1, LangChain a
`frequency_penalty` of 0. So each name has the values that change nothing. With any other value the
request is refused, by the name of the field.
"""

from __future__ import annotations

import json
from collections.abc import Mapping

from .requests import Json, Refused, show

Neutral = tuple[object, ...]  # the values of a field that change nothing
# Values that ask for nothing, as programs send them whose user has set nothing. Null never gets
# here: it is the same as leaving a field out.
_NOTHING: Neutral = (0, False, "", [], {})


# Beside each name, the client that sends it. Its bodies are in tests/serving/client_bodies.json, or
# in its source; a field that only a server's documents name is one that nobody knows.
UNSERVED: dict[str, Neutral] = {
    "frequency_penalty": _NOTHING,  # openai 3.57, langchain-openai 1.7.4
    "presence_penalty": _NOTHING,  # the same
    "logit_bias": _NOTHING,  # openai 3.57
    "suffix": _NOTHING,  # openai 3.57
    "tools": _NOTHING,  # autogen-ext 0.7.5, langchain-openai 1.7.4, litellm 1.110.2, llm 0.36
    "functions": _NOTHING,  # openai 3.57, the old names of tools and tool_choice
    "function_call": ("none", "auto", *_NOTHING),  # the same
    "tool_choice": ("none", "auto"),  # autogen-ext 0.7.5, pydantic-ai 2.68
    "response_format": ({"type": "text"},),  # openai 3.57, langchain-openai 1.7.4, litellm 1.110.2
    "best_of": (1,),  # openai 3.57, SGLang 0.5.23's benchmark
    "num_beams": (1,),  # lm-eval 0.4.13's translation tasks
    "min_p": _NOTHING,  # vLLM's benchmark (tests/serving/test_clients.py)
    "repetition_penalty": (1,),  # the same
}

CHAT_UNSERVED: dict[str, Neutral] = UNSERVED | {
    "echo": _NOTHING,  # openai 3.57, in completions: in a chat there is no prompt to give back
    "audio": _NOTHING,  # openai 3.57
    "prediction": _NOTHING,  # openai 3.57
    "modalities": (["text"],),  # openai 3.57
}


def refuse_unserved(rest: Json, table: Mapping[str, Neutral]) -> list[str]:
    """Raises Refused for a field that would change the response. Returns those that nobody knows.

    `rest` has the fields that are not served.
    """
    for name, values in table.items():
        if name not in rest or rest[name] in values:
            continue
        instead = "" if values is _NOTHING else ", or send " + " or ".join(map(json.dumps, values))
        raise Refused(
            400,
            f"{name}={show(rest[name])}: not implemented; leave it out{instead}",
            name,
            "unsupported_parameter",
        )
    # vLLM and llama.cpp ignore other fields too, but do not say so.
    return [name for name in rest if name not in table]
