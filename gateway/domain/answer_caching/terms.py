from dataclasses import dataclass

MAX_TTL_S = 7 * 24 * 3600


@dataclass(frozen=True, slots=True)
class CacheTerms:
    """A policy as the catalog holds it."""

    mode: str = "off"
    is_default: bool = False
    ttl_s: int = 3600
    min_similarity: float = 0.95
    takes_sampled: bool = False
    version: int = 0
