"""Chat templates render as published, name what is wrong, and cannot hang or fill the machine."""

from __future__ import annotations

import datetime
import json
import re
import signal
import subprocess
import sys
import threading
from pathlib import Path

import pytest
import tokenizers
from tokenizers import models

from cugraphs.chat_template import ChatTemplate
from cugraphs.chat_template_worker import answer
from cugraphs.tokenizer import Tokenizer

USER = {"role": "user", "content": "Hi"}
CHAT = [
    {"role": "system", "content": "Be brief."},
    USER,
    {"role": "assistant", "content": "Hello"},
    {"role": "user", "content": " Bye "},
]

CHATML = (
    "{% for message in messages %}"
    "{{ '<|im_start|>' + message['role'] + '\n' + message['content'] + '<|im_end|>' + '\n' }}"
    "{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)
LLAMA2 = (
    "{% if messages[0]['role'] == 'system' %}{% set rest = messages[1:] %}"
    "{% set system = '<<SYS>>\n' + messages[0]['content'] + '\n<</SYS>>\n\n' %}"
    "{% else %}{% set rest = messages %}{% set system = '' %}{% endif %}"
    "{% for message in rest %}"
    "{% if (message['role'] == 'user') != (loop.index0 % 2 == 0) %}"
    "{{ raise_exception('roles must alternate') }}{% endif %}"
    "{% if message['role'] == 'user' %}"
    "{{ bos_token + '[INST] ' + (system if loop.first else '') + message['content'].strip()"
    " + ' [/INST]' }}"
    "{% else %}{{ ' ' + message['content'].strip() + ' ' + eos_token }}{% endif %}"
    "{% endfor %}"
)
TOKENS = {"bos_token": "<s>", "eos_token": "</s>"}


def one(source, **options):
    return ChatTemplate({"default": source}, TOKENS, **options)


def rendered(source, **variables):
    """Render in this process: what a template may do, without starting another."""
    request = {"source": source, "variables": variables, "max_characters": 10_000}
    values = json.loads(answer(json.dumps(request)))
    return values.get("text", values.get("error"))


def tokenizer(**ids):
    backend = tokenizers.Tokenizer(models.BPE({"<s>": 0, "</s>": 1, "<e>": 2}, []))
    options = {"prefix": (), "bos_token_id": 0, "eos_token_ids": frozenset({1})} | ids
    return Tokenizer(backend, **options)


def test_published_formats():
    """ChatML as OpenAI published it, and Llama 2's format as Meta's reference code writes it."""
    assert one(CHATML).render(CHAT) == (
        "<|im_start|>system\nBe brief.<|im_end|>\n<|im_start|>user\nHi<|im_end|>\n"
        "<|im_start|>assistant\nHello<|im_end|>\n<|im_start|>user\n Bye <|im_end|>\n"
        "<|im_start|>assistant\n"
    )
    assert one(LLAMA2).render(CHAT, add_generation_prompt=False) == (
        "<s>[INST] <<SYS>>\nBe brief.\n<</SYS>>\n\nHi [/INST] Hello </s><s>[INST] Bye [/INST]"
    )


def test_a_template_can_refuse_its_messages():
    template = one(LLAMA2, origins={"default": "M/chat_template.jinja"})
    with pytest.raises(
        ValueError,
        match=r"^M/chat_template.jinja: chat template default: refuses these messages: roles must",
    ):
        template.render([USER, USER])
    assert template.render([USER]) == "<s>[INST] Hi [/INST]"


@pytest.mark.parametrize(
    ("source", "text"),
    [
        ("{% if true %}\nx\n{% endif %}\ny", "x\ny"),  # trim_blocks
        ("    {% if true %}\nx{% endif %}", "x"),  # lstrip_blocks
        ("{% for i in range(9) %}{% if i == 2 %}{% break %}{% endif %}{{ i }}{% endfor %}", "01"),
        ("{{ {'b': '<é&\\'>', 'a': 1} | tojson }}", '{"b": "<é&\'>", "a": 1}'),
        ("{{ [1, 2] | tojson(indent=2) }}", "[\n  1,\n  2\n]"),
        ("{{ [1, 2] | tojson(separators=(',', ':')) }}", "[1,2]"),
        ("a{% generation %}b{{ 1 }}{% endgeneration %}c", "ab1c"),
        ("{{ tools is none }}{{ x is defined }}", "TrueFalse"),
        ("{{ '<b>' }}", "<b>"),
        ("{% set ns = namespace(n=0) %}{% for i in [1, 2] %}{% set ns.n = ns.n + i %}{% endfor %}"
         "{{ ns.n }}", "3"),
    ],
)  # fmt: skip
def test_what_templates_rely_on(source, text):
    assert rendered(source, tools=None) == text


def test_strftime_now_is_today():
    before = datetime.date.today()
    text = rendered("{{ strftime_now('%Y-%m-%d') }}")
    assert before <= datetime.date.fromisoformat(text) <= datetime.date.today()


@pytest.mark.parametrize(
    ("source", "message"),
    [
        ("{% for %}", r"line 1: "),
        ("a\nb\n{{ x | nosuch }}", r"line 3: No filter named 'nosuch'"),
        ("{% if x %}", r"line 1: Unexpected end of template"),
        ("{{ x.y.z }}", r"UndefinedError: 'x' is undefined"),
        ("{{ 1 / 0 }}", r"ZeroDivisionError: "),
        ("{{ messages.append(1) }}", r"SecurityError: "),
        ("{{ ''.__class__.__mro__[1].__subclasses__() }}", r"SecurityError: "),
        ("{{ cycler.__init__.__globals__.os.system('true') }}", r"SecurityError: |UndefinedError"),
        ("{% include '/etc/passwd' %}", r"TypeError: |no loader"),
        ("{{ range(10 ** 7) | list }}", r"OverflowError: Range too big"),
        ("{% macro f() %}{{ f() }}{% endmacro %}{{ f() }}", r"nests too deep"),
        ("{{ 'xy' * 5001 }}", r"OverflowError: text is longer than 10000 characters"),
        ("{% for i in range(99999) %}xx{% endfor %}", r"OverflowError: text is longer than 10000"),
    ],
)
def test_failures_are_one_line(source, message):
    found = rendered(source, messages=[USER])
    assert re.search(message, found)
    assert "\n" not in found


HOSTILE = {
    "nested loops without output": (
        "{% set r = range(99999) | list %}" + "{% for a in r %}" * 4 + "{% endfor %}" * 4
    ),
    "nested loops with output": (
        "{% for a in range(99999) %}{% for b in range(99999) %}{{ '' }}{% endfor %}{% endfor %}"
    ),
    "string multiplication": "{{ 'a' * 10 ** 12 }}",
    "constant power": "{{ 10 ** (10 ** 10) }}",
    "power": "{% set n = messages | length %}{{ (n + 9) ** ((n + 9) ** 9) }}",
    "padding": "{{ 'a'.ljust(10 ** 12) }}",
    "format width": "{{ '%1000000000000d' % 1 }}",
    "format method": "{{ '{:>1000000000000}'.format(1) }}",
    "doubling by concatenation": (
        "{% set ns = namespace(x='aa') %}"
        "{% for i in range(99) %}{% set ns.x = ns.x ~ ns.x %}{% endfor %}{{ ns.x }}"
    ),
    "doubling by replacing": (
        "{% set ns = namespace(x='aa') %}"
        "{% for i in range(99) %}{% set ns.x = ns.x.replace('a', 'aaaaaaaa') %}{% endfor %}"
    ),
    "a list that holds itself twice, 40 deep": (
        "{% set ns = namespace(x=[1]) %}"
        "{% for i in range(40) %}{% set ns.x = [ns.x, ns.x] %}{% endfor %}{{ ns.x == ns.x | list }}"
        "{{ ns.x | string | length }}"
    ),
    "recursion that branches": (
        "{% macro f(n) %}{% if n %}{{ f(n - 1) }}{{ f(n - 1) }}{% endif %}{% endmacro %}{{ f(60) }}"
    ),
    "lipsum": "{{ lipsum(n=10 ** 9) }}",
}


@pytest.fixture(scope="module")
def hostile():
    return ChatTemplate({"ok": "{{ messages[0].content }}", **HOSTILE}, {}, time_limit_s=0.5)


@pytest.mark.parametrize("name", HOSTILE)
def test_a_hostile_template_is_stopped_and_the_next_text_is_rendered(hostile, name, monkeypatch):
    with pytest.raises(ValueError) as caught:
        hostile.render([USER], name=name)
    who, _, found = str(caught.value).rpartition(f"chat template {name}: ")
    assert who == "ChatTemplate: "
    limits = "takes longer than 0.5 s|needs too much memory|OverflowError|ValueError|nests too deep"
    assert re.match(limits, found)
    assert "\n" not in found
    # A loaded machine may need more than the half second for an honest text.
    monkeypatch.setattr(hostile, "_time_limit_s", 30.0)
    assert hostile.render([USER], name="ok") == "Hi"


def test_the_size_limit_is_a_number_of_characters():
    template = one("{{ messages[0].content }}", max_characters=3)
    assert template.render([{"role": "user", "content": "你好é"}]) == "你好é"
    with pytest.raises(ValueError, match="text is longer than 3 characters"):
        template.render([{"role": "user", "content": "abcd"}])


def test_any_text_comes_through_unchanged():
    text = "é 你好 🎉 \x00 \r\n \u2028 {{ x }} \"'<&> \\n" + "x" * 100_000
    assert one("{{ messages[0].content }}").render([{"role": "user", "content": text}]) == text


def test_threads_share_a_template():
    template = one("{{ messages[0].content }}")
    found = {}

    def work(number):
        for _ in range(5):
            message = {"role": "user", "content": str(number)}
            found.setdefault(number, set()).add(template.render([message]))

    threads = [threading.Thread(target=work, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert found == {number: {str(number)} for number in range(4)}


def test_ctrl_c_reaches_the_program_and_not_the_renderer():
    """SIGINT to the whole group, as a terminal sends it: the next rendering still works."""
    program = (
        "import os, signal\n"
        "from cugraphs.chat_template import ChatTemplate\n"
        "t = ChatTemplate({'default': '{{ messages[0].content }}'}, {})\n"
        "m = [{'role': 'user', 'content': 'still here'}]\n"
        "t.render(m)\n"
        "first = t._worker\n"
        "try:\n"
        "    os.killpg(0, signal.SIGINT)\n"
        "    signal.pause()\n"
        "except KeyboardInterrupt:\n"
        "    pass\n"
        "print(t.render(m), t._worker is first)\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", program],
        capture_output=True,
        text=True,
        timeout=60,
        start_new_session=True,
        cwd=Path(__file__).parents[1],
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.default_int_handler),
    )
    assert (done.stdout, done.stderr) == ("still here True\n", "")


def test_a_renderer_that_died_is_replaced():
    template = one("{{ messages[0].content }}")
    assert template.render([USER]) == "Hi"
    template._worker._process.kill()
    template._worker._process.wait()
    assert template.render([USER]) == "Hi"


TEXT_PART = {"type": "text", "text": "Hi"}
BAD_MESSAGES = [
    ("Hi", TypeError, "messages is str, expected a list of messages"),
    ({"role": "user"}, TypeError, "messages is dict, expected a list of messages"),
    ([], ValueError, "messages is empty, expected one message or more"),
    (["Hi"], TypeError, "messages[0] is str, expected a dict with role and content"),
    ([USER, {"content": "a"}], ValueError, "messages[1]: role is missing, expected a string"),
    ([{"role": 1, "content": "a"}], ValueError, "messages[0]: role is 1, expected a string"),
    ([{"role": "", "content": "a"}], ValueError, "messages[0]: role is '', expected a string"),
    ([{"role": "user"}], ValueError, "messages[0]: content is missing, expected a string"),
    ([{"role": "user", "content": None}], ValueError, "messages[0]: content is NoneType, expected"),
    (
        [{"role": "user", "content": 5}],
        ValueError,
        "messages[0]: content is int, expected a string",
    ),
    ([{"role": "user", "content": []}], ValueError, "messages[0]: content is an empty list, expec"),
    ([{"role": "user", "content": ["a"]}], ValueError, "messages[0]: content[0] is str, expected"),
    ([{"role": "user", "content": [{}]}], ValueError, "messages[0]: content[0]: type is missing"),
    (
        [{"role": "user", "content": [{"type": "text"}]}],
        ValueError,
        'messages[0]: content[0]: text is missing, expected {"type": "text", "text": a string}',
    ),
    (
        [{"role": "user", "content": [{"type": "text", "text": 1}]}],
        ValueError,
        "messages[0]: content[0]: text is int, expected",
    ),
    (
        [USER, {"role": "user", "content": [TEXT_PART, {"type": "image_url", "image_url": {}}]}],
        ValueError,
        "messages[1]: content[1]: type is 'image_url', expected 'text': the model reads text only",
    ),
]


@pytest.mark.parametrize(("messages", "kind", "message"), BAD_MESSAGES)
def test_bad_messages_name_index_and_field(messages, kind, message):
    with pytest.raises(kind) as caught:
        one(CHATML).render(messages)
    assert f"ChatTemplate: {message}" in str(caught.value)
    assert "\n" not in str(caught.value)


def test_text_parts_are_lines_of_one_string():
    """As OpenAI's API sends them, and joined as vLLM joins them for templates of strings."""
    parts = [TEXT_PART, {"type": "text", "text": " there\n", "cache_control": {}}]
    messages = [{"role": "user", "content": parts, "name": "x"}, {**USER, "content": (TEXT_PART,)}]
    source = "{{ messages[0].content | tojson }} {{ messages[0].name }} {{ messages[1].content }}"
    assert one(source).render(messages) == '"Hi\\n there\\n" x Hi'
    assert messages[0]["content"] is parts  # the caller's own messages stay as they are


def test_a_message_that_calls_tools_needs_no_content():
    message = {"role": "assistant", "content": None, "tool_calls": [{"name": "f"}]}
    assert one("{{ messages[0].tool_calls[0].name }}").render([message]) == "f"


def test_what_is_no_json_is_refused():
    with pytest.raises(
        TypeError, match="chat template default: a message or a variable is no JSON"
    ):
        one(CHATML).render([USER], tools=[print])


def test_template_names():
    templates = {"default": "d", "tool_use": "t{{ tools[0] }}", "rag": "r{{ documents[0] }}"}
    template = ChatTemplate(templates, {})
    assert template.names == ("default", "tool_use", "rag")
    assert template.render([USER]) == "d"
    assert template.render([USER], tools=["f"]) == "tf"
    assert template.render([USER], name="rag", documents=["x"]) == "rx"
    with pytest.raises(ValueError, match="name is 'no', expected one of default, tool_use, rag"):
        template.render([USER], name="no")
    with pytest.raises(ValueError, match="name is None, expected one of a, b"):
        ChatTemplate({"a": "", "b": ""}, {}).render([USER])
    assert ChatTemplate({"only": "o"}, {}).render([USER]) == "o"


def write(folder, files):
    for name, content in files.items():
        path = folder / name
        path.parent.mkdir(exist_ok=True)
        if isinstance(content, bytes):
            path.write_bytes(content)
        else:
            text = content if isinstance(content, str) else json.dumps(content)
            path.write_text(text, encoding="utf-8")


@pytest.mark.parametrize(
    ("files", "expected"),
    [
        ({"tokenizer_config.json": {"chat_template": "1"}}, {"default": "1"}),
        (
            {
                "tokenizer_config.json": {
                    "chat_template": [
                        {"name": "default", "template": "1"},
                        {"name": "tool_use", "template": "2"},
                    ]
                }
            },
            {"default": "1", "tool_use": "2"},
        ),
        ({"chat_template.json": {"chat_template": "3"}}, {"default": "3"}),
        ({"chat_template.jinja": "4"}, {"default": "4"}),
        ({"chat_template.jinja": b"\xef\xbb\xbf4\r\n5"}, {"default": "4\n5"}),
        (
            {
                "tokenizer_config.json": {"chat_template": "1"},
                "chat_template.json": {"chat_template": "3"},
                "chat_template.jinja": "é",
                "additional_chat_templates/rag.jinja": "5",
            },
            {"default": "é", "rag": "5"},
        ),
        ({"tokenizer_config.json": {"chat_template": "1"}, "chat_template.json": {}},
         {"default": "1"}),
    ],
)  # fmt: skip
def test_where_templates_are_found(tmp_path, files, expected):
    write(tmp_path, files)
    template = ChatTemplate.load(tmp_path, tokenizer())
    assert set(template.names) == set(expected)
    assert {name: template.render([USER], name=name) for name in expected} == expected


def test_no_template_is_none(tmp_path):
    assert ChatTemplate.load(tmp_path, tokenizer()) is None
    write(tmp_path, {"tokenizer_config.json": {"bos_token": "<s>"}})
    assert ChatTemplate.load(tmp_path, tokenizer()) is None


@pytest.mark.parametrize(
    ("tokenizer_config", "ids", "text"),
    [
        ({}, {}, "<s>|</s>|"),
        ({}, {"eos_token_ids": frozenset({1, 2})}, "<s>||"),  # which of the two is not known
        ({}, {"bos_token_id": None}, "|</s>|"),
        ({"bos_token": "[B]", "eos_token": {"content": "<e>"}, "pad_token": "<p>"}, {},
         "[B]|<e>|<p>"),
        ({"eos_token": None}, {}, "<s>|</s>|"),
    ],
)  # fmt: skip
def test_special_tokens_are_in_scope(tmp_path, tokenizer_config, ids, text):
    source = "{{ bos_token }}|{{ eos_token }}|{{ pad_token }}"
    write(tmp_path, {"tokenizer_config.json": tokenizer_config, "chat_template.jinja": source})
    assert ChatTemplate.load(tmp_path, tokenizer(**ids)).render([USER]) == text


def test_special_tokens_map_is_in_scope_where_tokenizer_config_has_no_such_token(tmp_path):
    write(
        tmp_path,
        {
            "special_tokens_map.json": {"eos_token": "[E]", "pad_token": {"content": "<p>"}},
            "tokenizer_config.json": {"eos_token": "<e>"},
            "chat_template.jinja": "{{ bos_token }}|{{ eos_token }}|{{ pad_token }}",
        },
    )
    assert ChatTemplate.load(tmp_path, tokenizer()).render([USER]) == "<s>|<e>|<p>"


@pytest.mark.parametrize(
    ("files", "message"),
    [
        ({"tokenizer_config.json": "{"}, "tokenizer_config.json is not valid JSON ("),
        ({"chat_template.json": "[]"}, "chat_template.json holds an array, expected one JSON obj"),
        (
            {"tokenizer_config.json": {"chat_template": 5}},
            "tokenizer_config.json: chat_template is int, expected a string or a list",
        ),
        (
            {"tokenizer_config.json": {"chat_template": [{"name": "a"}]}},
            "tokenizer_config.json: chat_template[0] lacks a string, expected name and template",
        ),
        ({"chat_template.jinja": b"\xff"}, "chat_template.jinja: cannot be read as UTF-8 text ("),
        (
            {"chat_template.jinja": "version https://git-lfs.github.com/spec/v1\n"},
            "chat_template.jinja is a git-lfs pointer, expected the file it points to; run",
        ),
    ],
)
def test_broken_files_are_named(tmp_path, files, message):
    write(tmp_path, files)
    with pytest.raises(ValueError) as caught:
        ChatTemplate.load(tmp_path, tokenizer())
    assert f"{tmp_path}/{message}" in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_syntax_error_names_the_file_and_the_line(tmp_path):
    write(tmp_path, {"chat_template.jinja": "a\n{% for %}"})
    template = ChatTemplate.load(tmp_path, tokenizer())
    with pytest.raises(ValueError, match=r"chat_template\.jinja: chat template default: line 2: "):
        template.render([USER])
