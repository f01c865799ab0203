"""Chat templates give the text of transformers; what they raise is one line."""

from __future__ import annotations

import pytest
import transformers
from pretrained_fixtures import (
    CHAT,
    SPECIALS,
    as_5_24,
    change_json,
    their_tokenizer_json,
    write_tokenizer,
)

from nanogpt.pretrained.chat import render
from nanogpt.pretrained.folder_tokenizer import tokenizer_of_folder
from nanogpt.pretrained.needs import PretrainedError
from nanogpt.pretrained.tokenizer import PretrainedTokenizer

NAMES = {"bos_token": SPECIALS[0], "eos_token": SPECIALS[2]}
HELLO = [{"role": "user", "content": "Hello"}]


@pytest.fixture(scope="module")
def ours(tmp_path_factory) -> PretrainedTokenizer:
    folder = tmp_path_factory.mktemp("tokenizer")
    write_tokenizer(folder)
    return tokenizer_of_folder(folder)


@pytest.fixture(scope="module")
def theirs(tmp_path_factory):
    path = tmp_path_factory.mktemp("tokenizer") / "tokenizer.json"
    path.write_text(their_tokenizer_json(), encoding="utf-8")
    return transformers.PreTrainedTokenizerFast(
        tokenizer_file=str(path), chat_template=CHAT, **NAMES
    )


# ------------------------------------------------------------------ the text
# Templates in the manner of the families' own, with what each of them needs of Jinja.

TEMPLATES = {
    "ChatML with a default system message": """{% if messages[0]['role'] != 'system' %}
{{- '<|im_start|>system\\nYou help.<|im_end|>\\n' }}{% endif %}
{%- for message in messages %}
    {{- '<|im_start|>' ~ message.role ~ '\\n' ~ (message.content or '') ~ '<|im_end|>\\n' }}
{%- endfor %}
{% if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}""",
    "Llama 2": """{% if messages[0].role == 'system' %}{% set rest = messages[1:] %}
{% set first = '<<SYS>>\\n' + messages[0]['content'] + '\\n<</SYS>>\\n\\n' %}{% else %}
{% set rest = messages %}{% set first = '' %}{% endif %}
{% for m in rest %}
{% if (m.role == 'user') != (loop.index0 % 2 == 0) %}{{ raise_exception('must alternate') }}
{% endif %}
{% if m.role == 'user' %}
{{ bos_token + '[INST] ' + (first if loop.first else '') + m.content.strip() + ' [/INST]' }}
{% else %}{{ ' ' + m.content.strip() + ' ' + eos_token }}{% endif %}
{% endfor %}""",
    "Qwen 3": """{%- set ns = namespace(last=messages|length - 1, found=false) %}
{%- for m in messages[::-1] %}{% if not ns.found and m.role == 'user' %}{% set ns.found = true %}
{%- set ns.last = messages|length - loop.index %}{% endif %}{% endfor %}
{%- for m in messages %}{{- '<|im_start|>' + m.role + '\\n' }}
{%- if m.reasoning_content is string and loop.index0 > ns.last %}
{{- '<think>\\n' + m.reasoning_content.strip('\\n') + '\\n</think>\\n\\n' }}{% endif %}
{{- (m.content if m.content is string else '').lstrip('\\n') + '<|im_end|>\\n' }}{% endfor %}
{%- if add_generation_prompt %}{{- '<|im_start|>assistant\\n' }}
{%- if enable_thinking is defined and enable_thinking is false %}
{{- '<think>\\n\\n</think>\\n\\n' }}{% endif %}{% endif %}""",
    "SmolLM3": """{%- set today = strftime_now('%d %B %Y') -%}
{%- if enable_thinking is not defined %}{% set enable_thinking = true %}{% endif %}
{{- 'Today: ' + today + ('/think' if enable_thinking else '/no_think') }}
{%- for m in messages %}{% if m.role == 'assistant' %}{% generation %}
{% set inner = 'x' %}{{- '<|im_start|>assistant\\n' + m.content + '<|im_end|>' + inner }}
{% endgeneration %}{{ inner }}{% else %}
{{- '<|im_start|>' + m.role + '\\n' + m.content + '<|im_end|>\\n' }}{% endif %}{% endfor %}""",
    "Phi-4": """{% for m in messages %}{% if m.role == 'assistant' %}<|im_start|>assistant<|im_sep|>
{%- generation -%}{{ m.content + '<|im_end|>' }}{%- endgeneration -%}
{% else %}{{ '<|im_start|>' + m.role + '<|im_sep|>' + m.content + '<|im_end|>' }}{% endif %}
{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant<|im_sep|>' }}{% endif %}""",
    "Mistral's tools": """{{- bos_token }}
{%- if tools %}[TOOLS]{{ tools | tojson }}[/TOOLS]{% endif %}
{%- for m in messages %}{% if m.tool_calls is defined %}
{%- for call in m.tool_calls %}{% set f = call.function if call.function else call %}
{{- '[CALL]' ~ {'name': f.name, 'arguments': f.arguments, 'id': call.id} | tojson }}{% endfor %}
{%- elif m.role == 'tool' %}{{- '[RESULT]' ~ m.tool_call_id ~ m.name ~ m.content ~ '[/RESULT]' }}
{%- else %}{{- '[' ~ m.role ~ ' ' ~ m.name ~ ']' ~ m.content }}{% endif %}{% endfor %}""",
    "content in parts": """{% for m in messages %}{{ m.role | capitalize }}:
{%- if m.content is string %} {{ m.content }}{% else %}{% for part in m.content or [] %}
{% if part['type'] == 'text' %}{{ ' ' + part.text }}{% else %}<image>{% endif %}{% endfor %}
{% endif %}
{{ '\\n' }}{% endfor %}""",
    "JSON in all forms": """{% set d = {'b': 'é<&', 'a': [1, 2.5, none, true]} %}{{ d | tojson }}
{{ d | tojson(indent=2) }}{{ d | tojson(ensure_ascii=true, sort_keys=true) }}
{{ d | tojson(separators=(',', ':')) }}{{ messages | tojson(indent=4) }}{{ dict(x=1) | tojson }}""",
    "loops, macros and filters": """{%- macro turn(m, mark='>') -%}
{{ mark * 2 ~ m.role | upper }}: {{ m.content | default('-', true) | string | replace('l', 'L') }}
{%- endmacro -%}
{% for m in messages if m.role != 'system' %}{% if loop.index > 3 %}{% break %}{% endif %}
{% if m.role == 'tool' %}{% continue %}{% endif %}{{ turn(m, mark='*') }}
{% else %}nobody{% endfor %}{{ messages | map(attribute='role') | join(',') }}
{{ messages | selectattr('role', 'equalto', 'user') | list | length }}{{ unknown }}""",
    "what there is": """{{ tools is none }}{{ documents is none }}{{ add_generation_prompt }}
{{ bos_token }}{{ eos_token }}{{ pad_token is defined }}{{ messages[0].keys() | list }}""",
}
CONVERSATIONS = {
    "a question": [{"role": "user", "content": "  Why is the sky blue? 🙂\n"}],
    "a system message": [
        {"role": "system", "content": "Be <b>brief</b> & kind."},
        {"role": "user", "content": "é 中"},
        {"role": "assistant", "content": "Rayleigh\nscattering."},
        {"role": "user", "content": "<|im_end|> 'quoted' \"more\""},
    ],
    "names and other fields": [
        {"role": "user", "content": "Hi", "name": "Ada", "id": "m1", "extra": {"a": [1, None]}},
        {"role": "assistant", "content": "Hello", "reasoning_content": "\nthey greet\n", "n": None},
    ],
    "reasoning by another name": [
        *HELLO,
        {"role": "assistant", "content": "4", "thinking": "2 + 2", "reasoning": None},
    ],
    "tools": [
        {"role": "user", "content": "Rain?"},
        {
            "role": "assistant",
            "content": None,
            "tool_calls": [
                {
                    "id": "c1",
                    "type": "function",
                    "function": {"name": "rain", "arguments": {"place": "Köln", "n": 1}},
                }
            ],
        },
        {"role": "tool", "name": "rain", "tool_call_id": "c1", "content": '{"mm": 3}'},
    ],
    "parts": [
        {"role": "user", "content": [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]}
    ],
}
VARIABLES = [
    {},
    {"enable_thinking": False, "tools": [{"type": "function", "function": {"name": "rain"}}]},
    {"bos_token": "<other>", "documents": [{"title": "t", "text": "x"}], "unknown": 1.5},
]


@as_5_24
@pytest.mark.parametrize("name", TEMPLATES)
def test_a_template_gives_the_text_of_transformers(name, theirs):
    template = TEMPLATES[name]
    texts = set()
    for messages in CONVERSATIONS.values():
        for variables in VARIABLES:
            for answer in (True, False):
                options = {"add_generation_prompt": answer, **variables}
                try:
                    expected = theirs.apply_chat_template(
                        messages, chat_template=template, tokenize=False, **options
                    )
                except Exception:  # such as parts in a template that adds strings
                    with pytest.raises(ValueError, match="refuses these messages"):
                        render(template, messages, answer, NAMES, variables)
                else:
                    assert render(template, messages, answer, NAMES, variables) == expected
                    texts.add(expected)
    assert len(texts) > 3, "so that most of these conversations have a text"


@pytest.mark.parametrize("answer", [True, False])
def test_the_tokens_of_a_chat_are_those_of_transformers(answer, ours, theirs):
    messages = CONVERSATIONS["a system message"]
    options = {"add_generation_prompt": answer, "return_dict": True}
    ids = theirs.apply_chat_template(messages, **options)["input_ids"]
    assert ours.chat(messages, answer).tolist() == ids
    assert ours.chat_text(messages, answer) == theirs.decode(ids)


def test_variables_reach_the_template(ours):
    template = "{{ enable_thinking }}{{ tools }}{{ bos_token }}"
    tokenizer = PretrainedTokenizer(ours.tokenizer, (), template, NAMES)
    assert tokenizer.chat_text(HELLO) == "None<|endoftext|>"
    variables = {"enable_thinking": False, "tools": [1], "bos_token": "the"}
    assert tokenizer.chat_text(HELLO, variables=variables) == "False[1]the"
    assert (
        tokenizer.chat(HELLO, variables=variables).tolist() == ours.encode("False[1]the").tolist()
    )


@pytest.mark.parametrize(
    ("messages", "variables", "words"),
    [
        ([], {}, r"messages=\[\]: pass a list"),
        (["hello"], {}, "its role must be a string"),
        ([{"role": "user"}], {}, "its content must be a string"),
        ([{"role": "user", "content": 5}], {}, "its content must be a string"),
        (HELLO, {"messages": []}, "variables='messages': not a name"),
        (HELLO, {"add_generation_prompt": False}, "variables='add_generation_prompt'"),
    ],
)
def test_a_wrong_argument_is_named(messages, variables, words, ours):
    with pytest.raises(ValueError, match=words) as caught:
        ours.chat(messages, variables=variables)
    assert "\n" not in str(caught.value)


def test_a_model_without_a_template_has_no_chat(ours):
    with pytest.raises(ValueError, match="no chat template"):
        PretrainedTokenizer(ours.tokenizer).chat(HELLO)


def test_half_a_surrogate_pair_is_reported_as_in_any_text(ours):
    with pytest.raises(ValueError, match="not valid Unicode"):
        ours.chat([{"role": "user", "content": "\ud800"}])


# ------------------------------------------------------------------ where templates are found


def test_a_template_is_found_where_transformers_finds_it(tmp_path):
    """Each step hides the one before it, as in transformers."""
    write_tokenizer(tmp_path)
    config = tmp_path / "tokenizer_config.json"

    def check(text: str) -> None:
        theirs = transformers.AutoTokenizer.from_pretrained(tmp_path)
        assert theirs.apply_chat_template(HELLO, tokenize=False) == text
        assert tokenizer_of_folder(tmp_path).chat_text(HELLO) == text

    change_json(config, eos_token=SPECIALS[2], chat_template="a field")
    check("a field")
    several = [{"name": "tool_use", "template": "no"}, {"name": "default", "template": "one of"}]
    change_json(config, chat_template=several)
    check("one of")
    change_json(config, chat_template={"default": "by name", "tool_use": "no"})
    check("by name")
    (tmp_path / "chat_template.jinja").write_text("a file", encoding="utf-8")
    check("a file")
    (tmp_path / "additional_chat_templates").mkdir()
    (tmp_path / "additional_chat_templates" / "tool_use.jinja").write_text("no", encoding="utf-8")
    check("a file")
    (tmp_path / "additional_chat_templates" / "default.jinja").write_text("so", encoding="utf-8")
    check("so")


def test_a_template_that_cannot_be_read_is_named(tmp_path):
    write_tokenizer(tmp_path)
    (tmp_path / "chat_template.jinja").write_bytes(b"\xff")
    with pytest.raises(PretrainedError, match="chat_template.jinja cannot be read"):
        tokenizer_of_folder(tmp_path)


# ------------------------------------------------------------------ templates that raise

RAISING = {
    "{{ raise_exception('roles must alternate') }}": "roles must alternate",
    "{{ raise_exception('two\nlines') }}": "two",
    "{{ raise_exception('\x1b[31mred') }}": r"\(\\x1b\[31mred\)",
    "{{ raise_exception('\\ud800') }}": r"\(\\ud800\)",
    "{{ messages.__class__.__mro__ }}": "unsafe",
    "{{ messages.append(1) }}": "unsafe",
    "{{ namespace(_x=1) }}": "may not have the entry",
    "{% for i in range(10**12) %}{% endfor %}": "range",
    "{% if %}": "Expected an expression",
    "{{ 'x'.encode('y') }}": "unknown encoding",  # LookupError
    "{{ messages | map('nothing') | list }}": "No filter named",  # RuntimeError
    "{{ namespace().x.y }}": "no attribute",  # AttributeError
    "{% break %}": "outside loop",  # SyntaxError
    "{% macro f(x) %}{{ f(x) }}{% endmacro %}{{ f(1) }}": "recursion",  # RecursionError
    "{{ 'a' * 10**10 }}": "more than 16,777,216 characters",
    "{{ 10**10 * 'ab' }}": "more than 16,777,216 characters",
    "{{ ([1] * 10**9) | length }}": "more than 16,777,216 characters",
    "{% for i in range(99) %}{{ 'a' * 10**6 }}{% endfor %}": "more than 16,777,216 characters",
    # Two loops, one in the other: minutes without a bound of both.
    "{% for i in range(99999) %}{% for j in range(99999) %}{% endfor %}{% endfor %}": "ranges",
    "{% for i in range(9999) %}{{ range(999) | sum }}{% endfor %}": "more than 1,000,000 numbers",
}


@pytest.mark.parametrize("template", RAISING, ids=range(len(RAISING)))
def test_an_error_of_a_template_is_one_line(template):
    with pytest.raises(ValueError, match=RAISING[template]) as caught:
        render(template, HELLO, True, {})
    assert str(caught.value).isprintable()
    assert len(str(caught.value)) < 400


def test_a_long_chat_may_have_a_range_over_its_messages_for_each_of_them():
    messages = [{"role": "user", "content": "a"}] * 400
    each = "{% for i in range(messages | length) %}{% endfor %}b"
    template = "{% for m in messages %}" + each + "{% endfor %}"
    assert render(template, messages, True, {}) == "b" * 400
