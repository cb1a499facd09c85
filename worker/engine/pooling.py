"""Embeddings: one vector for a text, pooled from the model's final states while its prompt is computed in chunks."""

from torch import Tensor

from worker.engine.sequence import Chunk, Sequence
from worker.model.llama import LlamaModel


def pool(chunks: list[Chunk], x: Tensor, model: LlamaModel) -> dict[Sequence, Tensor]:
    """The value of `Sequence.pooled` after this step, for sequences that are pooled: [hidden] fp32.

    x [tokens, hidden]: the step's states after the last layer, chunk after chunk. A sum stands for the mean: both have
    the same direction. Changes nothing, so that a step can be computed again.
    """
    pooled = {}
    row = 0
    for chunk in chunks:
        sequence, end = chunk.sequence, row + chunk.num_tokens
        if sequence.request.pooling == "last" and chunk.is_last:
            pooled[sequence] = model.final_states(x[end - 1 : end])[0].float()
        elif sequence.request.pooling == "mean":
            total = model.final_states(x[row:end]).float().sum(dim=0)
            # At its first token a sequence begins anew, also after a preemption.
            pooled[sequence] = total + sequence.pooled if sequence.num_computed else total
        row = end
    return pooled


def unit_vector(pooled: Tensor) -> bytes | None:
    """The vector scaled to length 1, as little-endian float32; None if a component is not finite."""
    vector = pooled / pooled.norm()
    return vector.cpu().numpy().astype("<f4").tobytes() if bool(vector.isfinite().all()) else None
