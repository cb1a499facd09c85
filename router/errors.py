"""The reasons why a request has no route. The gateway maps each class to an HTTP status."""


class RouteError(Exception):
    """The message says what a client can change."""


class UnknownModel(RouteError):
    """No pool, model or adapter has this name."""


class PoolNotAllowed(RouteError):
    """The tier excludes every pool that could serve the request."""


class DoesNotFit(RouteError):
    """Prompt and answer together are longer than the context window of every allowed pool."""


class NoReplica(RouteError):
    """The pools exist, but none has a healthy replica."""


class Saturated(RouteError):
    """Every replica's queue is too long for this tier; `wanted` is the pool that the request would have gone to."""

    def __init__(self, message: str, retry_after_s: float, *, wanted: str = "") -> None:
        super().__init__(message)
        self.wanted = wanted
        self.retry_after_s = retry_after_s


class BadWeights(ValueError):
    """A router weights file that cannot be used. The message is one line for an operator."""
