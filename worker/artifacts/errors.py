from protocol.errors import ADAPTER_UNAVAILABLE, ErrorType, ProtocolError


class NotInStore(ProtocolError):
    status = 404
    type: ErrorType = "not_found_error"

    def __init__(self, digest: str) -> None:
        super().__init__(f"the store has no adapter {digest}", param="model", code="model_not_found")


class StoreAway(ProtocolError):
    """Or slow: what is on its way goes on coming. Without a time to come again, which would mean that this worker is
    full."""

    status = 503
    type: ErrorType = "overloaded_error"

    def __init__(self, reason: str) -> None:
        super().__init__(f"the adapter cannot be fetched now: {reason}", code=ADAPTER_UNAVAILABLE)


class BadArtifact(ProtocolError):
    """What the store holds is not what the digest says, or cannot be served here. No fault of the worker's, which goes
    on with all others."""

    def __init__(self, reason: str) -> None:
        super().__init__(f"the adapter cannot be loaded: {reason}", param="model", code="adapter_failed")
