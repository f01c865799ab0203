"""The fields of other servers that would change a response, and are not implemented here.

A client sends more than its user has set: vLLM's benchmark a `repetition_penalty` of 1, LangChain a
`frequency_penalty` of 0. So each row has the values that change nothing, and who sends them or
documents the field. With any other value the request is refused, by the name of the field.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from .refused import Refused, show
from .requests import Json, RequestBody


def _never(value: Any, body: RequestBody) -> bool:
    return False


def _if_greedy(value: Any, body: RequestBody) -> bool:
    """A filter, or an order of filters: none of them drops the most likely token."""
    return body.greedy


def _is_n(value: Any, body: RequestBody) -> bool:
    """As many texts as are returned: there is nothing to choose."""
    return _equal(value, body.n)


def _as_sampled(value: Any, body: RequestBody) -> bool:
    """It says what the temperature says."""
    return isinstance(value, bool) and value != body.greedy


@dataclass(frozen=True)
class Unserved:
    """A field that would change the response, and is not implemented.

    `values`, and values for which `when` holds, change nothing; `known_from` are clients that send
    such a value, or whose documents have the field. `words` says what to send instead; by default
    one of `values`.
    """

    known_from: str
    values: tuple[object, ...] = ()
    when: Callable[[Any, RequestBody], bool] = _never
    words: str = ""

    def accepts(self, value: Any, body: RequestBody) -> bool:
        return any(_equal(value, one) for one in self.values) or self.when(value, body)

    def instead(self) -> str:
        return self.words or " or ".join(map(json.dumps, self.values)) or "null"


def _equal(one: object, other: object) -> bool:
    """Whether two JSON values are equal; true is not equal to 1."""
    if isinstance(one, bool) or isinstance(other, bool):
        return one is other
    return one == other


_BENCHMARK = "vLLM's benchmark with its sampling flags"
_SLIDERS = "SillyTavern's presets, by the names that text-generation-webui documents"
_LLAMA = "llama.cpp's web UI and clients, whose settings are all sent"
_VLLM = "vLLM's documented parameters, with their defaults"
# Null never gets here: it is the same as leaving a field out.
_NO_VALUE = Unserved("the documents of OpenAI, vLLM, SGLang and llama.cpp; no value is neutral")

UNSERVED = {
    # OpenAI's parameters.
    "best_of": Unserved("SGLang 0.5.23's benchmark", when=_is_n, words="the value of n"),
    "frequency_penalty": Unserved(f"langchain-openai 1.7.4; {_BENCHMARK}", (0,)),
    "logit_bias": Unserved("openai 3.57; llama.cpp's []", ({}, [])),
    "presence_penalty": Unserved(f"langchain-openai 1.7.4; {_BENCHMARK}", (0,)),
    "response_format": Unserved("openai 3.57", ({"type": "text"},)),
    "suffix": Unserved("plugins of editors, with nothing after the cursor", ("",)),
    # Calls of tools, by their new and their old names.
    "function_call": Unserved("AutoGen 0.2", ("none", "auto")),
    "functions": Unserved("AutoGen 0.2", ([],)),
    "tool_choice": Unserved("AutoGen 0.7.5; pydantic-ai 2.68", ("none", "auto")),
    "tools": Unserved("openai 3.57", ([],)),
    # Penalties, filters and other samplers: vLLM's, llama.cpp's, transformers'.
    "bad_words": Unserved(_VLLM, ([],)),
    "do_sample": Unserved(
        "lm-eval; SillyTavern's presets", when=_as_sampled, words="temperature instead"
    ),
    "dry_multiplier": Unserved(f"{_LLAMA}; SillyTavern", (0,)),
    "dynatemp_range": Unserved(_LLAMA, (0,)),
    "encoder_repetition_penalty": Unserved(_SLIDERS, (1,)),
    "epsilon_cutoff": Unserved(_SLIDERS, (0,)),
    "eta_cutoff": Unserved(_SLIDERS, (0,)),
    "guidance_scale": Unserved(_SLIDERS, (1,)),
    "min_p": Unserved(f"{_BENCHMARK}; {_LLAMA}", (0,), _if_greedy),
    "mirostat": Unserved(_LLAMA, (0,)),
    "mirostat_mode": Unserved(_SLIDERS, (0,)),
    "no_repeat_ngram_size": Unserved(_SLIDERS, (0,)),
    "num_beams": Unserved("lm-eval's translation tasks", (1,)),
    "penalty_alpha": Unserved(_SLIDERS, (0,)),
    "repeat_penalty": Unserved(_LLAMA, (1,)),
    "repetition_penalty": Unserved("vLLM's benchmark", (1,)),
    "samplers": Unserved(_LLAMA, when=_if_greedy, words="null, or temperature 0"),
    "smoothing_factor": Unserved(_SLIDERS, (0,)),
    "tfs": Unserved(_SLIDERS, (1,)),
    "top_a": Unserved(_SLIDERS, (0,)),
    "top_n_sigma": Unserved(_LLAMA, (-1, 0), _if_greedy),
    "typ_p": Unserved(_LLAMA, (1,), _if_greedy),
    "typical_p": Unserved(f"{_LLAMA}; SillyTavern", (1,), _if_greedy),
    "use_beam_search": Unserved("vLLM's older benchmark", (False,)),
    "xtc_probability": Unserved(f"{_LLAMA}; SillyTavern", (0,), _if_greedy),
    # Tokens, where the text begins, and other forms of log-probabilities.
    "add_special_tokens": Unserved(_VLLM, (True,)),
    "ban_eos_token": Unserved(_SLIDERS, (False,), words="ignore_eos instead"),
    "grammar": Unserved(f'{_LLAMA}: ""', ("",)),
    "n_probs": Unserved(_LLAMA, (0,), words="logprobs instead"),
    "prompt_logprobs": Unserved(_VLLM, words="logprobs with echo instead"),
    "return_tokens_as_token_ids": Unserved(_VLLM, (False,)),
    "skip_special_tokens": Unserved(f"{_VLLM}; SillyTavern", (True,)),
    "stop_token_ids": Unserved(_VLLM, ([],), words="stop instead"),
    "truncate_prompt_tokens": Unserved(_VLLM, (-1,)),
} | dict.fromkeys(
    # Structured output, and what only code can send.
    """allowed_token_ids ebnf guided_choice guided_grammar guided_json guided_regex json_schema
    logits_processors prompt_embeds regex structured_outputs""".split(),
    _NO_VALUE,
)

# What differs in a chat, whose prompt the template writes.
CHAT_UNSERVED = (
    UNSERVED
    | {
        "add_generation_prompt": Unserved(_VLLM, (True,)),
        "add_special_tokens": Unserved(f"{_VLLM}: the template adds them", (False,)),
        "chat_template": Unserved(_VLLM, words="null: the model's own is used"),
        "continue_final_message": Unserved(_VLLM, (False,)),
        "documents": Unserved("LiteLLM's []", ([],)),
        "echo": Unserved(_VLLM, (False,)),
        "modalities": Unserved("openai", (["text"],)),
        "web_search_options": Unserved("openai", ({},)),
    }
    | dict.fromkeys(["audio", "prediction"], _NO_VALUE)
)


def refuse_unserved(rest: Json, body: RequestBody, table: Mapping[str, Unserved]) -> list[str]:
    """Raises Refused for a field that would change the response. Returns those that nobody knows.

    `rest` has the fields that are not served. Whether they change anything may depend on those that
    are.
    """
    for name, row in table.items():
        if name in rest and not row.accepts(rest[name], body):
            raise Refused(
                400,
                f"{name}={show(rest[name])}: not implemented; leave it out, or send "
                f"{row.instead()}",
                name,
                "unsupported_parameter",
            )
    # vLLM and llama.cpp ignore other fields too, but do not say so.
    return [name for name in rest if name not in table]
