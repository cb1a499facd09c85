"""The 429 for each limit: what binds, when to come back, what to change."""

from gateway.http.errors import LimitReached
from gateway.limits.reservation import Admission, seconds_to_midnight, seconds_to_next_month
from gateway.limits.standing import Standing


def refuse(admission: Admission, standing: Standing, limit: str, *, retry_after_s: float) -> LimitReached:
    tier, tokens = admission.tier, admission.tokens
    if limit == "requests_per_minute":
        text = f"{tier.requests_per_minute} requests a minute are used up"
    elif limit == "tokens_per_minute":
        text = f"{tokens} tokens (prompt and max_tokens) do not fit into {tier.tokens_per_minute} tokens a minute"
    elif limit == "concurrency":
        text = f"{tier.concurrency} requests are under way, which is the limit; wait for one to end"
    elif limit == "tokens_per_day":
        text = f"{tokens} tokens (prompt and max_tokens) do not fit into what is left of {tier.tokens_per_day} a day"
        retry_after_s = seconds_to_midnight(admission.now)
    else:
        text = "the cost of prompt and max_tokens does not fit into what is left of this month's budget"
        retry_after_s = seconds_to_next_month(admission.now)
    message = f"limit of tier {tier.name}: {text}; retry in {retry_after_s:.1f} s"
    return LimitReached(message, code=limit, retry_after_s=retry_after_s, extra_headers=standing.headers(tier))


def refuse_too_large(admission: Admission, standing: Standing) -> LimitReached:
    """More tokens than ever fit: waiting does not help, a smaller max_tokens may."""
    text = (
        f"{admission.tokens} tokens (prompt and max_tokens) are more than {admission.tier.tokens_per_minute} a minute"
    )
    message = f"limit of tier {admission.tier.name}: {text}; lower max_tokens or shorten the prompt"
    headers = standing.headers(admission.tier)
    return LimitReached(message, code="tokens_per_minute", retry_after_s=60, extra_headers=headers)
