"""The parameters of a completion and of a chat, as tables: OpenAI's, vLLM's and llama.cpp's.

Clients send parameters that their users never set: vLLM's benchmark sends a `repetition_penalty` of
1, others a `frequency_penalty` of 0. So a parameter that this server does not implement is rejected
only if its value would change the response. null is the same as leaving a parameter out.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from difflib import get_close_matches
from math import inf
from typing import Any

_STOPS = 16  # most stop strings in a request; OpenAI's API allows 4, lm-eval's tasks use up to 6
LOGPROBS = 20  # most alternatives per token: vLLM's default limit; OpenAI's completions API has 5
_GREEDY = 1e-6  # a temperature or a top_p below this leaves only the most likely token


Fields = dict[str, Any]  # the served parameters, by name


class Refused(Exception):
    """A rejected request: `status` is the HTTP status, `param` the invalid field."""

    def __init__(self, status: int, message: str, param: str | None = None):
        super().__init__(message)
        self.status = status
        self.param = param

    def body(self) -> dict[str, Any]:
        """The error in OpenAI's format."""
        kind = "server_error" if self.status >= 500 else "invalid_request_error"
        error = {"type": kind, "param": self.param, "code": self.status}
        return {"error": {"message": str(self)[:1000], **error}}


def show(value: object, most: int = 60) -> str:
    """A value as one line of JSON, truncated to `most` characters."""
    try:
        text = json.dumps(value)
    except RecursionError:  # json can read deeper nesting than it can write
        text = "a value that is nested too deeply"
    return text if len(text) <= most else f"{text[:most]}…"


# ------------------------------------------------------------------ kinds of values


@dataclass(frozen=True)
class Kind:
    """A set of JSON values, and its description in errors."""

    words: str
    fits: Callable[[Any], bool]


def integer(low: int, high: int | None = None) -> Kind:
    span = f"of at least {low}" if high is None else f"in [{low}, {high}]"
    top = inf if high is None else high
    return Kind(f"an integer {span}", lambda x: type(x) is int and low <= x <= top)


def number(low: float = -1e30, high: float = 1e30) -> Kind:
    words = f"a number in [{low:g}, {high:g}]"
    return Kind(words, lambda x: type(x) in (int, float) and low <= x <= high)


def _are_stops(value: Any) -> bool:
    stops = [value] if isinstance(value, str) else value
    if not isinstance(stops, list) or len(stops) > _STOPS:
        return False
    return all(isinstance(stop, str) and stop for stop in stops)


STREAM_OPTIONS = ("include_usage", "continuous_usage_stats", "include_obfuscation")


def _are_stream_options(value: Any) -> bool:
    if not isinstance(value, dict) or not set(value) <= set(STREAM_OPTIONS):
        return False
    return all(option is None or isinstance(option, bool) for option in value.values())


SWITCH = Kind("true or false", lambda x: isinstance(x, bool))
TEXT = Kind("a string", lambda x: isinstance(x, str))
_NAME = Kind("a string of at most 200 characters", lambda x: isinstance(x, str) and len(x) <= 200)
LIST = Kind("a list", lambda x: isinstance(x, list))
OBJECT = Kind("an object", lambda x: isinstance(x, dict))
ANYTHING = Kind("anything", lambda x: True)
INTEGER = integer(-(2**63), 2**63 - 1)
NUMBER = number()
SEED = integer(-(2**63), 2**64 - 1)
STOP = Kind(f"a string or up to {_STOPS} of them, none empty", _are_stops)
_OPTIONS = Kind(f"an object of {', '.join(STREAM_OPTIONS)}: true or false", _are_stream_options)


# ------------------------------------------------------------------ kinds of parameters


@dataclass(frozen=True)
class Served:
    """An implemented parameter. `default` is its value if it is left out."""

    default: object
    kind: Kind


@dataclass(frozen=True)
class Alias:
    """Another name for a served parameter."""

    name: str


@dataclass(frozen=True)
class Unused:
    """A parameter of something that this server does not have, so it never affects a response."""

    kind: Kind


@dataclass(frozen=True)
class Context:
    """What a parameter's effect may depend on: the served parameters, and the model."""

    fields: Fields
    n_vocab: int
    n_prompt: int  # tokens of the longest prompt
    plain: bool = True  # whether every token is a piece of text, with no control tokens

    @property
    def greedy(self) -> bool:
        return is_greedy(self.fields)


class Neutral:
    """Not implemented. Accepted for `values`, and if `when` holds, because it then has no effect.

    `words` describes the accepted values; by default it lists `values`.
    """

    def __init__(
        self,
        *values: object,
        when: Callable[[Any, Context], bool] = lambda value, context: False,
        words: str = "",
    ):
        self.values = values
        self.when = when
        self.words = words or " or ".join(map(json.dumps, values)) or "null"

    def accepts(self, value: Any, context: Context) -> bool:
        return any(_equal(value, one) for one in self.values) or self.when(value, context)


def _equal(one: object, other: object) -> bool:
    """Whether two JSON values are equal; true is not equal to 1."""
    if isinstance(one, bool) or isinstance(other, bool):
        return one is other
    return one == other


def is_greedy(fields: Fields) -> bool:
    """Whether sampling always takes the most likely token."""
    return bool(fields["temperature"] < _GREEDY or fields["top_p"] < _GREEDY)


# ------------------------------------------------------------------ values without effect


def _is_n(value: Any, context: Context) -> bool:
    """best_of equal to n: there is nothing to choose."""
    return _equal(value, context.fields["n"])


def _keeps_likeliest(value: Any, context: Context) -> bool:
    """A filter that never drops the most likely token, in a greedy request."""
    return context.greedy and number(0, 1).fits(value)


def _without_logprobs(value: Any, context: Context) -> bool:
    """A format of log-probabilities, in a request without any."""
    return isinstance(value, bool) and context.fields.get("logprobs") is None


def _samples(value: Any, context: Context) -> bool:
    """transformers' do_sample, if it agrees with the temperature."""
    return isinstance(value, bool) and value != context.greedy


def _cuts_nothing(value: Any, context: Context) -> bool:
    """A limit that the prompt does not exceed. -1 is the model's limit, which is always checked."""
    return integer(-1).fits(value) and value != 0 and not 0 < value < context.n_prompt


def _without_control_tokens(value: Any, context: Context) -> bool:
    """An option for control tokens, with a vocabulary that has none."""
    return isinstance(value, bool) and context.plain


def _outside_vocabulary(value: Any, context: Context) -> bool:
    """Tokens that are never sampled."""
    tokens = isinstance(value, list) and all(type(token) is int for token in value)
    return tokens and not any(0 <= token < context.n_vocab for token in value)


def _all_tokens(value: Any, context: Context) -> bool:
    """A selection of tokens that contains all of them."""
    tokens = isinstance(value, list) and all(type(token) is int for token in value)
    return tokens and set(range(context.n_vocab)) <= set(value)


def _adds_zero(value: Any, context: Context) -> bool:
    """Biases of 0: {"5": 0}, or [[5, 0]] in llama.cpp's format."""
    if isinstance(value, list):
        pairs = [pair for pair in value if isinstance(pair, list) and len(pair) == 2]
        return len(pairs) == len(value) and all(_equal(bias, 0) for _, bias in pairs)
    return isinstance(value, dict) and all(_equal(bias, 0) for bias in value.values())


def _scales_to_zero(value: Any, context: Context) -> bool:
    """LoRA adapters that are switched off."""
    adapters = isinstance(value, list) and all(isinstance(one, dict) for one in value)
    return adapters and all(_equal(one.get("scale"), 0) for one in value)


def _constrains_nothing(value: Any, context: Context) -> bool:
    """Options of structured output that are all off."""
    return isinstance(value, dict) and all(one in (None, False, "") for one in value.values())


_LETTERS = {"k": "top_k", "p": "top_p", "t": "temperature"}  # in llama.cpp's sampler strings


def _same_order(value: Any, context: Context) -> bool:
    """Samplers equivalent to ours: temperature, then top_k, then top_p.

    Only active samplers count. temperature and top_k commute.
    """
    fields = context.fields
    if fields["temperature"] < _GREEDY:
        active = {"temperature"}
    elif fields["top_p"] < _GREEDY:
        active = {"top_p"}
    else:
        on = {
            "temperature": fields["temperature"] != 1,
            "top_k": 0 < fields["top_k"] < context.n_vocab,
            "top_p": fields["top_p"] < 1,
        }
        active = {name for name in on if on[name]}
    if isinstance(value, str):
        value = [_LETTERS.get(letter, letter) for letter in value]
    if not isinstance(value, list) or not all(isinstance(name, str) for name in value):
        return False
    order = [name for name in value if name in active]
    if sorted(order) != sorted(active):
        return False
    return "top_p" not in active or order[-1] == "top_p"


# ------------------------------------------------------------------ the table

Table = dict[str, Served | Alias | Unused | Neutral]

PARAMETERS: Table = {
    # OpenAI's completions API.
    "best_of": Neutral(when=_is_n, words="the value of n"),
    "echo": Served(False, SWITCH),
    "frequency_penalty": Neutral(0),
    "logit_bias": Neutral({}, [], when=_adds_zero),
    "logprobs": Served(None, integer(0, LOGPROBS)),
    "max_tokens": Served(16, integer(-1)),  # -1 or more than fit: as many as fit
    "n": Served(1, integer(1)),
    "presence_penalty": Neutral(0),
    "seed": Served(-1, SEED),  # -1: a random one, as in vLLM and llama.cpp
    "stop": Served([], STOP),
    "stream": Served(False, SWITCH),
    "stream_options": Served({}, _OPTIONS),
    "suffix": Neutral(""),
    "temperature": Served(1.0, number(0, 1e6)),
    "top_p": Served(1.0, number(0, 1)),  # 0: the most likely token
    "user": Unused(TEXT),
    # OpenAI's other APIs.
    "max_completion_tokens": Alias("max_tokens"),
    "metadata": Unused(OBJECT),
    "prompt_cache_key": Unused(TEXT),
    "prompt_cache_retention": Unused(TEXT),
    "response_format": Neutral({"type": "text"}),
    "safety_identifier": Unused(TEXT),
    "service_tier": Unused(TEXT),
    "store": Unused(SWITCH),
    # vLLM: sampling.
    "allowed_token_ids": Neutral([], when=_all_tokens),
    "bad_words": Neutral([]),
    "early_stopping": Unused(ANYTHING),  # for beam search
    "ignore_eos": Served(False, SWITCH),
    "include_stop_str_in_output": Served(False, SWITCH),
    "length_penalty": Unused(NUMBER),  # for beam search
    "logprob_token_ids": Neutral([]),
    "min_p": Neutral(0, when=_keeps_likeliest),
    "min_tokens": Served(0, integer(0)),
    "prompt_logprobs": Neutral(False, words="false; use logprobs with echo instead"),
    "repetition_penalty": Neutral(1),
    "skip_special_tokens": Neutral(True, when=_without_control_tokens),
    "spaces_between_special_tokens": Unused(SWITCH),
    "stop_token_ids": Neutral([], when=_outside_vocabulary, words="[]; use stop instead"),
    "top_k": Served(0, integer(-1)),  # 0, -1 and the vocabulary's size or more: all tokens
    "truncate_prompt_tokens": Neutral(when=_cuts_nothing, words="at least the prompt's length"),
    "truncation_side": Unused(TEXT),
    "use_beam_search": Neutral(False),
    "watermarking": Neutral(False),
    # vLLM: other parameters.
    "add_special_tokens": Neutral(True, when=_without_control_tokens),
    "cache_salt": Neutral(words="null: all requests share one prefix cache"),
    "ec_transfer_params": Neutral({}),
    "guided_choice": Neutral([]),
    "guided_decoding_backend": Unused(TEXT),
    "guided_grammar": Neutral(""),
    "guided_json": Neutral(),
    "guided_regex": Neutral(""),
    "guided_whitespace_pattern": Unused(TEXT),
    "kv_transfer_params": Neutral({}),
    "logits_processors": Neutral([]),
    "priority": Neutral(0),  # first come, first served
    "prompt_embeds": Neutral([]),
    "repetition_detection": Neutral({}),
    "request_id": Served(None, _NAME),
    "return_mm_kwargs": Unused(SWITCH),
    "return_token_ids": Neutral(False),
    "return_token_offsets": Unused(SWITCH),
    "return_tokens_as_token_ids": Neutral(False, when=_without_logprobs),
    "routed_experts_prompt_start": Unused(INTEGER),
    "session_id": Unused(TEXT),
    "stream_interval": Unused(INTEGER),
    "structural_tag": Neutral(""),
    "structured_outputs": Neutral({}, when=_constrains_nothing),
    "thinking_token_budget": Unused(INTEGER),
    "vllm_xargs": Neutral({}),
    # transformers, and parameters that lm-eval passes on.
    "do_sample": Neutral(when=_samples, words="true above temperature 0, false at 0"),
    "max_new_tokens": Alias("max_tokens"),
    "no_repeat_ngram_size": Neutral(0),
    "num_beams": Neutral(1),
    # llama.cpp: sampling.
    "adaptive_decay": Unused(NUMBER),  # of adaptive_target
    "adaptive_target": Neutral(-1),
    "dry_allowed_length": Unused(INTEGER),  # of dry_multiplier
    "dry_base": Unused(NUMBER),
    "dry_multiplier": Neutral(0),
    "dry_penalty_last_n": Unused(INTEGER),
    "dry_sequence_breakers": Unused(LIST),
    "dynatemp_exponent": Unused(NUMBER),  # of dynatemp_range
    "dynatemp_range": Neutral(0),
    "grammar": Neutral(""),
    "grammar_lazy": Unused(SWITCH),  # of a grammar
    "grammar_triggers": Unused(LIST),
    "json_schema": Neutral(),
    "min_keep": Neutral(0, 1),
    "mirostat": Neutral(0),
    "mirostat_eta": Unused(NUMBER),
    "mirostat_tau": Unused(NUMBER),
    "penalize_nl": Unused(SWITCH),  # of repeat_penalty
    "preserved_tokens": Unused(LIST),  # of a grammar
    "repeat_last_n": Unused(INTEGER),  # of repeat_penalty
    "repeat_penalty": Neutral(1),
    "samplers": Neutral(when=_same_order, words="temperature, top_k, top_p in this order"),
    "tfs_z": Neutral(1),
    "top_n_sigma": Neutral(-1, 0),
    "typical_p": Neutral(1),
    "xtc_probability": Neutral(0),
    "xtc_threshold": Unused(NUMBER),
    # llama.cpp: other parameters.
    "backend_sampling": Unused(SWITCH),
    "cache_prompt": Unused(SWITCH),  # reuse does not change the text
    "chat_format": Unused(INTEGER),
    "id_slot": Unused(INTEGER),
    "image_data": Neutral([]),
    "lora": Neutral([], when=_scales_to_zero),
    "multimodal_data": Neutral([]),
    "n_cache_reuse": Unused(INTEGER),
    "n_cmpl": Alias("n"),
    "n_discard": Unused(INTEGER),  # for context shifting; here a text ends with its context
    "n_indent": Neutral(0),
    "n_keep": Unused(INTEGER),
    "n_predict": Alias("max_tokens"),
    "n_probs": Neutral(0, words="0; use logprobs instead"),
    "parse_tool_calls": Unused(SWITCH),
    "post_sampling_probs": Neutral(False, when=_without_logprobs),
    "reasoning_budget_tokens": Unused(INTEGER),
    "reasoning_format": Unused(TEXT),
    "response_fields": Neutral([]),
    "return_progress": Neutral(False),
    "return_tokens": Neutral(False),
    "slot_id": Unused(INTEGER),
    "speculative.n_max": Unused(INTEGER),  # a draft does not change the text
    "speculative.n_min": Unused(INTEGER),
    "speculative.ngram_m_hits": Unused(INTEGER),
    "speculative.ngram_size_m": Unused(INTEGER),
    "speculative.ngram_size_n": Unused(INTEGER),
    "speculative.p_min": Unused(NUMBER),
    "speculative.type": Unused(TEXT),
    "sse_ping_interval": Unused(INTEGER),
    "t_max_predict_ms": Neutral(0, -1),
    "t_max_prompt_ms": Neutral(0, -1),
    "thinking_forced_open": Unused(SWITCH),
    "timings_per_token": Neutral(False),
}

# What differs in a chat. Log-probabilities take two parameters; an answer ends by itself.
CHAT_PARAMETERS: Table = PARAMETERS | {
    "add_generation_prompt": Neutral(True),
    "add_special_tokens": Neutral(False, when=_without_control_tokens),  # the template adds them
    "audio": Neutral(),
    "chat_template": Neutral(words="null: the model's own is used"),
    "chat_template_kwargs": Neutral({}),
    "continue_final_message": Neutral(False),
    "documents": Neutral([]),
    "echo": Neutral(False),
    "function_call": Neutral("none", "auto"),
    "functions": Neutral([]),
    "include_reasoning": Unused(SWITCH),
    "logprobs": Served(None, SWITCH),
    "max_tokens": Served(-1, integer(-1)),
    "modalities": Neutral(["text"]),
    "parallel_tool_calls": Unused(SWITCH),
    "prediction": Neutral(),
    "prompt_logprobs": Neutral(False),
    "reasoning_effort": Unused(TEXT),
    "suffix": Neutral(""),
    "tool_choice": Neutral("none", "auto"),
    "tools": Neutral([]),
    "top_logprobs": Served(0, integer(0, LOGPROBS)),
    "verbosity": Unused(TEXT),
    "web_search_options": Neutral({}),
}


# ------------------------------------------------------------------ parsing a body


def read_parameters(
    body: dict[str, Any],
    n_vocab: int,
    n_prompt: int,
    plain: bool = True,
    table: Table = PARAMETERS,
) -> Fields:
    """The served parameters of a body, checked, with defaults. Raises Refused.

    `n_prompt` is the length of the longest prompt, `plain` means that there are no control tokens.
    `table` is PARAMETERS or CHAT_PARAMETERS. A name that is not in the table is rejected, as in
    OpenAI's API. vLLM and llama.cpp ignore it, so a misspelled `temprature` silently gives another
    text. An unknown parameter with an empty list or object is accepted.
    """
    # 1. Is every name known? A misspelled one is named, with the one that was probably meant.
    given = {name: value for name, value in body.items() if value is not None}
    for name, value in given.items():
        if name not in table and value not in ([], {}):
            near = get_close_matches(name[:60], table, n=1, cutoff=0.8)
            guess = f" (did you mean {near[0]}?)" if near else ""
            shown = show(name)[1:-1]
            raise Refused(
                400, f"{shown}={show(value)}: no such parameter{guess}; leave it out", name
            )
    # 2. Read those that are served.
    fields = _read_served(given, table)
    # 3. Do the others change nothing? That may depend on those that are served, and on the model.
    context = Context(fields, n_vocab, n_prompt, plain)
    for name, value in given.items():
        row = table.get(name)
        if isinstance(row, Unused) and not row.kind.fits(value):
            raise Refused(400, f"{name}={show(value)}: must be {row.kind.words}", name)
        if isinstance(row, Neutral) and not row.accepts(value, context):
            raise Refused(
                400,
                f"{name}={show(value)}: not implemented; leave it out, or send {row.words}",
                name,
            )
    # 4. Do they agree with each other?
    most = fields["max_tokens"]
    if fields["min_tokens"] > most >= 0:
        raise Refused(
            400,
            f"min_tokens={show(fields['min_tokens'])}: must be at most max_tokens={most}",
            "min_tokens",
        )
    if fields.get("top_logprobs") and not fields["logprobs"]:
        raise Refused(
            400,
            f"top_logprobs={fields['top_logprobs']}: needs logprobs=true; send both or neither",
            "top_logprobs",
        )
    return fields


def _read_served(given: dict[str, Any], table: Table) -> Fields:
    """The served parameters, with defaults. Each may be given by its own name or an alias."""
    fields = {name: row.default for name, row in table.items() if isinstance(row, Served)}
    keys: dict[str, str] = {}  # the name by which each was given
    for key, value in given.items():
        row = table.get(key)
        name = row.name if isinstance(row, Alias) else key
        if name not in fields or (name == "logprobs" and value is False):
            continue  # false, as in chat requests, means null
        served = table[name]
        assert isinstance(served, Served)  # like every name in `fields`
        kind = served.kind
        if not kind.fits(value):
            raise Refused(400, f"{key}={show(value)}: must be {kind.words}", key)
        if name in keys and fields[name] != value:
            raise Refused(
                400,
                f"{keys[name]}={show(fields[name])}, {key}={show(value)}: "
                f"these are names of one parameter; send one of them",
                key,
            )
        fields[name] = value
        keys[name] = key
    return fields
