"""Chat templates render as in `transformers`, in a sandbox, within limits."""

from __future__ import annotations

import pytest
from transformers.utils.chat_template_utils import render_jinja_template

from app.prompt.chat_template import MAX_TEMPLATE_CHARS, apply_chat_template, unused_mark
from app.prompt.template_process import MAX_TEXT_CHARS
from app.protocol.messages import Message
from gpu import InvalidRequest
from tests.app.fake_tokenizer import CHAT_TEMPLATE

CONVERSATION = [
    Message("system", "You are <b>kind</b> & brief."),
    Message("user", 'What is "café" in Ω? 🦊'),
    Message("assistant", "  A place.  "),
    Message("user", "Thanks\n\n"),
]

CHATML = """\
{%- for message in messages %}
    {%- if loop.first and message.role != 'system' %}
        {{- '<|im_start|>system\\nHelp.<|im_end|>\\n' }}
    {%- endif %}
    {{- '<|im_start|>' + message['role'] + '\\n' + message['content'] + '<|im_end|>' + '\\n' }}
{%- endfor %}
{%- if add_generation_prompt %}
    {{- '<|im_start|>assistant\\n' }}
{%- endif %}
"""
LLAMA_2 = """\
{% if messages[0]['role'] == 'system' %}
{% set loop_messages = messages[1:] %}
{% set system_message = messages[0]['content'] %}
{% else %}
{% set loop_messages = messages %}
{% set system_message = false %}
{% endif %}
{% for message in loop_messages %}
{% if (message['role'] == 'user') != (loop.index0 % 2 == 0) %}
{{ raise_exception('Roles must alternate user/assistant') }}
{% endif %}
{% if loop.index0 == 0 and system_message %}
{% set content = '<<SYS>>\\n' + system_message + '\\n<</SYS>>\\n\\n' + message['content'] %}
{% else %}
{% set content = message['content'] %}
{% endif %}
{% if message['role'] == 'user' %}
{{ bos_token + '[INST] ' + content.strip() + ' [/INST]' }}
{% else %}
{{ ' ' + content.strip() + ' ' + eos_token }}
{% endif %}
{% endfor %}
"""
ODDITIES = """\
{% set ns = namespace(n=0) %}
{%- macro shown(m, indent) -%}
{{ ' ' * indent }}{{ m | tojson }} {{ m.content | tojson(indent=2) }}
{%- endmacro %}
{% for message in messages if message.role != 'system' %}
    {% set ns.n = ns.n + 1 %}
    {% if ns.n > 2 %}{% break %}{% endif %}
    {% generation %}{{ shown(message, 2 ** 2) }}{% endgeneration %}

{% endfor %}
{{ ns.n }} {{ missing }} {{ tools is none }} {{ strftime_now('%%') }} {{ messages | length }}
"""
TEMPLATES = {"chatml": CHATML, "llama 2": LLAMA_2, "oddities": ODDITIES, "ours": CHAT_TEMPLATE}
TOKENS = {"bos_token": "<s>", "eos_token": "</s>"}


def plain(messages: list[Message]) -> list[dict[str, str]]:
    return [{"role": message.role, "content": message.content} for message in messages]


@pytest.mark.parametrize("template", TEMPLATES.values(), ids=TEMPLATES)
@pytest.mark.parametrize("prompt", [True, False])
def test_it_renders_as_transformers_does(template: str, prompt: bool) -> None:
    (expected,), _ = render_jinja_template(
        [plain(CONVERSATION)], chat_template=template, add_generation_prompt=prompt, **TOKENS
    )
    assert (
        apply_chat_template(template, CONVERSATION, add_generation_prompt=prompt, **TOKENS)
        == expected
    )


@pytest.mark.parametrize(
    "template", [CHATML, LLAMA_2, CHAT_TEMPLATE], ids=["chatml", "llama", "ours"]
)
@pytest.mark.parametrize("begun", ["Once upon", "Once upon a ", "  x", "y\n", "{{ 1 }}"])
def test_it_continues_as_transformers_does(template: str, begun: str) -> None:
    messages = [Message("user", "Hi"), Message("assistant", begun)]
    (expected,), _ = render_jinja_template(
        [plain(messages)], chat_template=template, continue_final_message=True, **TOKENS
    )
    assert apply_chat_template(template, messages, continue_final=True, **TOKENS) == expected


def test_a_final_message_that_the_template_drops_cannot_be_continued() -> None:
    messages = [Message("user", "Hi"), Message("assistant", "Ho")]
    with pytest.raises(InvalidRequest, match="leaves out the last message"):
        apply_chat_template("{{ messages[0].content }}", messages, continue_final=True)


REFUSED = {
    "says no": ("{{ raise_exception('only two roles') }}", "only two roles"),
    "says no at length": ("{{ raise_exception('x' * 10**6) }}", "x{1000}$"),
    "does not parse": ("{% if %}", "Expected an expression"),
    "include": ("{% include 'x' %}", "no loader"),
    "import": ("{% import 'os' as os %}", "no loader"),
    "subclasses": ("{{ ().__class__.__base__.__subclasses__() }}", "unsafe"),
    "cycler": ("{{ cycler.__init__.__globals__ }}", "unsafe"),
    "changes a list": ("{{ messages.append(1) }}", "unsafe"),
    "changes a message": ("{{ messages[0].update(role='x') }}", "unsafe"),
    "large range": ("{% for i in range(10**9) %}{% endfor %}", "Range too big"),
    "lorem ipsum": ("{{ lipsum(n=10**7) }}", "lipsum"),
    "namespace": ("{% set ns = namespace(__class__=1) %}", "underscore"),
    "namespace later": ("{% set ns = namespace() %}{% set ns.__dict__ = 1 %}", "underscore"),
    "division": ("{{ 1 / 0 }}", "ZeroDivisionError"),
    "recursion": ("{% macro f() %}{{ f() }}{% endmacro %}{{ f() }}", "RecursionError"),
    "not Unicode": ("{{ '%c' % 0xd800 }}", "half of a surrogate"),
    "raises what is not Unicode": ("{{ raise_exception('no %c' % 0xd800) }}", "no \\?"),
}


@pytest.mark.parametrize(("template", "reason"), REFUSED.values(), ids=REFUSED)
def test_a_template_that_misbehaves_is_refused(template: str, reason: str) -> None:
    with pytest.raises(InvalidRequest, match=reason) as refusal:
        apply_chat_template(template, CONVERSATION)
    assert refusal.value.param == "messages"


@pytest.mark.parametrize(
    "template",
    [
        "{{ ''.__class__ }}",
        "{{ raise_exception.__globals__ }}",
        "{{ '{0.__class__}'.format(messages) }}",
        "{{ messages | attr('__class__') }}",
        "{{ messages | map(attribute='__class__') | join }}",
        "{{ strftime_now.__closure__ }}",
        "{{ dict.mro }}",
        "{{ dict.__init__ }}",
        "{{ namespace.__init__ }}",
        "{{ ''.format.__self__ }}",
        "{{ self.__init__ }}",
        "{{ messages[0]['__class__'] }}",
        "{{ (messages | first).__class__ }}",
        "{{ messages | selectattr('__class__') | list | join }}",
        "{{ '%s' | format(messages.__class__) }}",
    ],
)
def test_a_template_sees_nothing_of_python(template: str) -> None:
    assert apply_chat_template(template, CONVERSATION) == ""


ALLOWED = {
    "'a'.center(5) ~ 1 ~ none": "  a  1None",
    "'%05.1f|%s|%%' % (2.25, 'x')": "002.2|x|%",
    "'{:>5}|{a}'.format('x', a=[1])": "    x|[1]",
    "'a\tb'.expandtabs() ~ '-'.join(['a', 'b'])": "a       ba-b",
    "'aba' | replace('a', 'xy') ~ 'a,b'.split(',', 1)": "xybxy['a', 'b']",
    "['a', 1, none] | join(', ') ~ ([1] + [2])": "a, 1, None[1, 2]",
    "'%s-%s' | format(1, 'b') ~ ('a\nb' | indent(2, true))": "1-b  a\n  b",
    "dict(a=1) | tojson ~ dict.fromkeys('ab', 1)": "{\"a\": 1}{'a': 1, 'b': 1}",
    "namespace(self=1).self + 10 ** 9 * 0.5 - 3 % 2": "500000000.0",
    "1700000000 + 1700000000": "3400000000",
    "'<b>a</b> &amp;' | striptags ~ ('<' | e) ~ ('<' | forceescape)": "a &&lt;&lt;",
    "'a b/c' | urlencode ~ ({'a': 1} | xmlattr) ~ ('http://a.bc' | urlize)": ""
    'a%20b/c a="1"<a href="http://a.bc" rel="noopener">http://a.bc</a>',
    "[1, {'a': 2}] | pprint ~ (1000 | filesizeformat) ~ (2.5 | round)": "[1, {'a': 2}]1.0 kB2.0",
    "'\\N{FOX FACE}' ~ ('ÄB' | lower | capitalize | center(4))": "🦊 Äb ",
    "{'b': 1, 'a': 2} | dictsort ~ ([3, 1] | sort | first) ~ ([1, 2] | random in [1, 2])": ""
    "[('a', 2), ('b', 1)]1True",
    "[1, 2, 3] | slice(2) | map('list') | list ~ ('2' | int + 1) ~ ('a b' | wordcount)": ""
    "[[1, 2], [3]]32",
    "range(3) | map('string') | map('center', 3) | join": " 0  1  2 ",
}


@pytest.mark.parametrize("expression", ALLOWED)
def test_expressions_give_what_they_give_in_transformers(expression: str) -> None:
    template = "{{ " + expression + " }}"
    (expected,), _ = render_jinja_template([plain(CONVERSATION)], chat_template=template)
    assert apply_chat_template(template, CONVERSATION) == expected == ALLOWED[expression]


def test_text_and_template_have_a_maximum_length() -> None:
    assert len(apply_chat_template("{{ 'a' * 4194304 }}", CONVERSATION)) == MAX_TEXT_CHARS
    with pytest.raises(InvalidRequest, match="characters"):
        apply_chat_template("x" * (MAX_TEMPLATE_CHARS + 1), CONVERSATION)


def test_a_mark_occurs_in_none_of_the_texts() -> None:
    assert unused_mark(["\ufdd0\ufdd1", "\ufdd3"]) == "\ufdd2"
    with pytest.raises(InvalidRequest, match="noncharacter"):
        unused_mark(["".join(chr(code) for code in range(0xFDD0, 0xFDF0))])
