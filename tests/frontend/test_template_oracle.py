"""Templates against the library that they were written for, over the features that published ones use."""

from typing import Any

import pytest

from ridgeline.frontend.messages import normalize_messages
from ridgeline.frontend.template import ChatTemplate

TEMPLATES = {
    "whitespace": """
{%- if messages[0]['role'] == 'system' %}
    {%- set system = messages[0]['content'] | trim %}
    {%- set rest = messages[1:] %}
{%- else %}
    {%- set system = 'You help.' %}
    {%- set rest = messages %}
{%- endif %}
    {% if tools is not none %}
  Tools:
    {% for tool in tools %}
{{ tool | tojson(indent=4) }}
    {% endfor %}
    {% endif %}
{{ bos_token + '<sys>' + system }}
{%- for m in rest %}
    {{- '<' ~ m.role ~ '>' }}{% if m.content is string %}{{ m.content }}{% endif %}
    {# a comment #}
{%- endfor %}

""",
    "namespace": """{% set ns = namespace(first=true, last=-1) %}
{% for m in messages %}{% if m.role == 'user' and not m.content.startswith('<r>') %}
{% set ns.last = loop.index0 %}{% endif %}{% endfor %}
{%- macro turn(m, mark='|') -%}
{{ mark }}{{ m.role | upper }}{{ mark }}{{ m.content.split('</t>')[-1].lstrip('\\n') }}
{%- endmacro -%}
{% for m in messages %}{{ turn(m) if loop.index0 < ns.last else turn(m, mark='!') }}
{{ '' if loop.last else '\\n' }}{% endfor %}
{% if add_generation_prompt %}{{ '<|assistant|>' }}{% endif %}""",
    "calls": """{% for m in messages %}{% if m.tool_calls is defined and m.tool_calls %}
{%- for call in m.tool_calls %}{% set call = call.function %}
<call>{"name": "{{ call.name }}", "arguments": {{ call.arguments | tojson }}}
{%- for key, value in call.arguments.items() %}[{{ key }}={{ value }}]{% endfor %}</call>{% endfor %}
{% elif m.role == 'tool' %}<result>{{ m.content }}</result>
{% else %}{{ m.content }}{{ eos_token if loop.last and enable is defined and enable }}
{% endif %}{% endfor %}{{ messages | selectattr('role', 'equalto', 'user') | list | length }}""",
    "control": """{% for m in messages %}{% if m.role == 'tool' %}{% continue %}{% endif %}
{% if loop.index > 3 %}{% break %}{% endif %}{% generation %}{{ m.content }}{% endgeneration %}
{% endfor %}{{ undefined_thing }}{{ strftime_now('%Y') | length }}""",
}
CALL = {
    "id": "c1",
    "type": "function",
    "function": {"name": "f", "arguments": {"city": "Zürich", "n": [1, None]}},
}
CHATS: list[list[dict[str, Any]]] = [
    [{"role": "user", "content": " hi <b>& you's\n"}],
    [{"role": "system", "content": "  Be brief. "}, {"role": "user", "content": "a"},
     {"role": "assistant", "content": "<t>x</t>\n\nb"}, {"role": "user", "content": "<r>c"}],
    [{"role": "user", "content": "w?"}, {"role": "assistant", "content": "", "tool_calls": [CALL]},
     {"role": "tool", "content": "{\"t\": 3}", "tool_call_id": "c1"}, {"role": "user", "content": "ok"}],
]  # fmt: skip
TOOLS = [{"type": "function", "function": {"name": "f", "parameters": {"type": "object", "ü": "<"}}}]


@pytest.mark.parametrize("name", TEMPLATES)
@pytest.mark.parametrize("chat", range(len(CHATS)))
@pytest.mark.parametrize("tools", [None, TOOLS])
def test_renders_as_there(name: str, chat: int, tools: list[Any] | None) -> None:
    """Character for character: a prompt that differs by one line end is not what the model was trained on."""
    from transformers.utils.chat_template_utils import render_jinja_template

    tokens = {"bos_token": "<s>", "eos_token": "</s>"}
    [theirs], _ = render_jinja_template(
        [CHATS[chat]],
        tools=tools,
        chat_template=TEMPLATES[name],
        add_generation_prompt=True,
        enable=True,
        **tokens,
    )
    template = ChatTemplate(TEMPLATES[name], tokens=tokens)
    known = {"enable": True} if "enable" in template.variables else {}
    ours = template.render(normalize_messages(CHATS[chat]), tools=tools, variables=known)
    assert ours == theirs
