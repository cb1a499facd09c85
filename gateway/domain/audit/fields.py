"""How an audit row shows an object."""

import hashlib
import json
from collections.abc import Mapping
from datetime import datetime
from typing import Any
from uuid import UUID

from sqlalchemy import LargeBinary

from gateway.database import Base

MAX_CHARS = 4000
"""Limit per field. A longer value is shown as its digest, from which a change can be seen."""


def shown(row: Base) -> dict[str, Any]:
    """The columns as JSON values, without the version. Bytes are left out: they are hashed or sealed secrets."""
    version = row.__mapper__.version_id_col
    columns = [
        column for column in row.__table__.columns if column is not version and not isinstance(column.type, LargeBinary)
    ]
    return {column.key: _plain(getattr(row, column.key)) for column in columns}


def changed(before: Mapping[str, Any], after: Mapping[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
    """The fields that differ, before and after."""
    names = [name for name in {**before, **after} if before.get(name) != after.get(name)]
    return {name: before.get(name) for name in names}, {name: after.get(name) for name in names}


def _plain(value: Any) -> Any:
    if isinstance(value, datetime):
        return value.isoformat()
    if isinstance(value, UUID):
        return str(value)
    text = value if isinstance(value, str) else json.dumps(value)
    if len(text) > MAX_CHARS:
        return {"sha256": hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest(), "num_chars": len(text)}
    return value
