"""The 429 for each limit. It says whose limit was reached, which limit, when to retry, and what to change."""

from gateway.domain.limits import LimitScope
from gateway.http.errors import LimitReached
from gateway.limits.reservation import TENANT, Admission, seconds_to_midnight, seconds_to_next_month
from gateway.limits.standing import Standing


def refuse(
    admission: Admission, scope: LimitScope, standing: Standing, limit: str, *, retry_after_s: float
) -> LimitReached:
    limits, tokens = scope.limits, admission.tokens
    if limit == "requests_per_minute":
        text = f"{limits.requests_per_minute} requests a minute are used up"
    elif limit == "tokens_per_minute":
        text = f"{tokens} tokens (prompt and max_tokens) do not fit into {limits.tokens_per_minute} tokens a minute"
    elif limit == "concurrency":
        text = f"{limits.concurrency} requests are under way, which is the limit; wait for one to end"
    elif limit == "tokens_per_day":
        text = f"{tokens} tokens (prompt and max_tokens) do not fit into what is left of {limits.tokens_per_day} a day"
        retry_after_s = seconds_to_midnight(admission.now)
    else:
        text = "the cost of prompt and max_tokens does not fit into what is left of this month's budget"
        retry_after_s = seconds_to_next_month(admission.now)
    message = f"limit of {_owner(admission, scope, limit)}: {text}; retry in {retry_after_s:.1f} s"
    return _limit_reached(admission, scope, standing, message, limit, retry_after_s)


def refuse_too_large(admission: Admission, scope: LimitScope, standing: Standing) -> LimitReached:
    """For a request with more tokens than can ever fit: waiting does not help, but a smaller max_tokens may."""
    text = f"{admission.tokens} tokens (prompt and max_tokens) are more than {scope.limits.tokens_per_minute} a minute"
    message = (
        f"limit of {_owner(admission, scope, 'tokens_per_minute')}: {text}; lower max_tokens or shorten the prompt"
    )
    return _limit_reached(admission, scope, standing, message, "tokens_per_minute", 60, can_pass=False)


def _limit_reached(
    admission: Admission,
    scope: LimitScope,
    standing: Standing,
    message: str,
    limit: str,
    retry_after_s: float,
    *,
    can_pass: bool = True,
) -> LimitReached:
    headers = standing.headers(admission.tier)
    return LimitReached(
        message,
        code=limit,
        scope=scope.name,
        retry_after_s=retry_after_s,
        extra_headers=headers,
        can_pass=can_pass,
    )


def _owner(admission: Admission, scope: LimitScope, limit: str) -> str:
    """`tier free`, `this tenant`, `this key`, `this user`."""
    return admission.tier.owner_of(limit) if scope.name == TENANT else f"this {scope.name.partition(':')[0]}"
