"""RESP2, the protocol of Redis: encodes commands to bytes, and parses bytes to replies."""

from collections.abc import Iterator

from redis.exceptions import ResponseError

Reply = bytes | int | None | list["Reply"] | ResponseError


class BadReply(Exception):
    """The other side does not speak RESP2."""


class _Incomplete(Exception):
    """The reply continues in bytes that have not arrived yet."""


def encode(*parts: str | bytes | int) -> bytes:
    return b"*%d\r\n" % len(parts) + encode_parts(*parts)


def encode_parts(*parts: str | bytes | int) -> bytes:
    """A piece of a command. The header, which is not included, must count the parts of all pieces."""
    encoded = [part if isinstance(part, bytes) else str(part).encode() for part in parts]
    return b"".join(b"$%d\r\n%b\r\n" % (len(part), part) for part in encoded)


class Replies:
    """Takes bytes as they arrive, and yields the replies that they complete."""

    def __init__(self) -> None:
        self._rest = b""

    def feed(self, data: bytes) -> Iterator[Reply]:
        """Raises BadReply."""
        buffer = self._rest + data if self._rest else data
        position = 0
        try:
            while position < len(buffer):
                reply, position = _parse(buffer, position)
                yield reply
        except _Incomplete:
            pass
        finally:
            self._rest = buffer[position:]


def _parse(buffer: bytes, position: int) -> tuple[Reply, int]:
    """The reply that begins at `position`, and where the next one begins."""
    end = buffer.find(b"\r\n", position)
    if end < 0:
        raise _Incomplete
    kind, line, after = buffer[position : position + 1], buffer[position + 1 : end], end + 2
    if kind == b"$":
        return _parse_bulk(buffer, after, _number(line))
    if kind == b":":
        return _number(line), after
    if kind == b"+":
        return line, after
    if kind == b"-":
        return ResponseError(line.decode(errors="replace")), after
    if kind == b"*":
        return _parse_array(buffer, after, _number(line))
    raise BadReply(f"{buffer[position : position + 40]!r} is no reply of Redis")


def _parse_bulk(buffer: bytes, position: int, length: int) -> tuple[Reply, int]:
    if length < 0:
        return None, position
    end = position + length
    if len(buffer) < end + 2:
        raise _Incomplete
    return buffer[position:end], end + 2


def _parse_array(buffer: bytes, position: int, length: int) -> tuple[Reply, int]:
    if length < 0:
        return None, position
    replies: list[Reply] = []
    for _ in range(length):
        reply, position = _parse(buffer, position)
        replies.append(reply)
    return replies, position


def _number(line: bytes) -> int:
    try:
        return int(line)
    except ValueError as error:
        raise BadReply(f"{line[:40]!r} is no number") from error
