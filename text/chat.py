"""Chat templates, rendered in a sandbox as transformers' `apply_chat_template` renders them."""

import contextlib
import functools
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

import jinja2
import jinja2.ext
import jinja2.nodes
import msgspec
from jinja2.sandbox import ImmutableSandboxedEnvironment

from protocol.errors import ProtocolError
from protocol.messages import (
    AssistantMessage,
    Message,
    SystemMessage,
    Tool,
    ToolCall,
    ToolMessage,
    UserMessage,
    content_text,
)
from text.composed import Composition
from text.folder import SPECIAL_TOKENS
from text.seal import Seal, Sealed

_RESERVED = frozenset(
    {"messages", "tools", "add_generation_prompt", "continue_final_message", "chat_template", *SPECIAL_TOKENS}
)
"""Names that a request sets by other fields, or that only the checkpoint sets."""


@dataclass(frozen=True, slots=True)
class ChatOptions:
    """continue_final_message: the prompt ends inside the last message, whose text the answer continues.

    arguments: further values that the template may read, plain JSON.
    """

    add_generation_prompt: bool = True
    continue_final_message: bool = False
    arguments: Mapping[str, Any] = field(default_factory=dict)


PLAIN = ChatOptions()


class ChatTemplate:
    """A checkpoint's templates: `default`, and perhaps `tool_use`, which then renders requests with tools.

    The control tokens in a template's own strings are sealed when it is compiled. So only the template can write one,
    and it finds none in a user's text.
    """

    def __init__(self, sources: dict[str, str], special_tokens: dict[str, str], seal: Seal | None = None) -> None:
        """Raises ValueError, naming the line, for a template that does not compile."""
        self.sources = sources
        self._seal = seal or Seal()
        # Its last character tells whether the template cuts white space.
        self._final = f"<{self._seal.secret}-final> "
        self._special_tokens = {name: self._seal.close(text) for name, text in special_tokens.items()}
        if "default" not in sources:
            raise ValueError(f"no default chat template among {sorted(sources)}")
        try:
            trees = {name: _environment().parse(source) for name, source in sources.items()}
            self._composition = Composition(self._seal, {text for tree in trees.values() for text in _literals(tree)})
            self._templates = {name: self._compile(tree) for name, tree in trees.items()}
        except jinja2.TemplateSyntaxError as error:
            raise ValueError(f"chat template, line {error.lineno}: {error.message}") from error
        # Most templates know only `system` and would silently drop the newer role.
        self._knows_developer = any("developer" in source for source in sources.values())
        self._check_seal()

    def render(
        self, messages: Sequence[Message], tools: Sequence[Tool] | None = None, options: ChatOptions = PLAIN
    ) -> Sealed:
        """The prompt, including special tokens. Raises ProtocolError if the template refuses the messages, or does not
        show the text that is to be continued."""
        template = self._templates["tool_use" if tools and "tool_use" in self._templates else "default"]
        for name in options.arguments:
            if name in _RESERVED:
                raise ProtocolError(
                    f"chat_template_kwargs cannot set {name!r}, which a field of its own or the model says",
                    param="chat_template_kwargs",
                )
        plain = self._plain_messages(messages)
        if options.continue_final_message:
            plain[-1]["content"] += self._final
        try:
            rendered = template.render(
                {
                    "documents": None,
                    **{name: self._composition.spoil(each) for name, each in options.arguments.items()},
                    "messages": plain,
                    "tools": [self._plain_tool(tool) for tool in tools] if tools else None,
                    "add_generation_prompt": options.add_generation_prompt,
                    **self._special_tokens,
                }
            )
            if options.continue_final_message:
                rendered = self._left_open(rendered)
        except (jinja2.TemplateError, ArithmeticError, LookupError, RecursionError, TypeError, ValueError) as error:
            # The operator's source has compiled, so a failure here comes from these messages.
            message = self._seal.open(self._composition.close(str(error)))
            raise ProtocolError(
                f"the model's chat template refused the messages: {message}", param="messages"
            ) from error
        return self._composition.close(rendered)

    def _left_open(self, rendered: str) -> str:
        """The prompt up to the end of the last message's text, cut as transformers does: without trailing white space
        if the template strips it."""
        before, mark, after = rendered.rpartition(self._final.rstrip())
        if not mark:
            raise ValueError("it does not show the last message, which is to be continued")
        # Some templates show a message twice.
        before = before.replace(self._final, "").replace(self._final.rstrip(), "")
        return before if after.startswith(" ") else before.rstrip()

    def _compile(self, tree: jinja2.nodes.Template) -> jinja2.Template:
        for data in tree.find_all(jinja2.nodes.TemplateData):
            data.data = self._composition.mark(data.data)
        for constant in tree.find_all(jinja2.nodes.Const):
            if isinstance(constant.value, str):
                constant.value = self._composition.mark(constant.value)
        return _environment().from_string(tree)

    def _check_seal(self) -> None:
        """Raises ValueError for a template that makes a control token in a way that sealing cannot follow.

        The turns of such a template would silently become plain text.
        """
        talk: list[Message] = [UserMessage(content="1"), AssistantMessage(content="2"), UserMessage(content="3")]
        # Some templates refuse a system message, some an answer.
        for chat in ([SystemMessage(content="0"), *talk], talk, talk[:1]):
            with contextlib.suppress(ProtocolError):
                spelled = self._seal.find(self.render(chat))
                if spelled is not None:
                    raise ValueError(f"chat template: it puts {spelled} together from pieces; write it in one string")
                return

    def _plain_messages(self, messages: Sequence[Message]) -> list[dict[str, Any]]:
        plain = [self._plain_message(message) for message in messages]
        # OpenAI's tool messages name only the call; some templates (Hermes, Gemma) need the function's name.
        names = {call["id"]: call["function"]["name"] for each in plain for call in each.get("tool_calls", ())}
        for each in plain:
            if each["role"] == "tool" and each["tool_call_id"] in names:
                each["name"] = names[each["tool_call_id"]]
        return plain

    def _plain_message(self, message: Message) -> dict[str, Any]:
        role = message.__struct_config__.tag
        if role == "developer" and not self._knows_developer:
            role = "system"
        spoil = self._composition.spoil
        plain: dict[str, Any] = {"role": role, "content": spoil(content_text(message.content))}
        if isinstance(message, ToolMessage):
            return plain | {"tool_call_id": spoil(message.tool_call_id)}
        if message.name is not None:
            plain["name"] = spoil(message.name)
        if isinstance(message, AssistantMessage) and message.tool_calls:
            plain["tool_calls"] = [self._plain_call(call) for call in message.tool_calls]
        if isinstance(message, AssistantMessage):
            thought = message.reasoning if message.reasoning_content is None else message.reasoning_content
            if thought is not None:
                plain["reasoning_content"] = spoil(thought)
        return plain

    def _plain_call(self, call: ToolCall) -> dict[str, Any]:
        """Templates expect the arguments as an object, while OpenAI's API has a JSON string."""
        arguments: Any = call.function.arguments
        # A client may send anything here; the template shows text that is not JSON as it is.
        with contextlib.suppress(msgspec.DecodeError):
            arguments = msgspec.json.decode(arguments) if arguments else {}
        spoil = self._composition.spoil
        function = {"name": spoil(call.function.name), "arguments": spoil(arguments)}
        return {"id": spoil(call.id), "type": call.type, "function": function}

    def _plain_tool(self, tool: Tool) -> dict[str, Any]:
        function: dict[str, Any] = {"name": tool.function.name}
        for name in ("description", "parameters", "strict"):
            if getattr(tool.function, name) is not None:
                function[name] = getattr(tool.function, name)
        return {"type": tool.type, "function": {name: self._composition.spoil(each) for name, each in function.items()}}


def _literals(tree: jinja2.nodes.Template) -> list[str]:
    constants = [constant.value for constant in tree.find_all(jinja2.nodes.Const)]
    data = [data.data for data in tree.find_all(jinja2.nodes.TemplateData)]
    return [text for text in constants if isinstance(text, str)] + data


class _Generation(jinja2.ext.Extension):
    """`{% generation %}` marks the text that a model learns from; for a prompt it changes nothing."""

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
