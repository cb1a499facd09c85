"""A request on its way to a member: in whose name, with which weight, and how long it may still take."""

import time
from contextlib import AbstractAsyncContextManager
from typing import Any

import aiohttp

from gateway.completions.asked import Accepted
from gateway.services import Services
from gateway.upstream.client import tiergate_headers
from router.fleet import Member


def send_to(
    member: Member, body: bytes, services: Services, asked: Accepted[Any]
) -> AbstractAsyncContextManager[aiohttp.ClientResponse]:
    """As `WorkerClient.post`."""
    elapsed_s = time.monotonic() - asked.received_monotonic_s
    services.metrics.preparation.observe(elapsed_s)
    headers = tiergate_headers(
        request_id=asked.request_id,
        tenant_id=str(asked.principal.tenant_id),
        weight=asked.tier.weight,
        deadline_s=max(0.001, services.settings.request_timeout_s - elapsed_s),
    )
    return services.workers.post(member, asked.path, body, headers)
