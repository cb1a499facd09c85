"""Log lines of a process, on stderr: short ones for people (`up` puts the process's name before them), or JSON objects.

An exception's message may quote what a client wrote. So within a request only its type and traceback are logged.
"""

import json
import logging
import traceback
from collections.abc import Callable, Iterator, Mapping
from datetime import UTC, datetime
from types import TracebackType

Context = Callable[[], Mapping[str, str]]
"""Returns the ids of the current request, or nothing outside a request."""
_ExcInfo = tuple[type[BaseException], BaseException, TracebackType | None] | tuple[None, None, None]

_ROOMS = ("gateway", "worker", "router", "text", "protocol", "kernels", "tiergate", "migrations")
# At level info these would log every request to a store or a worker.
_CHATTY = ("httpx", "httpcore", "aiohttp.access", "alembic.runtime.plugins")


def start_logging(level: str = "info", log_format: str = "text", *, context: Context = dict) -> None:
    handler = logging.StreamHandler()
    handler.setFormatter(_Json(context) if log_format == "json" else _Text(context))
    wanted = logging.getLevelNamesMapping()[level.upper()]
    # The root stays at info or above, since libraries' debug lines contain whatever passes through them.
    logging.basicConfig(level=max(wanted, logging.INFO), handlers=[handler])
    for room in _ROOMS:
        logging.getLogger(room).setLevel(wanted)
    for chatty in _CHATTY:
        logging.getLogger(chatty).setLevel(max(wanted, logging.WARNING))


class _Discreet(logging.Formatter):
    def __init__(self, context: Context) -> None:
        super().__init__("%(asctime)s %(levelname)s %(name)s: %(message)s", datefmt="%H:%M:%S")
        self._context = context

    def formatException(self, ei: _ExcInfo) -> str:
        error = ei[1]
        if error is None or not self._context():
            return super().formatException(ei)
        return "\n".join(_places(error))


class _Text(_Discreet):
    def format(self, record: logging.LogRecord) -> str:
        # Another handler's formatter may have cached an exception text there, with the message.
        record.exc_text = None
        line = super().format(record)
        request_id = self._context().get("request_id")
        return line if request_id is None else f"{line} [{request_id}]"


class _Json(_Discreet):
    def format(self, record: logging.LogRecord) -> str:
        shown: dict[str, object] = {
            "time": datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds"),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": record.getMessage(),
            "process": record.process,
            **self._context(),
        }
        if record.exc_info:
            shown["exception"] = self.formatException(record.exc_info)
        return json.dumps(shown, ensure_ascii=False)


def _places(error: BaseException) -> Iterator[str]:
    """Type and traceback of the exception, then of those that caused it."""
    seen: set[int] = set()
    each: BaseException | None = error
    while each is not None and id(each) not in seen:
        seen.add(id(each))
        yield f"{type(each).__module__}.{type(each).__qualname__}"
        yield "".join(traceback.format_tb(each.__traceback__)).rstrip()
        each = each.__cause__ or (None if each.__suppress_context__ else each.__context__)
