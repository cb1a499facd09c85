"""Header lines as one block of bytes, checked once so that no value can inject another header line."""

Lines = list[tuple[bytes, bytes]]
_default: tuple[Lines, bytes] = ([], b"")


def default_block(lines: Lines) -> bytes:
    """As `head_block`, for the lines that go with every answer. The server makes a new list of them every second, and
    never changes one."""
    global _default
    if lines is not _default[0]:
        _default = lines, head_block(lines)
    return _default[1]


def head_block(lines: Lines) -> bytes:
    """The lines as one block. Raises RuntimeError if a value would begin another line."""
    return checked_block(b"".join([b"%b: %b\r\n" % line for line in lines]), num_lines=len(lines))


def checked_block(block: bytes, *, num_lines: int) -> bytes:
    """Returns `block`. Raises RuntimeError unless it has exactly `num_lines` lines and no zero byte."""
    if block.count(b"\n") != num_lines or block.count(b"\r") != num_lines or b"\0" in block:
        raise RuntimeError("a header holds a line break or a zero byte")
    return block
