"""Checks the configured members of all pools: each answers, accepts our key, and serves the expected model."""

import asyncio
import os

import httpx

from gateway.settings import GatewaySettings, MemberConfig, PoolConfig
from tiergate.doctor.findings import Finding, error, one_line

DEADLINE_S = 5.0
_REFUSED = (401, 403)


async def look_at_members(settings: GatewaySettings) -> list[Finding]:
    asked = [(name, pool, member) for name, pool in settings.all_pools.items() for member in pool.members]
    async with httpx.AsyncClient(timeout=DEADLINE_S) as http:
        answers = await asyncio.gather(*(_ask(http, settings, *each) for each in asked))
    return [finding for found in answers for finding in found]


async def _ask(
    http: httpx.AsyncClient, settings: GatewaySettings, pool_name: str, pool: PoolConfig, member: MemberConfig
) -> list[Finding]:
    at = f"the member {member.url} of the pool {pool_name}"
    try:
        for key in _keys(settings, member):
            headers = {} if key is None else {"authorization": f"Bearer {key}"}
            answer = await http.get(f"{member.url.removesuffix('/v1')}/v1/models", headers=headers)
            if answer.status_code not in _REFUSED:
                break
        names = {str(card["id"]) for card in answer.json()["data"]} if answer.is_success else set()
    except httpx.HTTPError as problem:
        return [error("member-away", f"{at} does not answer: {one_line(problem)}", "start it, or correct its url")]
    except (ValueError, KeyError, TypeError):
        return [error("member-foreign", f"{at} does not speak OpenAI's dialect", "correct its url")]
    if answer.status_code in _REFUSED:
        todo = (
            "set TIERGATE_WORKER_KEY as the worker has it" if member.engine == "tiergate" else "correct its api_key_env"
        )
        return [error("member-key", f"{at} refuses our key", todo)]
    if not answer.is_success:
        return [error("member-failing", f"{at} answers {answer.status_code}", "look into its log")]
    wanted = member.model or pool.model
    if wanted not in names:
        what = f"{at} serves {', '.join(sorted(names)) or 'nothing'}, not {wanted}"
        return [error("member-model", what, "correct `model` of the pool or of the member")]
    return []


def _keys(settings: GatewaySettings, member: MemberConfig) -> tuple[str | None, ...]:
    """The keys to try, the likeliest first."""
    if member.api_key_env is not None:
        return (os.environ.get(member.api_key_env),)
    return (settings.worker_keys if member.engine == "tiergate" else ()) or (None,)
