"""The report of an erasure: what was removed, where and when. Its SHA-256 is sealed under the pepper."""

import hashlib
import json
from typing import Any

from gateway.domain.erasures.models import Erasure
from gateway.domain.erasures.seals import seal_of, sealed_with
from gateway.peppers import Peppers


def report_of(erasure: Erasure) -> dict[str, Any]:
    assert erasure.finished_at is not None
    return {
        "id": str(erasure.id),
        "tenant_id": str(erasure.tenant_id),
        "is_of_user": erasure.is_of_user,
        "created_at": erasure.created_at.isoformat(),
        "finished_at": erasure.finished_at.isoformat(),
        "steps": erasure.steps,
    }


def seal_report(erasure: Erasure, *, pepper: str) -> None:
    digest = _digest(erasure)
    erasure.sha256, erasure.seal = digest.hex(), seal_of(digest, pepper=pepper)


def is_as_sealed(erasure: Erasure, *, peppers: Peppers) -> bool:
    digest = _digest(erasure)
    return erasure.sha256 == digest.hex() and sealed_with(erasure.seal, digest, peppers=peppers) is not None


def _digest(erasure: Erasure) -> bytes:
    return hashlib.sha256(json.dumps(report_of(erasure), sort_keys=True).encode()).digest()
