"""The memory of resident adapters: pages of 16 rank columns in all projections, see `kernels.lora.pages`."""

from collections.abc import Sequence

import torch

from kernels.lora import PAGE_RANKS, LoraPages, empty_pages
from worker.lora.adapter import Adapter
from worker.model.config import ModelConfig
from worker.model.llama import FUSED, projection_shapes


def pages_needed(rank: int) -> int:
    return -(-rank // PAGE_RANKS)


class AdapterPages:
    """layers: each layer's pages by fused projection. Any thread may write pages that no step reads."""

    def __init__(self, config: ModelConfig, dtype: torch.dtype, *, num_pages: int, device: str = "cpu") -> None:
        self.num_pages = num_pages
        shapes = projection_shapes(config)
        self.layers: list[dict[str, LoraPages]] = [
            {
                fused: empty_pages(
                    num_pages,
                    in_size=shapes[parts[0]][1],
                    slice_sizes=[shapes[part][0] for part in parts],
                    dtype=dtype,
                    device=device,
                )
                for fused, parts in FUSED.items()
            }
            for _ in range(config.num_layers)
        ]

    def write(self, adapter: Adapter, page_ids: Sequence[int]) -> None:
        """page_ids: as many as the adapter needs, in order; their old contents are lost."""
        assert len(page_ids) == pages_needed(adapter.rank)
        for layer, projections in enumerate(self.layers):
            for fused, pages in projections.items():
                for place, page in enumerate(page_ids):
                    pages.clear(page)
                    ranks = slice(place * PAGE_RANKS, (place + 1) * PAGE_RANKS)
                    for part, name in enumerate(FUSED[fused]):
                        if (layer, name) in adapter.weights:
                            a, b = adapter.weights[layer, name]
                            pages.write(page, part, a[ranks], b[ranks])

    def release(self, page_ids: Sequence[int]) -> None:
        """Discards the pages' contents and returns their memory to the system."""
        for projections in self.layers:
            for pages in projections.values():
                for page in page_ids:
                    pages.release(page)
