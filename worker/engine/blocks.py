"""The pool of KV blocks: free, owned by one or more sequences, or cached (free, but its content can still be hit)."""

from collections import Counter, OrderedDict
from collections.abc import Iterable

BLOCK_SIZE = 16


def blocks_needed(num_tokens: int) -> int:
    return -(-num_tokens // BLOCK_SIZE)


class OutOfBlocks(Exception):
    """More blocks asked for than are free."""


class BlockPool:
    """Reference counts of blocks 0 .. num_blocks - 1, and which content can be found where.

    A released block goes to the end of the free list with its content still named, and is reused from the front:
    cached content is forgotten least recently used first, and blocks without a name are reused before all named ones.
    """

    def __init__(self, num_blocks: int) -> None:
        self.num_blocks = num_blocks
        self._num_owners = [0] * num_blocks
        self._free: OrderedDict[int, None] = OrderedDict.fromkeys(range(num_blocks))
        self._by_digest: dict[bytes, int] = {}
        self._digests: list[bytes | None] = [None] * num_blocks

    @property
    def num_free(self) -> int:
        return len(self._free)

    @property
    def num_cached(self) -> int:
        """Blocks whose content has a name, owned or free."""
        return len(self._by_digest)

    def allocate(self, count: int) -> list[int]:
        """Blocks for one new owner, contents undefined. Raises OutOfBlocks and then takes none."""
        if count > len(self._free):
            raise OutOfBlocks(f"{count} blocks wanted, {len(self._free)} free")
        return [self._take_oldest() for _ in range(count)]

    def find(self, digests: list[bytes]) -> list[int]:
        """The blocks of the longest prefix of `digests` that is cached; not yet owned, see `share`."""
        found = []
        for digest in digests:
            block_id = self._by_digest.get(digest)
            if block_id is None:
                break
            found.append(block_id)
        return found

    def num_free_of(self, block_ids: list[int]) -> int:
        """How many of these blocks are free now, and would no longer be if shared."""
        return len(self.free_of(block_ids))

    def free_of(self, block_ids: list[int]) -> list[int]:
        return [block_id for block_id in block_ids if block_id in self._free]

    def unshared(self, block_ids: list[int]) -> list[int]:
        """Those of one owner's blocks that nobody else owns."""
        return [block_id for block_id in block_ids if self._num_owners[block_id] == 1]

    def freed_by(self, block_ids: Iterable[int]) -> set[int]:
        """The blocks left without owners if these ownerships were given up; a block is listed once per ownership."""
        return {block_id for block_id, count in Counter(block_ids).items() if count == self._num_owners[block_id]}

    def share(self, block_ids: list[int]) -> None:
        """Make the caller one more owner of each block."""
        for block_id in block_ids:
            self._num_owners[block_id] += 1
            self._free.pop(block_id, None)

    def release(self, block_ids: list[int]) -> None:
        """Give up one ownership of each block. A sequence's last blocks are forgotten before its first."""
        for block_id in reversed(block_ids):
            assert self._num_owners[block_id] > 0, f"block {block_id} released more often than taken"
            self._num_owners[block_id] -= 1
            if self._num_owners[block_id] == 0:
                self._free[block_id] = None
                if self._digests[block_id] is None:
                    self._free.move_to_end(block_id, last=False)

    def name(self, block_id: int, digest: bytes) -> None:
        """Record what an owned, full block holds. If several blocks have the same content, the first keeps the name."""
        if digest not in self._by_digest and self._digests[block_id] is None:
            self._by_digest[digest] = block_id
            self._digests[block_id] = digest

    def unname(self, block_ids: list[int]) -> None:
        """Forget what these blocks hold, so that nobody finds their content any more."""
        for block_id in block_ids:
            digest = self._digests[block_id]
            if digest is not None:
                del self._by_digest[digest]
                self._digests[block_id] = None

    def check(self, owned: list[list[int]]) -> None:
        """Assert that every block is free or owned, counted exactly as in `owned` (one list for each sequence)."""
        counts = [0] * self.num_blocks
        for block_ids in owned:
            for block_id in block_ids:
                counts[block_id] += 1
        assert counts == self._num_owners, "owners disagree with the sequences' block tables"
        assert all((count == 0) == (i in self._free) for i, count in enumerate(counts)), "a block is lost or free twice"
        named = {i: digest for i, digest in enumerate(self._digests) if digest is not None}
        assert named == {i: digest for digest, i in self._by_digest.items()}, "a cached content has no block"

    def _take_oldest(self) -> int:
        block_id, _ = self._free.popitem(last=False)
        self.unname([block_id])
        self._num_owners[block_id] = 1
        return block_id
