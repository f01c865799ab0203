"""Every parameter of OpenAI's, vLLM's and llama.cpp's completions APIs.

A value is accepted if the request is the one without it, and refused by name if it would change the
answer. To add a case, add a line to a table.
"""

import json

import pytest
from server_fixtures import CHARS

from nanogpt.data import CharTokenizer
from nanogpt.serving import parameters
from nanogpt.serving.completions import Refused, RequestParser

READER = RequestParser(CHARS, "tiny", 24)
V = len(CHARS)
N = None  # left out and null are the same for every parameter

# name, value, and the other parameters on which it depends
ACCEPTED = [
    ("add_special_tokens", True),
    ("add_special_tokens", False),
    ("adaptive_decay", 0.9),
    ("adaptive_target", -1),
    ("allowed_token_ids", list(range(V))),
    ("backend_sampling", True),
    ("bad_words", []),
    ("best_of", 1),
    ("best_of", 1.0),
    ("best_of", 2, {"n": 2}),
    ("cache_prompt", False),
    ("cache_prompt", True),
    ("cache_salt", N),
    ("chat_format", 0),
    ("do_sample", True),
    ("do_sample", False, {"temperature": 0}),
    ("dry_allowed_length", 2),
    ("dry_base", 1.75),
    ("dry_multiplier", 0.0),
    ("dry_penalty_last_n", -1),
    ("dry_sequence_breakers", ["\n", ":", '"', "*"]),
    ("dynatemp_exponent", 1.0),
    ("dynatemp_range", 0),
    ("early_stopping", False),
    ("early_stopping", "never"),
    ("ec_transfer_params", {}),
    ("echo", False),
    ("frequency_penalty", 0),
    ("frequency_penalty", 0.0),
    ("frequency_penalty", -0.0),
    ("grammar", ""),
    ("grammar_lazy", False),
    ("grammar_triggers", []),
    ("guided_choice", []),
    ("guided_decoding_backend", "xgrammar"),
    ("guided_grammar", ""),
    ("guided_json", N),
    ("guided_regex", ""),
    ("guided_whitespace_pattern", "[ ]?"),
    ("id_slot", -1),
    ("id_slot", 3),
    ("ignore_eos", True),
    ("ignore_eos", False),
    ("image_data", []),
    ("include_stop_str_in_output", True),
    ("include_stop_str_in_output", False, {"stop": "a"}),
    ("json_schema", N),
    ("kv_transfer_params", {}),
    ("length_penalty", 1.0),
    ("length_penalty", 0.6),
    ("logit_bias", {}),
    ("logit_bias", []),
    ("logit_bias", {"5": 0}),
    ("logit_bias", [[5, 0.0]]),
    ("logits_processors", []),
    ("logprob_token_ids", []),
    ("logprobs", False),
    ("lora", []),
    ("lora", [{"id": 0, "scale": 0.0}]),
    ("max_completion_tokens", 16),
    ("max_new_tokens", 16),
    ("max_tokens", 16),
    ("max_tokens", 16.0),
    ("metadata", {"run": "7"}),
    ("min_keep", 0),
    ("min_keep", 1),
    ("min_p", 0),
    ("min_p", 0.05, {"temperature": 0}),
    ("min_tokens", 0),
    ("min_tokens", 5),
    ("min_tokens", 256, {"max_tokens": 256}),
    ("mirostat", 0),
    ("mirostat_eta", 0.1),
    ("mirostat_tau", 5.0),
    ("model", "tiny"),
    ("model", ""),
    ("multimodal_data", []),
    ("n", 1),
    ("n_cache_reuse", 256),
    ("n_cmpl", 1),
    ("n_discard", 0),
    ("n_indent", 0),
    ("n_keep", 0),
    ("n_keep", -1),
    ("n_predict", 16),
    ("n_probs", 0),
    ("no_repeat_ngram_size", 0),
    ("num_beams", 1),
    ("parse_tool_calls", False),
    ("penalize_nl", True),
    ("post_sampling_probs", False),
    ("post_sampling_probs", True),
    ("presence_penalty", 0.0),
    ("preserved_tokens", ["<a>"]),
    ("priority", 0),
    ("prompt_cache_key", "k"),
    ("prompt_cache_retention", "24h"),
    ("prompt_embeds", []),
    ("prompt_logprobs", N),
    ("prompt_logprobs", False),
    ("reasoning_budget_tokens", -1),
    ("reasoning_format", "auto"),
    ("repeat_last_n", 64),
    ("repeat_penalty", 1.0),
    ("repetition_detection", {}),
    ("repetition_penalty", 1.0),
    ("repetition_penalty", 1),
    ("request_id", "fox"),
    ("response_fields", []),
    ("response_format", {"type": "text"}),
    ("return_mm_kwargs", True),
    ("return_progress", False),
    ("return_token_ids", False),
    ("return_token_offsets", False),
    ("return_tokens", False),
    ("return_tokens_as_token_ids", False),
    ("return_tokens_as_token_ids", True),
    ("routed_experts_prompt_start", 0),
    ("safety_identifier", "me"),
    ("samplers", ["dry", "top_k", "typ_p", "top_p", "min_p", "xtc", "temperature"]),
    ("samplers", "edskypmxt"),
    ("samplers", ["top_k", "temperature"], {"temperature": 0.5, "top_k": 3}),
    ("samplers", ["temperature", "top_p"], {"temperature": 0.5, "top_p": 0.5}),
    ("samplers", ["top_k", "temperature"], {"temperature": 0, "top_k": 3}),
    ("seed", 5),
    ("service_tier", "auto"),
    ("session_id", "s"),
    ("skip_special_tokens", True),
    ("skip_special_tokens", False),
    ("slot_id", 0),
    ("spaces_between_special_tokens", False),
    ("speculative.n_max", 16),
    ("speculative.n_min", 0),
    ("speculative.ngram_m_hits", 1),
    ("speculative.ngram_size_m", 48),
    ("speculative.ngram_size_n", 12),
    ("speculative.p_min", 0.75),
    ("speculative.type", "none"),
    ("sse_ping_interval", -1),
    ("stop", []),
    ("stop", "é"),
    ("stop_token_ids", []),
    ("stop_token_ids", [151645, 2**40]),
    ("store", True),
    ("stream", False),
    ("stream_interval", 4),
    ("stream_options", {}),
    ("stream_options", {"include_usage": True, "include_obfuscation": False}),
    ("stream_options", {"include_usage": True, "continuous_usage_stats": N}),
    ("structural_tag", ""),
    ("structured_outputs", {}),
    ("structured_outputs", {"json": N, "disable_any_whitespace": False}),
    ("suffix", ""),
    ("suffix", N),
    ("t_max_predict_ms", 0),
    ("t_max_prompt_ms", -1),
    ("temperature", 1),
    ("temperature", 1.0),
    ("tfs_z", 1.0),
    ("thinking_forced_open", False),
    ("thinking_token_budget", -1),
    ("timings_per_token", False),
    ("top_k", -1),
    ("top_k", 0),
    ("top_k", V),
    ("top_k", 200),
    ("top_k", 1e18),
    ("top_n_sigma", -1.0),
    ("top_p", 1),
    ("top_p", 1.0),
    ("truncate_prompt_tokens", -1),
    ("truncate_prompt_tokens", 3),
    ("truncation_side", "left"),
    ("typical_p", 1.0),
    ("use_beam_search", False),
    ("user", "me"),
    ("vllm_xargs", {}),
    ("watermarking", False),
    ("xtc_probability", 0.0),
    ("xtc_threshold", 0.1),
    ("a_parameter_of_tomorrow", N),
    ("a_parameter_of_tomorrow", []),
]

REFUSED = [
    ("adaptive_target", 0.5),
    ("allowed_token_ids", [1, 2]),
    ("bad_words", ["ab"]),
    ("best_of", 2),
    ("best_of", 1, {"n": 2}),
    ("cache_salt", "x"),
    ("do_sample", False),
    ("do_sample", True, {"temperature": 0}),
    ("dry_multiplier", 0.8),
    ("dynatemp_range", 0.5),
    ("ec_transfer_params", {"a": 1}),
    ("frequency_penalty", 0.5),
    ("grammar", 'root ::= "a"'),
    ("guided_choice", ["a", "b"]),
    ("guided_grammar", 'root ::= "a"'),
    ("guided_json", {}),
    ("guided_regex", "a+"),
    ("image_data", [{"id": 1}]),
    ("json_schema", {}),
    ("kv_transfer_params", {"do_remote_decode": True}),
    ("logit_bias", {"5": -100}),
    ("logit_bias", [[5, False]]),
    ("logit_bias", [["ab", 1.0]]),
    ("logits_processors", ["x.y"]),
    ("logprob_token_ids", [1]),
    ("logprobs", True),
    ("logprobs", 21),
    ("lora", [{"id": 0, "scale": 1.0}]),
    ("max_tokens", -2),
    ("max_tokens", "16"),
    ("max_tokens", 1.5),
    ("max_tokens", True),
    ("n_predict", 4, {"max_tokens": 5}),
    ("min_keep", 2),
    ("min_p", 0.05),
    ("min_tokens", 17),
    ("mirostat", 2),
    ("model", "gpt-4"),
    ("model", 5),
    ("multimodal_data", ["x"]),
    ("n", 0),
    ("n", 2000),
    ("n", True),
    ("n_indent", 4),
    ("n_probs", 3),
    ("no_repeat_ngram_size", 3),
    ("num_beams", 5),
    ("post_sampling_probs", True, {"logprobs": 1}),
    ("presence_penalty", -0.5),
    ("priority", 1),
    ("prompt_embeds", "AAAA"),
    ("prompt_logprobs", 0),
    ("repeat_penalty", 1.1),
    ("repetition_detection", {"min_count": 3}),
    ("repetition_penalty", 1.2),
    ("repetition_penalty", True),
    ("repetition_penalty", "1.0"),
    ("request_id", "x" * 201),
    ("response_fields", ["content"]),
    ("response_format", {"type": "json_object"}),
    ("return_progress", True),
    ("return_token_ids", True),
    ("return_tokens", True),
    ("return_tokens_as_token_ids", True, {"logprobs": 1}),
    ("samplers", ["top_k"], {"temperature": 0.5}),
    ("samplers", ["top_p", "temperature"], {"temperature": 0.5, "top_p": 0.5}),
    ("samplers", [], {"temperature": 0.5}),
    ("samplers", "pt", {"temperature": 0.5, "top_p": 0.5}),
    ("seed", 2**64),
    ("seed", "5"),
    ("stop", [""]),
    ("stop", ["a"] * 17),
    ("stop_token_ids", [5]),
    ("stream", 1),
    ("stream_options", [": "]),
    ("stream_options", {"include_usage": "yes"}),
    ("stream_options", {"include_everything": True}),
    ("structural_tag", "{}"),
    ("structured_outputs", {"regex": "a+"}),
    ("suffix", "end"),
    ("t_max_predict_ms", 100),
    ("t_max_prompt_ms", 100),
    ("temperature", -1),
    ("temperature", "0.5"),
    ("tfs_z", 0.9),
    ("timings_per_token", True),
    ("top_k", -2),
    ("top_k", 1.5),
    ("top_n_sigma", 1.0),
    ("top_p", 1.1),
    ("truncate_prompt_tokens", 2),
    ("typical_p", 0.9),
    ("use_beam_search", True),
    ("vllm_xargs", {"a": 1}),
    ("watermarking", True),
    ("xtc_probability", 0.5),
    ("temprature", 0.5),
    ("messages", [{"role": "user", "content": "abc"}]),
]

# Refused for models whose vocabulary has control tokens only: tests/serving/test_chat.py.
WITH_CONTROL_TOKENS = {"add_special_tokens", "skip_special_tokens"}

# What a client may send by mistake or on purpose, whatever the parameter is.
ODD = [
    *(True, False, 0, 1, -1, 2, 0.5, -0.0, 1e308, -1e308, 10**400, -(10**400)),
    *("", "a", "1", "é\U0001f98a\u2028", "\ud800", "\x00\n\r\x1b[2J", "x" * 100_000),
    *([], [[]], [None], [True], [1, "a"], [{}], [10**30], ["x" * 1000] * 20),
    *({}, {"": {}}, {"type": "text", "x": 1}, {"a\nb": [1]}, {"5": "0"}),
]


def read(body: dict) -> list:
    return READER.read(json.dumps(body).encode())


def asked(body: dict) -> list:
    """What is computed and shown for a body, but for what names the answer."""
    found = []
    for one in read(body):
        request = one.request
        fields = {name: one.fields[name] for name in ("stop", "stream", "echo")}
        shown = (request.prompt.tolist(), request.max_new_tokens, request.sampling, request.seed)
        found.append((*shown, request.logprobs, request.echo, fields))
    return found


def label(value) -> str:
    return str(value)[:40]


@pytest.mark.parametrize("row", ACCEPTED, ids=label)
def test_a_value_that_changes_nothing_is_accepted(row):
    name, value, others = (*row, {})[:3]
    body = {"prompt": "abc", "seed": 5, **others}
    plain = asked({**body, "stop": value} if name == "stop" else body)
    assert asked({**body, name: value}) == plain


@pytest.mark.parametrize("row", REFUSED, ids=label)
def test_a_value_that_would_change_the_answer_is_refused_by_its_name(row):
    name, value, others = (*row, {})[:3]
    with pytest.raises(Refused) as caught:
        read({"prompt": "abc", **others, name: value})
    error = caught.value.body()["error"]
    assert caught.value.status == (404 if name == "model" else 400)
    assert error["type"] == "invalid_request_error"
    assert error["param"] in (name, "max_tokens")
    assert name in error["message"]
    assert one_line(error["message"])


def one_line(message: str) -> bool:
    return len(message.splitlines()) == 1 and message.isprintable() and len(message) < 400


@pytest.mark.parametrize("name", sorted({row[0] for row in ACCEPTED + REFUSED} | {"prompt", "\n"}))
def test_no_value_gives_more_than_one_line(name):
    deep = "[" * 900 + "]" * 900
    texts = [json.dumps(value) for value in ODD]
    texts += [deep, '{"a":' * 900 + "1" + "}" * 900, "NaN", "-Infinity", "1e999", "9" * 5000]
    for text in texts:
        body = f'{{"seed": 5, {json.dumps(name)}: {text}'
        body += "}" if name == "prompt" else ', "prompt": "a"}'
        body = body.replace('"seed": 5, "seed"', '"seed"')
        refusal = refused(body.encode())
        if refusal is not None:
            status = 404 if name == "model" and "JSON" not in str(refusal) else 400
            assert refusal.status == status
            assert one_line(str(refusal)), refusal
            json.dumps(refusal.body())


def refused(body: bytes) -> Refused | None:
    try:
        READER.read(body)
    except Refused as refusal:
        return refusal
    return None


def test_every_parameter_is_in_the_tables():
    accepted = {row[0] for row in ACCEPTED}
    refused = {row[0] for row in REFUSED}
    rows = parameters.PARAMETERS
    names = {name for name, row in rows.items() if not isinstance(row, parameters.Neutral)}
    assert set(rows) <= accepted
    assert set(rows) - names - WITH_CONTROL_TOKENS <= refused


@pytest.mark.parametrize(
    ("name", "value", "says"),
    [
        (
            "repetition_penalty",
            1.2,
            "repetition_penalty=1.2: not implemented; leave it out, or send 1",
        ),
        ("min_keep", 5, "min_keep=5: not implemented; leave it out, or send 0 or 1"),
        ("n_probs", 3, "or send 0; use logprobs instead"),
        ("max_tokens", "4", 'max_tokens="4": must be an integer of at least -1'),
        ("temprature", 0.5, "temprature=0.5: no such parameter (did you mean temperature?)"),
        ("user", 5, "user=5: must be a string"),
        ("min_tokens", 20, "min_tokens=20: must be at most max_tokens=16"),
        ("stream_options", {"usage": True}, "must be an object of include_usage, continuous"),
    ],
)
def test_a_refusal_says_what_to_send(name, value, says):
    with pytest.raises(Refused) as caught:
        read({"prompt": "abc", name: value})
    assert says in str(caught.value)


def test_one_parameter_under_two_names_is_refused_unless_they_agree():
    assert read({"prompt": "a", "max_tokens": 5, "n_predict": 5.0})[0].request.max_new_tokens == 5
    with pytest.raises(Refused, match="max_tokens=5, n_predict=4: these are names of one"):
        read({"prompt": "a", "max_tokens": 5, "n_predict": 4})


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
