"""Chat templates, rendered in a sandbox as transformers' `apply_chat_template` renders them."""

import contextlib
import functools
import json
from collections.abc import Sequence
from datetime import datetime
from typing import Any

import jinja2
import jinja2.ext
import msgspec
from jinja2.sandbox import ImmutableSandboxedEnvironment

from protocol.errors import ProtocolError
from protocol.messages import AssistantMessage, Message, Tool, ToolCall, ToolMessage, content_text


class ChatTemplate:
    """A checkpoint's templates: `default`, and perhaps `tool_use`, which then renders requests with tools."""

    def __init__(self, sources: dict[str, str], special_tokens: dict[str, str]) -> None:
        """Raises ValueError, naming the line, for a template that does not compile."""
        self.sources = sources
        self._special_tokens = special_tokens
        try:
            self._templates = {name: _environment().from_string(source) for name, source in sources.items()}
        except jinja2.TemplateSyntaxError as error:
            raise ValueError(f"chat template, line {error.lineno}: {error.message}") from error
        if "default" not in sources:
            raise ValueError(f"no default chat template among {sorted(sources)}")
        # Most templates know only `system` and would drop the newer role in silence.
        self._knows_developer = any("developer" in source for source in sources.values())

    def render(
        self, messages: Sequence[Message], tools: Sequence[Tool] | None = None, *, add_generation_prompt: bool = True
    ) -> str:
        """The prompt's text, special tokens included. Raises ProtocolError when the template refuses the messages."""
        template = self._templates["tool_use" if tools and "tool_use" in self._templates else "default"]
        try:
            return template.render(
                messages=self._plain_messages(messages),
                tools=[_plain_tool(tool) for tool in tools] if tools else None,
                documents=None,
                add_generation_prompt=add_generation_prompt,
                **self._special_tokens,
            )
        except (jinja2.TemplateError, TypeError, ValueError, KeyError, IndexError, RecursionError) as error:
            # The source is the operator's and compiled: what fails here fails on these messages.
            raise ProtocolError(f"the model's chat template refused the messages: {error}", param="messages") from error

    def _plain_messages(self, messages: Sequence[Message]) -> list[dict[str, Any]]:
        plain = [self._plain_message(message) for message in messages]
        # OpenAI's tool messages name only the call; some templates (Hermes, Gemma) want the function's name.
        names = {call["id"]: call["function"]["name"] for each in plain for call in each.get("tool_calls", ())}
        for each in plain:
            if each["role"] == "tool" and each["tool_call_id"] in names:
                each["name"] = names[each["tool_call_id"]]
        return plain

    def _plain_message(self, message: Message) -> dict[str, Any]:
        role = message.__struct_config__.tag
        if role == "developer" and not self._knows_developer:
            role = "system"
        plain: dict[str, Any] = {"role": role, "content": content_text(message.content)}
        if isinstance(message, ToolMessage):
            return plain | {"tool_call_id": message.tool_call_id}
        if message.name is not None:
            plain["name"] = message.name
        if isinstance(message, AssistantMessage) and message.tool_calls:
            plain["tool_calls"] = [_plain_call(call) for call in message.tool_calls]
        return plain


def _plain_call(call: ToolCall) -> dict[str, Any]:
    """Templates want the arguments as an object, where OpenAI's API has a string of JSON."""
    arguments: Any = call.function.arguments
    # A client may send anything here; the template then shows the text.
    with contextlib.suppress(msgspec.DecodeError):
        arguments = msgspec.json.decode(arguments) if arguments else {}
    return {"id": call.id, "type": call.type, "function": {"name": call.function.name, "arguments": arguments}}


def _plain_tool(tool: Tool) -> dict[str, Any]:
    function: dict[str, Any] = {"name": tool.function.name}
    for name in ("description", "parameters", "strict"):
        if getattr(tool.function, name) is not None:
            function[name] = getattr(tool.function, name)
    return {"type": tool.type, "function": function}


class _Generation(jinja2.ext.Extension):
    """`{% generation %}` marks what a model learns from; for a prompt it changes nothing."""

    tags = {"generation"}  # noqa: RUF012 (jinja2's own declaration)

    def parse(self, parser: jinja2.parser.Parser) -> list[jinja2.nodes.Node]:
        next(parser.stream)
        return parser.parse_statements(("name:endgeneration",), drop_needle=True)


@functools.cache
def _environment() -> ImmutableSandboxedEnvironment:
    environment = ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=[_Generation, jinja2.ext.loopcontrols]
    )
    environment.filters["tojson"] = _to_json
    environment.globals["raise_exception"] = _raise_exception
    environment.globals["strftime_now"] = lambda form: datetime.now().strftime(form)
    return environment


def _raise_exception(message: str) -> None:
    raise jinja2.TemplateError(message)


def _to_json(
    value: Any,
    ensure_ascii: bool = False,
    indent: int | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    """Unlike Jinja's own filter it does not escape HTML."""
    return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)
