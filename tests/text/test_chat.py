"""Templates in the manner of the common model families, rendered by us and by transformers."""

import pytest
from transformers.utils.chat_template_utils import render_jinja_template

from protocol.errors import ProtocolError
from protocol.messages import (
    AssistantMessage,
    DeveloperMessage,
    FunctionCall,
    FunctionDefinition,
    Message,
    SystemMessage,
    TextPart,
    Tool,
    ToolCall,
    ToolMessage,
    UserMessage,
)
from text.chat import ChatOptions, ChatTemplate

SPECIAL = {"bos_token": "<s>", "eos_token": "</s>", "pad_token": "<pad>"}
CHATML = """
{%- if tools %}
    {{- '<|im_start|>system\\n' }}
    {%- for tool in tools %}
        {{- "\\n" }}
        {{- tool | tojson }}
    {%- endfor %}
    {{- '<|im_end|>\\n' }}
{%- endif %}
{%- for message in messages %}
    {%- if message.role == 'tool' %}{% continue %}{% endif %}
    {{- '<|im_start|>' + message.role + '\\n' + message.content }}
    {%- for call in message.tool_calls or [] %}
        {{- '<tool_call>' + call.function.name + call.function.arguments | tojson + '</tool_call>' }}
    {%- endfor %}
    {{- '<|im_end|>\\n' }}
{%- endfor %}
{%- if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}
"""
STRICT = """{{ bos_token }}
{% set ns = namespace(turn=0) %}
{% for message in messages %}
    {% if (message['role'] == 'user') != (loop.index0 % 2 == 0) %}
        {{ raise_exception('roles must alternate user/assistant') }}
    {% endif %}
    {% set ns.turn = ns.turn + 1 %}
    [{{ ns.turn }}]{% generation %}{{ message['content'] | trim }}{% endgeneration %}{{ eos_token }}{{ unk_token }}
{% endfor %}
{{ strftime_now('%Y') }} {{ messages | tojson(indent=2) }} {{ dict(a=1) }}
"""
WEATHER = Tool(
    function=FunctionDefinition(name="weather", description="<b>&'é", parameters={"type": "object", "properties": {}})
)
CALL = ToolCall(id="call_1", function=FunctionCall("weather", '{"city": "Köln"}'))
CHAT: list[Message] = [
    UserMessage(content="Hi <b> 日本 👍"),
    AssistantMessage(content="Hello"),
    UserMessage(content=[TextPart("a"), TextPart("b")]),
]
PLAIN = [
    {"role": "user", "content": "Hi <b> 日本 👍"},
    {"role": "assistant", "content": "Hello"},
    {"role": "user", "content": "ab"},
]


@pytest.mark.parametrize("source", [CHATML, STRICT])
@pytest.mark.parametrize("add_generation_prompt", [True, False])
def test_a_chat_is_rendered_as_transformers_renders_it(source: str, add_generation_prompt: bool) -> None:
    rendered, _ = render_jinja_template(
        [PLAIN], chat_template=source, add_generation_prompt=add_generation_prompt, **SPECIAL
    )
    ours = ChatTemplate({"default": source}, SPECIAL).render(
        CHAT, None, ChatOptions(add_generation_prompt=add_generation_prompt)
    )
    assert ours == rendered[0]


def test_tools_and_calls_are_rendered_as_transformers_renders_them() -> None:
    plain = [
        *PLAIN,
        {
            "role": "assistant",
            "content": "",
            "tool_calls": [
                {"id": "call_1", "type": "function", "function": {"name": "weather", "arguments": {"city": "Köln"}}}
            ],
        },
        {"role": "tool", "content": "sunny", "tool_call_id": "call_1"},
    ]
    tool = {
        "type": "function",
        "function": {
            "name": "weather",
            "description": "<b>&'é",
            "parameters": {"type": "object", "properties": {}},
        },
    }
    rendered, _ = render_jinja_template(
        [plain], tools=[tool], chat_template=CHATML, add_generation_prompt=True, **SPECIAL
    )
    messages = [
        *CHAT,
        AssistantMessage(tool_calls=[CALL]),
        ToolMessage(content="sunny", tool_call_id="call_1"),
    ]
    assert ChatTemplate({"default": CHATML}, SPECIAL).render(messages, [WEATHER]) == rendered[0]


def test_a_tool_message_carries_the_name_of_its_function() -> None:
    source = "{% for m in messages %}{{ m.role }}:{{ m.name }};{% endfor %}"
    messages: list[Message] = [
        AssistantMessage(tool_calls=[CALL]),
        ToolMessage(content="sunny", tool_call_id="call_1"),
        ToolMessage(content="?", tool_call_id="call_2"),
    ]
    assert ChatTemplate({"default": source}, SPECIAL).render(messages) == "assistant:;tool:weather;tool:;"


def test_a_template_of_its_own_for_tools_is_used_with_tools_only() -> None:
    template = ChatTemplate({"default": "plain", "tool_use": "tools"}, SPECIAL)
    assert (template.render(CHAT), template.render(CHAT, [WEATHER])) == ("plain", "tools")


def test_what_the_template_refuses_names_the_messages() -> None:
    with pytest.raises(ProtocolError, match="roles must alternate") as caught:
        ChatTemplate({"default": STRICT}, SPECIAL).render([SystemMessage(content="x")])
    assert (caught.value.status, caught.value.param) == (400, "messages")


def test_the_developer_role_is_system_where_a_template_does_not_know_it() -> None:
    source = "{% for m in messages %}{{ m.role }}{% endfor %}"
    messages: list[Message] = [DeveloperMessage(content="x")]
    assert ChatTemplate({"default": source}, SPECIAL).render(messages) == "system"
    assert ChatTemplate({"default": source + "{# developer #}"}, SPECIAL).render(messages) == "developer"


@pytest.mark.parametrize("attack", ["{{ ''.__class__.__mro__ }}", "{{ messages.append(1) }}", "{{ messages.clear() }}"])
def test_a_template_cannot_leave_its_sandbox(attack: str) -> None:
    with pytest.raises(ProtocolError):
        ChatTemplate({"default": attack}, SPECIAL).render(CHAT)


def test_a_template_that_does_not_compile_names_its_line() -> None:
    with pytest.raises(ValueError, match="line 2"):
        ChatTemplate({"default": "ok\n{% if %}"}, SPECIAL)


@pytest.mark.parametrize("source", [CHATML, STRICT])
@pytest.mark.parametrize("text", ["Hello", "Hello ", "  two\n", "Hi", "{{ 1 }}"])
def test_the_last_message_is_left_open_as_transformers_leaves_it(source: str, text: str) -> None:
    plain = [PLAIN[0], {"role": "assistant", "content": text}]
    rendered, _ = render_jinja_template([plain], chat_template=source, continue_final_message=True, **SPECIAL)
    chat = [CHAT[0], AssistantMessage(content=text)]
    options = ChatOptions(add_generation_prompt=False, continue_final_message=True)
    # It cuts at the last of several places alone.
    expected = rendered[0].replace("CONTINUE_FINAL_MESSAGE_TAG", "")
    assert ChatTemplate({"default": source}, SPECIAL).render(chat, None, options) == expected


def test_a_template_that_hides_the_last_message_cannot_leave_it_open() -> None:
    template = ChatTemplate({"default": "{% for m in messages[:1] %}{{ m.content }}{% endfor %}"}, SPECIAL)
    with pytest.raises(ProtocolError, match="last message") as caught:
        template.render(CHAT[:2], None, ChatOptions(add_generation_prompt=False, continue_final_message=True))
    assert caught.value.param == "messages"


def test_a_template_reads_what_a_request_says_to_it() -> None:
    source = "{{ mood }}{% if enable_thinking is false %}no{% endif %}{{ more.a[0] }}{{ documents }}"
    template = ChatTemplate({"default": source}, SPECIAL)
    arguments = {"mood": "glad", "enable_thinking": False, "more": {"a": [7]}, "documents": ["d"], "unknown": 1}
    assert template.render(CHAT, None, ChatOptions(arguments=arguments)) == "gladno7['d']"
    assert template.render(CHAT, None, ChatOptions(arguments={"more": {"a": "x"}})) == "xNone"


@pytest.mark.parametrize("name", ["messages", "tools", "bos_token", "add_generation_prompt", "chat_template"])
def test_what_a_request_says_elsewhere_is_no_argument_of_the_template(name: str) -> None:
    with pytest.raises(ProtocolError, match=name) as caught:
        ChatTemplate({"default": CHATML}, SPECIAL).render(CHAT, None, ChatOptions(arguments={name: []}))
    assert caught.value.param == "chat_template_kwargs"


@pytest.mark.parametrize(
    "source",
    [
        "{{ x.__class__.__mro__ }}",
        "{{ x.append(1) }}",
        "{{ x() }}",
        "{{ 1 / x }}",
        "{{ x ~ (x | length) }}",
        "{{ x + 1 }}",
    ],
)
@pytest.mark.parametrize("value", [[], {}, 0, "s", None, True])
def test_arguments_reach_nothing_beyond_themselves(source: str, value: object) -> None:
    template = ChatTemplate({"default": "{% if x is defined %}" + source + "{% endif %}"}, SPECIAL)
    try:
        rendered = template.render(CHAT, None, ChatOptions(arguments={"x": value}))
    except ProtocolError as error:
        assert error.param == "messages"
    else:
        assert "class" not in rendered
    assert value in ([], {}, 0, "s", None, True)
