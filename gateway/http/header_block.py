"""Header lines as one block of bytes, checked once so that no value can inject another header line."""


def head_block(lines: list[tuple[bytes, bytes]]) -> bytes:
    """The lines as one block. Raises RuntimeError if a value would begin another line."""
    return checked_block(b"".join([b"%b: %b\r\n" % line for line in lines]), num_lines=len(lines))


def checked_block(block: bytes, *, num_lines: int) -> bytes:
    """Returns `block`. Raises RuntimeError unless it has exactly `num_lines` lines and no zero byte."""
    if block.count(b"\n") != num_lines or block.count(b"\r") != num_lines or b"\0" in block:
        raise RuntimeError("a header holds a line break or a zero byte")
    return block
