from protocol.errors import ErrorType, ProtocolError


class NotInStore(ProtocolError):
    status = 404
    type: ErrorType = "not_found_error"

    def __init__(self, digest: str) -> None:
        super().__init__(f"the store has no adapter {digest}", param="model", code="model_not_found")


class StoreAway(ProtocolError):
    """Or slow: what is on its way goes on coming."""

    status = 503
    type: ErrorType = "overloaded_error"
    retry_after_s = 2.0

    def __init__(self, reason: str) -> None:
        super().__init__(f"the adapter cannot be fetched now: {reason}", code="adapter_unavailable")


class BadArtifact(ProtocolError):
    """What the store holds is not what the digest says, or cannot be served here."""

    status = 500
    type: ErrorType = "server_error"

    def __init__(self, reason: str) -> None:
        super().__init__(f"the adapter cannot be loaded: {reason}", code="adapter_failed")
