"""Mistral's calls: [TOOL_CALLS] and a list of JSON objects or, later, [TOOL_CALLS]name[ARGS]{...} for each call."""

from text.tool_calls.json_calls import JsonCallParser
from text.tool_calls.parser import NAME, SPACES, Waiting, short_id

_CALLS, _ID, _ARGS = "[TOOL_CALLS]", "[CALL_ID]", "[ARGS]"


class MistralParser(JsonCallParser):
    starts = "["
    marks = (_CALLS, _ID, _ARGS)

    def _read_call(self) -> Waiting:
        is_marked = yield from self._skip_all((_CALLS,))
        if not is_marked:
            return False
        yield from self._skip(SPACES)
        char = yield from self._peek()
        if char == "[":
            return (yield from self._read_list())
        if char == "{":
            return (yield from self._read_json_call())
        return (yield from self._read_named())

    def _read_list(self) -> Waiting:
        self._at += 1
        while True:
            yield from self._skip(SPACES)
            is_call = yield from self._read_json_call()
            if not is_call:
                return False
            yield from self._skip(SPACES)
            char = yield from self._peek()
            if char not in ("]", ","):
                return False
            self._at += 1
            self._drop_read()
            if char == "]":
                return True

    def _read_named(self) -> Waiting:
        name = yield from self._read_word()
        if not NAME.fullmatch(name):
            return False
        char = yield from self._peek()
        if char == "[":
            mark_at = self._at
            is_mark = yield from self._skip_all((_ARGS, _ID))
            if not is_mark:
                return False
            if self._text[mark_at : self._at] == _ID:
                yield from self._read_word()
                is_mark = yield from self._skip_all((_ARGS,))
                if not is_mark:
                    return False
        yield from self._skip(SPACES)
        char = yield from self._peek()
        if char != "{":
            return False
        self._begin_call(name)
        self._drop_read()
        yield from self._read_arguments()
        return True

    def _new_id(self) -> str:
        return short_id()
