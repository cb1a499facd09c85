"""`/v1/batches`."""

from datetime import datetime
from typing import Annotated, Any, Literal

from fastapi import APIRouter, Depends, Query
from pydantic import BaseModel, ConfigDict, Field

from gateway.clock import utc_now
from gateway.domain.batches.models import Batch
from gateway.domain.batches.service import (
    batch_name,
    batches_of,
    cancel_batch,
    create_batch,
    get_batch,
    parse_batch_id,
)
from gateway.domain.files.service import file_name, parse_file_id
from gateway.inference.files import ExpiresAfter, made_at
from gateway.inference.openai_pages import openai_page
from gateway.inference.query import refuse_other_query
from gateway.services import InferenceDep, ServicesDep

router = APIRouter(prefix="/v1/batches", tags=["batches"], dependencies=[Depends(refuse_other_query)])

Endpoint = Literal["/v1/chat/completions", "/v1/completions", "/v1/embeddings"]
Note = Annotated[str, Field(max_length=512)]


class BatchDraft(BaseModel):
    """`input_file_id` names a file with the purpose `batch`: at most 50,000 lines, all for `endpoint` and one model."""

    model_config = ConfigDict(extra="forbid", strict=True)

    input_file_id: Annotated[str, Field(max_length=64)]
    endpoint: Endpoint
    completion_window: Literal["24h"]
    metadata: Annotated[dict[Annotated[str, Field(max_length=64)], Note], Field(max_length=16)] | None = None
    output_expires_after: ExpiresAfter | None = None


class BatchError(BaseModel):
    code: str
    message: str
    param: str | None
    line: int | None


class BatchErrors(BaseModel):
    object: Literal["list"] = "list"
    data: list[BatchError]


class RequestCounts(BaseModel):
    total: int
    completed: int
    failed: int


class BatchView(BaseModel):
    """`errors` says why the batch failed and lists the first 100 lines that could not be run; the error file has all
    of them."""

    id: str
    object: Literal["batch"] = "batch"
    endpoint: str
    model: str | None
    errors: BatchErrors | None
    input_file_id: str
    completion_window: str
    status: str
    output_file_id: str | None
    error_file_id: str | None
    created_at: int
    in_progress_at: int | None
    expires_at: int
    finalizing_at: int | None
    completed_at: int | None
    failed_at: int | None
    expired_at: int | None
    cancelling_at: int | None
    cancelled_at: int | None
    request_counts: RequestCounts
    metadata: dict[str, str] | None

    @classmethod
    def of(cls, batch: Batch) -> "BatchView":
        names = ("in_progress", "finalizing", "completed", "failed", "expired", "cancelling", "cancelled")
        moments: dict[str, datetime | None] = {f"{name}_at": getattr(batch, f"{name}_at") for name in names}
        times: dict[str, Any] = {name: made_at(moment) for name, moment in moments.items()}
        return cls(
            id=batch_name(batch.id),
            endpoint=batch.endpoint,
            model=batch.model,
            errors=None if batch.errors is None else BatchErrors(data=[BatchError(**each) for each in batch.errors]),
            input_file_id=file_name(batch.input_file_id),
            completion_window=batch.completion_window,
            status=batch.status,
            output_file_id=None if batch.output_file_id is None else file_name(batch.output_file_id),
            error_file_id=None if batch.error_file_id is None else file_name(batch.error_file_id),
            created_at=int(batch.created_at.timestamp()),
            expires_at=int(batch.expires_at.timestamp()),
            request_counts=RequestCounts(total=batch.num_lines, completed=batch.num_completed, failed=batch.num_failed),
            metadata=batch.notes,
            **times,
        )


class BatchList(BaseModel):
    object: Literal["list"]
    data: list[BatchView]
    first_id: str | None
    last_id: str | None
    has_more: bool


@router.post("")
async def post_batch(draft: BatchDraft, principal: InferenceDep, services: ServicesDep) -> BatchView:
    """Create a batch. Its file is checked first; its requests then run on idle capacity, behind all other requests."""
    settings = services.settings
    lasts = draft.output_expires_after
    batch = await create_batch(
        services.sessions,
        principal,
        endpoint=draft.endpoint,
        input_file_id=parse_file_id(draft.input_file_id),
        completion_window=draft.completion_window,
        notes=draft.metadata,
        output_lasts_s=settings.files_kept_days * 86_400 if lasts is None else lasts.seconds,
        max_live=settings.max_batches,
        now=utc_now(),
    )
    return BatchView.of(batch)


@router.get("")
async def list_batches(
    principal: InferenceDep,
    services: ServicesDep,
    limit: Annotated[int, Query(ge=1, le=100)] = 20,
    after: Annotated[str | None, Query(max_length=64)] = None,
) -> BatchList:
    start = None if after is None else parse_batch_id(after)
    query = batches_of(principal.tenant_id)
    async with services.sessions() as session:
        page = await openai_page(session, query, Batch.id, limit=limit, after=start, order="desc", show=BatchView.of)
    return BatchList(**page)


@router.get("/{batch_id}")
async def show_batch(batch_id: str, principal: InferenceDep, services: ServicesDep) -> BatchView:
    async with services.sessions() as session:
        return BatchView.of(await get_batch(session, principal.tenant_id, parse_batch_id(batch_id)))


@router.post("/{batch_id}/cancel")
async def post_cancel(batch_id: str, principal: InferenceDep, services: ServicesDep) -> BatchView:
    """Cancel a batch: no further request is started; completed ones are kept and written to the batch's files.

    409 if the batch is finalizing or has ended, unless it was cancelled before.
    """
    batch = await cancel_batch(services.sessions, principal.tenant_id, parse_batch_id(batch_id), now=utc_now())
    return BatchView.of(batch)
