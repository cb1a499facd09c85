"""A launched step in flight: what the loop must know when the step ends."""

from dataclasses import dataclass, field

from worker.engine.blocks import BlockPool
from worker.engine.pending import Pending
from worker.engine.sequence import Advance, Chunk, Sequence


@dataclass(frozen=True, slots=True)
class Load:
    """A step's load: how many sequences decode, how many prompt tokens it has, how many sequences can run together."""

    num_decodes: int
    num_prefill: int
    num_together: int

    @classmethod
    def of(cls, chunks: list[Chunk], num_together: int) -> "Load":
        """Call before the chunks are launched."""
        prefills = [chunk for chunk in chunks if not (chunk.is_decode or chunk.sequence.is_extending)]
        return cls(len(chunks) - len(prefills), sum(chunk.num_tokens for chunk in prefills), num_together)


@dataclass(slots=True)
class Flight:
    """load: None for a chunk that is tried alone. kept: sequences that ended meanwhile, with the blocks that the step
    still reads and writes; no other sequence gets these blocks before the step has ended."""

    advances: list[Advance]
    pending: Pending
    started_at: float
    load: Load | None
    kept: list[tuple[Sequence, list[int]]] = field(default_factory=list)

    @property
    def sequences(self) -> list[Sequence]:
        return [advance.sequence for advance in self.advances]

    def holds(self, sequence: Sequence) -> bool:
        return any(advance.sequence is sequence for advance in self.advances)

    def keep(self, sequence: Sequence, pool: BlockPool) -> None:
        """Keep the sequence's blocks for this step; call before their owner releases them."""
        blocks = list(sequence.owned_blocks)
        pool.share(blocks)
        self.kept.append((sequence, blocks))
