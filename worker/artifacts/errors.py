from protocol.errors import ADAPTER_UNAVAILABLE, ErrorType, ProtocolError


class NotInStore(ProtocolError):
    status = 404
    type: ErrorType = "not_found_error"

    def __init__(self, digest: str) -> None:
        super().__init__(f"the store has no adapter {digest}", param="model", code="model_not_found")


class StoreAway(ProtocolError):
    """The store is away or slow; a fetch under way goes on. Has no retry_after_s, which would mean that this worker is
    full."""

    status = 503
    type: ErrorType = "overloaded_error"

    def __init__(self, reason: str) -> None:
        super().__init__(f"the adapter cannot be fetched now: {reason}", code=ADAPTER_UNAVAILABLE)


class BadArtifact(ProtocolError):
    """The stored adapter does not match its digest, or cannot be served here. The worker is not at fault, and goes on
    serving all other adapters."""

    def __init__(self, reason: str) -> None:
        super().__init__(f"the adapter cannot be loaded: {reason}", param="model", code="adapter_failed")
