"""Header lines as one piece of bytes, checked once: no value may begin a line of its own."""


def head_block(lines: list[tuple[bytes, bytes]]) -> bytes:
    """The header lines. Raises RuntimeError for a value that would begin another line."""
    return checked_block(b"".join([b"%b: %b\r\n" % line for line in lines]), num_lines=len(lines))


def checked_block(block: bytes, *, num_lines: int) -> bytes:
    """`block` itself. Raises RuntimeError unless it is so many lines."""
    if block.count(b"\n") != num_lines or block.count(b"\r") != num_lines or b"\0" in block:
        raise RuntimeError("a header holds a line break or a zero byte")
    return block
