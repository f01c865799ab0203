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


def _fields(names: str) -> dict[str, Neutral]:
    return dict.fromkeys(names.split(), _NOTHING)


UNSERVED: dict[str, Neutral] = (
    # The API of OpenAI, in openai 3.57: penalties, which langchain-openai 1.7.4 sends, and calls of
    # tools by their new and their old names.
    _fields("frequency_penalty presence_penalty logit_bias suffix tools functions function_call")
    # llama.cpp's web UI, which sends all its settings.
    | _fields("dry_multiplier dynatemp_range mirostat grammar n_probs samplers xtc_probability")
    # The documents of vLLM and SGLang: filters, structured output, and what only code can send.
    # vLLM's benchmark sends a min_p of 0.
    | _fields(
        """min_p bad_words allowed_token_ids logits_processors prompt_embeds prompt_logprobs
        stop_token_ids use_beam_search return_tokens_as_token_ids json_schema regex ebnf
        guided_choice guided_grammar guided_json guided_regex structured_outputs"""
    )
    | {
        "best_of": (1,),  # SGLang 0.5.23's benchmark
        "num_beams": (1,),  # lm-eval 0.4.13's translation tasks
        "repeat_penalty": (1,),  # llama.cpp's web UI
        "repetition_penalty": (1,),  # vLLM's benchmark
        "response_format": ({"type": "text"},),  # openai 3.57
        "tool_choice": ("none", "auto"),  # AutoGen 0.7.5, pydantic-ai 2.68
        "top_n_sigma": (-1,),  # llama.cpp's web UI
        "typ_p": (1,),  # the same
        "typical_p": (1,),  # the same, in older versions
        # vLLM's parameters of the text itself, at their defaults.
        "add_special_tokens": (True,),
        "skip_special_tokens": (True,),
    }
)

# What differs in a chat, whose prompt the template writes.
CHAT_UNSERVED = (
    UNSERVED
    | _fields("audio chat_template continue_final_message documents echo prediction")
    | {
        "add_generation_prompt": (True,),
        "add_special_tokens": (False,),  # the template adds them
        "modalities": (["text"],),
    }
)


def refuse_unserved(rest: Json, table: Mapping[str, Neutral]) -> list[str]:
    """Raises Refused for a field that would change the response. Returns those that nobody knows.

    `rest` has the fields that are not served.
    """
    for name, values in table.items():
        if name not in rest or any(_same(rest[name], value) for value in values):
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


def _same(given: object, value: object) -> bool:
    """Whether both are one value of JSON: 1.0 is 1, but true is not."""
    return given == value and isinstance(given, bool) == isinstance(value, bool)
