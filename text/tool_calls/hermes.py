"""Calls as Hermes and Qwen write them: <tool_call>{"name": ..., "arguments": {...}}</tool_call>"""

from text.tool_calls.json_calls import JsonCallParser
from text.tool_calls.parser import SPACES, Waiting

_OPEN, _CLOSE = "<tool_call>", "</tool_call>"


class HermesParser(JsonCallParser):
    starts = "<"
    marks = (_OPEN, _CLOSE)

    def _read_call(self) -> Waiting:
        is_marked = yield from self._skip_all((_OPEN,))
        if not is_marked:
            return False
        yield from self._skip(SPACES)
        is_call = yield from self._read_json_call()
        if not is_call:
            return False
        yield from self._skip(SPACES)
        is_closed = yield from self._skip_all((_CLOSE,))
        if is_closed:
            self._drop_read()
        return is_closed
