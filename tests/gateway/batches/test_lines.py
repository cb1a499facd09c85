from hypothesis import given
from hypothesis import strategies as st

from gateway.batches.lines import MAX_LINES, InputCheck, Lines, numbered_lines
from tests.support.batches import CHAT, chat_line, jsonl


async def all_lines(blocks: list[bytes], *, max_line_bytes: int) -> Lines:
    async def coming():  # type: ignore[no-untyped-def]
        for block in blocks:
            yield block

    return [line async for some in numbered_lines(coming(), max_line_bytes=max_line_bytes) for line in some]


@given(st.lists(st.text("ab \n", max_size=12).map(str.encode), max_size=8), st.integers(1, 6))
async def test_lines_keep_their_numbers_however_they_are_cut(blocks: list[bytes], max_line_bytes: int) -> None:
    expected = [
        (number, line if len(line) <= max_line_bytes else None)
        for number, line in enumerate(b"".join(blocks).split(b"\n"), 1)
        if len(line) > max_line_bytes or line.strip()
    ]
    assert await all_lines(blocks, max_line_bytes=max_line_bytes) == expected


def test_too_many_lines_are_told_before_all_are_read() -> None:
    check = InputCheck(CHAT)
    line = jsonl([chat_line("x")])
    check.feed([(number, line.replace(b'"x"', b'"%d"' % number)) for number in range(1, MAX_LINES + 2)])
    check.finish()
    assert check.fatal is not None and (check.fatal.code, check.fatal.line) == ("too_many_lines", MAX_LINES + 1)
