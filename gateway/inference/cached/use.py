"""Whether a request may be answered from the cache, and whether its answer may be kept."""

from dataclasses import dataclass

from gateway.domain.answer_caching.terms import CacheTerms
from gateway.http.errors import InvalidRequest
from gateway.http.headers import Headers
from gateway.inference.validate import Accepted
from protocol.requests import ChatCompletionRequest, CompletionRequest

HEADER = "X-Tiergate-Cache"
_CACHE = HEADER.lower().encode()
_NONE = CacheTerms()


@dataclass(frozen=True, slots=True)
class Use:
    terms: CacheTerms
    is_read: bool
    """False: the cache is not read; the new answer replaces any cached one."""


def use_of(headers: Headers, accepted: Accepted[object]) -> Use | None:
    """None if the cache is neither read nor written. Raises InvalidRequest."""
    asked = _asked(headers)
    of_tenants = accepted.catalog.cache_terms
    terms = of_tenants.get(accepted.principal.tenant_id, _NONE) if of_tenants else _NONE
    if terms.mode == "off" or asked == "off" or not (terms.is_default or asked == "on"):
        return None
    request = accepted.request
    if not isinstance(request, ChatCompletionRequest | CompletionRequest):
        return None
    if request.temperature != 0 and not terms.takes_sampled:
        return None
    directives = {each.strip().lower() for each in headers.get(b"cache-control", b"").split(b",")}
    return None if b"no-store" in directives else Use(terms, is_read=b"no-cache" not in directives)


def _asked(headers: Headers) -> str | None:
    value = headers.get(_CACHE)
    if value is None:
        return None
    asked = value.decode("latin-1").strip().lower()
    if asked not in ("on", "off"):
        raise InvalidRequest(f"{HEADER}: send on or off", param=HEADER)
    return asked
