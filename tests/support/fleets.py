"""Fleets for router tests."""

from typing import Any

from protocol.load import LoadReport
from router.fleet import Fleet, Member, Pool


def load(
    *,
    waiting: int = 0,
    running: int = 0,
    free_blocks: int = 100,
    max_num_seqs: int = 64,
    is_draining: bool = False,
    adapters: tuple[str, ...] = (),
    resident: tuple[str, ...] | None = None,
    fetches: bool = False,
) -> LoadReport:
    return LoadReport(
        worker_id="reported",
        model="m",
        model_version="v",
        pool=None,
        adapters=adapters,
        num_running=running,
        num_waiting=waiting,
        max_num_seqs=max_num_seqs,
        max_waiting=256,
        max_model_len=4096,
        num_blocks=100,
        num_free_blocks=free_blocks,
        block_size=16,
        is_draining=is_draining,
        prompt_tokens_total=0,
        completion_tokens_total=0,
        discarded_tokens_total=0,
        resident_adapters=resident,
        fetches_adapters=fetches,
    )


def member(name: str, report: LoadReport | None = None, **fields: Any) -> Member:
    return Member(worker_id=name, url=f"http://{name}", model_name="m", load=report or load(), **fields)


def pool(name: str, *members: Member, window: int = 4096, **fields: Any) -> Pool:
    return Pool(name=name, model_id=f"demo-{name}", context_window=window, members=members, **fields)


def fleet(*pools: Pool) -> Fleet:
    return Fleet(pools={each.name: each for each in pools})


def two_pools(*, small: LoadReport | None = None, large: LoadReport | None = None) -> Fleet:
    return fleet(pool("small", member("s", small)), pool("large", member("l", large)))
