"""Calls as Llama 3 writes them: {"name": ..., "parameters": {...}}, perhaps after <|python_tag|>, separated by `;`.

Only its form marks an object as a call, so only objects that name an offered tool count as calls.
"""

from text.tool_calls.json_calls import JsonCallParser
from text.tool_calls.parser import SPACES, Waiting

_TAG = "<|python_tag|>"


class LlamaParser(JsonCallParser):
    starts = "{<"
    separators = SPACES + ";"
    marks = (_TAG,)
    only_offered = True

    def _read_call(self) -> Waiting:
        if self._text[self._at] == "<":
            is_marked = yield from self._skip_all((_TAG,))
            if not is_marked:
                return False
            yield from self._skip(SPACES)
        return (yield from self._read_json_call())
