from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Generic, TypeVar

from gateway.inference.accounts import Accounts
from gateway.inference.exchange import Exchange
from gateway.inference.measure import Measured
from gateway.inference.route import Attempt
from gateway.inference.usage_record import UsageRecord
from gateway.inference.validate import Accepted
from gateway.services import Services

T = TypeVar("T")


@dataclass(frozen=True)
class Operation(Generic[T]):
    """The steps that differ between completions and embeddings. `validate` and `measure` raise to refuse a request."""

    validate: Callable[[Exchange, bytes], T]
    measure: Callable[[Accepted[T], Services], Awaitable[Measured]]
    make_attempt: Callable[[Services, Exchange, UsageRecord, Accounts], Attempt]
