"""A request in a session, turned into one that holds the whole conversation."""

import re
from typing import Any

import msgspec

from gateway.http.errors import InvalidRequest
from gateway.inference.server_tools.request import check_chat
from gateway.sessions.conversation import Conversation, Raw, raw_messages, split_system, split_turns
from protocol.errors import ProtocolError
from protocol.messages import Message
from protocol.requests import PlatformChatRequest

_FIELDS = msgspec.json.Decoder(dict[str, msgspec.Raw])
_TYPED = msgspec.json.Decoder(list[Message])
_PLACE = re.compile(r"messages\[([0-9]+)\]")
_SUMMARY = "Summary of the conversation before the messages that follow:\n"


class Prompt:
    """body: the client's, from which `request` was decoded. If it has a system prompt, this replaces the stored one."""

    def __init__(self, body: bytes, request: PlatformChatRequest, conversation: Conversation) -> None:
        _refuse_fields(request)
        self._fields: dict[str, Any] = dict(_FIELDS.decode(body))
        self._request = request
        self._summary = conversation.summary
        sent_system, sent = split_system(raw_messages(self._fields["messages"]))
        kept_system, kept = split_system(conversation.messages)
        if not sent:
            raise InvalidRequest("messages: send a message beside the system prompt", param="messages")
        self.system = sent_system or kept_system
        self.turns = split_turns([*kept, *sent])
        self._num_kept = len(kept)
        self._first_new = len(self.system) + len(kept)
        self._num_sent_system = len(sent_system)

    def check(self) -> None:
        """Raises ProtocolError or InvalidRequest. Places in errors refer to the client's own `messages`."""
        try:
            check_chat(self.chat(0))
        except ProtocolError as error:
            raise self._placed(error) from error

    def left(self, num_left: int) -> list[Raw]:
        """The messages of the first turns."""
        return [message for turn in self.turns[:num_left] for message in turn]

    def kept(self, num_left: int) -> list[Raw]:
        """All other messages, the system prompt first."""
        return [*self.system, *(message for turn in self.turns[num_left:] for message in turn)]

    def num_kept_before(self, num_left: int) -> int:
        """How many stored messages, without the system prompt, go in front of the client's own."""
        return max(0, self._num_kept - len(self.left(num_left)))

    def conversation(self) -> list[Raw]:
        """The messages of all turns, without the system prompt."""
        return [message for turn in self.turns for message in turn]

    def body(self, num_left: int) -> bytes:
        return msgspec.json.encode(self._fields | {"messages": self._shown(num_left)})

    def chat(self, num_left: int) -> PlatformChatRequest:
        messages = _TYPED.decode(msgspec.json.encode(self._shown(num_left)))
        return msgspec.structs.replace(self._request, messages=messages)

    def _shown(self, num_left: int) -> list[Raw]:
        kept = self.kept(num_left)
        if self._summary is None:
            return kept
        # Many chat templates accept only one system message, at the beginning, so the summary is appended to it.
        text = _SUMMARY + self._summary
        if not self.system:
            return [_encoded({"role": "system", "content": text}), *kept]
        last = len(self.system) - 1
        system = msgspec.json.decode(self.system[last], type=dict[str, Any])
        content = system["content"]
        parts = [*content, {"type": "text", "text": f"\n\n{text}"}] if isinstance(content, list) else None
        system["content"] = parts or f"{content}\n\n{text}"
        return [*kept[:last], _encoded(system), *kept[last + 1 :]]

    def _placed(self, error: ProtocolError) -> ProtocolError:
        """The error with its place in the client's own messages, or marked as concerning a stored message."""
        found = _PLACE.search(error.param or "")
        if found is None:
            return error
        place = int(found[1])
        if place >= self._first_new:
            place += self._num_sent_system - self._first_new
        elif place >= self._num_sent_system:
            return ProtocolError(f"the session's {error.message}", param="messages", code=error.code)
        here = f"messages[{place}]"
        param = error.param and error.param.replace(found[0], here, 1)
        return ProtocolError(error.message.replace(found[0], here), param=param, code=error.code)


def _encoded(message: dict[str, Any]) -> Raw:
    return Raw(msgspec.json.encode(message))


def _refuse_fields(request: PlatformChatRequest) -> None:
    for field, is_apart in (
        ("n", (request.n or 1) > 1),
        ("echo", request.echo),
        ("continue_final_message", request.continue_final_message),
        ("add_generation_prompt", request.add_generation_prompt is False),
        ("truncate_prompt_tokens", request.truncate_prompt_tokens is not None),
        ("functions", request.functions is not None),
        ("function_call", request.function_call is not None),
    ):
        if is_apart:
            raise InvalidRequest(
                f"{field} cannot be had in a session; leave it out, or send the whole conversation without a session",
                param=field,
                code="unsupported",
            )
