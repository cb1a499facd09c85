"""State that the handlers share: the engine, the text side, and this replica's identity."""

from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, TypeVar

from protocol.artifacts import digest_of
from protocol.checks import MAX_LOGPROBS
from protocol.errors import ErrorType, ProtocolError
from protocol.load import LoadReport, load_header
from text.bundle import Bundle
from text.reasoning import ReasoningFormat
from text.tool_calls.formats import ToolFormat
from worker.engine.errors import EngineStopped, UnknownAdapter
from worker.engine.request import Pooling
from worker.guided import GrammarCompiler
from worker.server.activity import Activity
from worker.server.defaults import SamplingDefaults
from worker.server.ledger import Ledger
from worker.server.metrics import Metrics
from worker.server.waiting import QueuePositions

if TYPE_CHECKING:
    from worker.engine.engine import Engine
    from worker.server.fetched_adapters import FetchedAdapters

T = TypeVar("T")


class UnknownModel(ProtocolError):
    status = 404
    type: ErrorType = "not_found_error"

    def __init__(self, name: str) -> None:
        super().__init__(
            f"the model {name!r} does not exist here; see GET /v1/models", param="model", code="model_not_found"
        )


class Draining(ProtocolError):
    status = 503
    type: ErrorType = "overloaded_error"
    retry_after_s = 1.0

    def __init__(self) -> None:
        super().__init__("this worker is shutting down; send the request to another", code="draining")


@dataclass(kw_only=True)
class Replica:
    """keys: empty on a loopback-only worker, whose callers get accounting and are trusted with nothing else."""

    engine: "Engine"
    bundle: Bundle
    served_name: str
    pool: str | None
    worker_id: str
    created_at_s: int
    defaults: SamplingDefaults
    metrics: Metrics
    ledger: Ledger
    pooling: Pooling
    keys: tuple[str, ...]
    metrics_key: str | None
    max_body_bytes: int
    max_logprobs: int = MAX_LOGPROBS
    tool_format: ToolFormat
    reasoning: ReasoningFormat | None
    grammars: GrammarCompiler | None = None
    """None if the model's answers cannot be held to a format."""
    fetched: "FetchedAdapters | None" = None
    """None if no adapter store is configured."""
    adapter_paths: dict[str, str] = field(default_factory=dict)
    tokenizer_info: dict[str, Any] = field(default_factory=dict)
    positions: QueuePositions = field(default_factory=QueuePositions)
    activity: Activity = field(default_factory=Activity)
    is_unix: bool = False
    """The server listens on a Unix socket."""
    is_draining: bool = False

    def adapter_for(self, model: str) -> str | None:
        """The adapter that `model` names, None for the model itself. Raises UnknownModel, or UnknownAdapter for an
        adapter that can be fetched."""
        if model == self.served_name:
            return None
        if model not in self.engine.report().adapters:
            is_fetched = self.fetched is not None and digest_of(model) is not None
            raise UnknownAdapter(model) if is_fetched else UnknownModel(model)
        if self.fetched is not None:
            self.fetched.note_use(model)
        return model

    async def serve(self, begin: Callable[[], Awaitable[T]]) -> T:
        """Returns the result of `begin`, once the adapter that it needs is loaded."""
        return await (begin() if self.fetched is None else self.fetched.serve(begin))

    def check_accepting(self) -> None:
        if self.is_draining:
            raise Draining()
        if self.engine.is_broken:
            raise EngineStopped()

    def load_header(self) -> bytes:
        num_running, num_waiting, num_free_blocks = self.engine.brief_load()
        return load_header(
            num_running=num_running,
            num_waiting=num_waiting,
            num_free_blocks=num_free_blocks,
            is_draining=self.is_draining,
        )

    def load_report(self) -> LoadReport:
        load = self.engine.report()
        return LoadReport(
            worker_id=self.worker_id,
            model=self.served_name,
            model_version=load.model_version,
            pool=self.pool,
            adapters=load.adapters,
            resident_adapters=load.resident_adapters,
            num_running=load.num_running,
            num_waiting=load.num_waiting,
            max_num_seqs=load.max_num_seqs,
            max_waiting=load.max_waiting,
            max_model_len=load.max_model_len,
            num_blocks=load.num_blocks,
            num_free_blocks=load.num_free_blocks,
            block_size=load.block_size,
            is_draining=self.is_draining,
            prompt_tokens_total=load.prompt_tokens_total,
            completion_tokens_total=load.completion_tokens_total,
            discarded_tokens_total=load.discarded_tokens_total,
            adapter_base=self.engine.adapter_base,
            fetches_adapters=self.fetched is not None,
        )
