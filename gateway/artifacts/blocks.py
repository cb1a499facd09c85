"""Bytes on their way into an object store."""

from collections.abc import AsyncIterable, AsyncIterator


async def in_blocks(chunks: AsyncIterable[bytes], block_bytes: int) -> AsyncIterator[bytes]:
    """The same bytes in blocks of at least `block_bytes`, except the last. Each block costs a hand-over to a thread."""
    gathered: list[bytes] = []
    size = 0
    async for chunk in chunks:
        gathered.append(chunk)
        size += len(chunk)
        if size >= block_bytes:
            yield b"".join(gathered)
            gathered, size = [], 0
    if size:
        yield b"".join(gathered)
