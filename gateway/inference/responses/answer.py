"""A chat completion's answer as a response: whole, or as OpenAI's events in their documented order."""

from typing import Any
from uuid import uuid4

import msgspec

from protocol.responses_api import ResponsesRequest

Json = dict[str, Any]
_ENDED = ("stop", "tool_calls", "function_call")
_TOOL_FIELDS = ("type", "name", "description", "parameters", "strict")
_CUT = {"length": "max_output_tokens", "content_filter": "content_filter"}


class Building:
    """A response under construction. Each step returns the events that report it."""

    def __init__(self, request: ResponsesRequest, response_id: str, *, created_at: int) -> None:
        self._number = -1
        self._open: Json | None = None
        """The output item that the model is writing."""
        self._call: Any = None
        """The index of the tool call that the model is writing."""
        self.response: Json = _form(request, response_id, created_at)

    def begin(self) -> list[Json]:
        return [self._event(f"response.{word}", response=self._copy()) for word in ("created", "in_progress")]

    def add(self, chunk: Json) -> list[Json]:
        """Add a chunk of the chat's stream."""
        if chunk.get("model"):
            self.response["model"] = chunk["model"]
        if isinstance(chunk.get("usage"), dict):
            self.response["usage"] = _usage(chunk["usage"])
        events: list[Json] = []
        for choice in chunk.get("choices") or ():
            delta = choice.get("delta") or {}
            if delta.get("reasoning_content"):
                events += self._say("reasoning", delta["reasoning_content"])
            if delta.get("content"):
                events += self._say("message", delta["content"])
            for call in delta.get("tool_calls") or ():
                events += self._add_call(call)
            if choice.get("finish_reason"):
                events += self._close()
                self._conclude(choice["finish_reason"])
        return events

    def add_whole(self, completion: Json) -> None:
        """Add a whole completion as if it had been streamed."""
        choice = completion["choices"][0]
        message = choice["message"]
        calls = [{**call, "index": i} for i, call in enumerate(message.get("tool_calls") or ())]
        deltas: list[Json] = [
            {"reasoning_content": message.get("reasoning_content"), "content": message.get("content")}
        ]
        for delta in [*deltas, {"tool_calls": calls}]:
            self.add({**completion, "choices": [{"delta": delta}]})
        self.add({**completion, "choices": [{"delta": {}, "finish_reason": choice["finish_reason"]}]})

    def finish(self) -> list[Json]:
        return [self._event(f"response.{self.response['status']}", response=self._copy())]

    def _conclude(self, reason: str) -> None:
        """Any unknown reason means that the answer has broken off; the response then stays in progress."""
        if reason in _ENDED:
            self.response["status"] = "completed"
        elif reason in _CUT:
            self.response["status"] = "incomplete"
            self.response["incomplete_details"] = {"reason": _CUT[reason]}
            if self.response["output"]:
                self.response["output"][-1]["status"] = "incomplete"

    def _say(self, kind: str, text: str) -> list[Json]:
        events = []
        if self._open is None or self._open["type"] != kind:
            events += self._close() + self._begin_text(kind)
        assert self._open is not None
        self._open["content"][0]["text"] += text
        name = "reasoning_text" if kind == "reasoning" else "output_text"
        more: Json = {} if kind == "reasoning" else {"logprobs": []}
        return [*events, self._event(f"response.{name}.delta", **self._place(), content_index=0, delta=text, **more)]

    def _begin_text(self, kind: str) -> list[Json]:
        if kind == "reasoning":
            item: Json = {"id": _id("rs"), "type": kind, "summary": [], "content": [], "status": "in_progress"}
            part: Json = {"type": "reasoning_text", "text": ""}
        else:
            item = {"id": _id("msg"), "type": kind, "role": "assistant", "content": [], "status": "in_progress"}
            part = {"type": "output_text", "text": "", "annotations": [], "logprobs": []}
        events = self._begin_item(item)
        item["content"].append(part)
        return [
            *events,
            self._event("response.content_part.added", **self._place(), content_index=0, part=dict(part)),
        ]

    def _add_call(self, call: Json) -> list[Json]:
        events: list[Json] = []
        function = call.get("function") or {}
        if self._open is None or self._open["type"] != "function_call" or self._call != call.get("index"):
            events += self._close()
            self._call = call.get("index")
            item = {"id": _id("fc"), "type": "function_call", "status": "in_progress"}
            item |= {"call_id": call.get("id") or _id("call"), "name": function.get("name") or "", "arguments": ""}
            events += self._begin_item(item)
        assert self._open is not None
        arguments = function.get("arguments") or ""
        if arguments:
            self._open["arguments"] += arguments
            events.append(self._event("response.function_call_arguments.delta", **self._place(), delta=arguments))
        return events

    def _begin_item(self, item: Json) -> list[Json]:
        self._open = item
        self.response["output"].append(item)
        index = len(self.response["output"]) - 1
        return [self._event("response.output_item.added", output_index=index, item=_deep(item))]

    def _close(self) -> list[Json]:
        item = self._open
        if item is None:
            return []
        place, events = self._place(), []
        item["status"] = "completed"
        if item["type"] == "function_call":
            events.append(
                self._event(
                    "response.function_call_arguments.done", **place, name=item["name"], arguments=item["arguments"]
                )
            )
        else:
            part = item["content"][0]
            more: Json = {} if item["type"] == "reasoning" else {"logprobs": []}
            name = part["type"]
            events.append(self._event(f"response.{name}.done", **place, content_index=0, text=part["text"], **more))
            events.append(self._event("response.content_part.done", **place, content_index=0, part=dict(part)))
        self._open = None
        return [
            *events,
            self._event("response.output_item.done", output_index=place["output_index"], item=_deep(item)),
        ]

    def _place(self) -> Json:
        assert self._open is not None
        return {"item_id": self._open["id"], "output_index": len(self.response["output"]) - 1}

    def _event(self, kind: str, **fields: Any) -> Json:
        self._number += 1
        return {"type": kind, "sequence_number": self._number, **fields}

    def _copy(self) -> Json:
        return _deep(self.response)


def _form(request: ResponsesRequest, response_id: str, created_at: int) -> Json:
    sent = msgspec.to_builtins(request)
    text = sent["text"] or {}
    return {
        "id": response_id,
        "object": "response",
        "created_at": created_at,
        "status": "in_progress",
        "background": False,
        "error": None,
        "incomplete_details": None,
        "instructions": request.instructions,
        "max_output_tokens": request.max_output_tokens,
        "metadata": request.metadata or {},
        "model": request.model,
        "output": [],
        "parallel_tool_calls": request.parallel_tool_calls is not False,
        "previous_response_id": request.previous_response_id,
        "reasoning": {"effort": request.reasoning.effort if request.reasoning else None, "summary": None},
        "store": request.store is not False,
        "temperature": request.temperature,
        "text": {"format": text.get("format") or {"type": "text"}},
        "tool_choice": sent["tool_choice"] or "auto",
        "tools": [{name: tool[name] for name in _TOOL_FIELDS} for tool in sent["tools"] or ()],
        "top_p": request.top_p,
        "truncation": request.truncation or "disabled",
        "usage": None,
        "user": request.user,
    }


def _usage(usage: Json) -> Json:
    details, prompt = usage.get("completion_tokens_details") or {}, usage.get("prompt_tokens_details") or {}
    return {
        "input_tokens": usage["prompt_tokens"],
        "input_tokens_details": {"cached_tokens": prompt.get("cached_tokens") or 0},
        "output_tokens": usage.get("completion_tokens", 0),
        "output_tokens_details": {"reasoning_tokens": details.get("reasoning_tokens") or 0},
        "total_tokens": usage["prompt_tokens"] + usage.get("completion_tokens", 0),
    }


def _id(kind: str) -> str:
    return f"{kind}_{uuid4().hex}"


def _deep(value: Json) -> Json:
    copied: Json = msgspec.json.decode(msgspec.json.encode(value))
    return copied
