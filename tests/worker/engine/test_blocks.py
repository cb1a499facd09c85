"""The block pool against a simple model, and what the prefix cache's names promise."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from worker.engine.blocks import BlockPool, OutOfBlocks, blocks_needed
from worker.engine.prefix_cache import chain_digest, root_digest

NUM_BLOCKS = 12
ACTIONS = st.lists(st.tuples(st.sampled_from(["take", "share", "release", "name"]), st.integers(0, 9)), max_size=200)


@given(ACTIONS)
def test_no_block_is_lost_or_owned_twice(actions: list[tuple[str, int]]) -> None:
    pool = BlockPool(NUM_BLOCKS)
    owned: list[list[int]] = []
    for action, n in actions:
        if action == "take":
            take(pool, owned, n)
        elif action == "share" and owned:
            pool.share(owned[n % len(owned)])
            owned.append(list(owned[n % len(owned)]))
        elif action == "release" and owned:
            pool.release(owned.pop(n % len(owned)))
        elif action == "name" and owned:
            for i, block_id in enumerate(owned[n % len(owned)]):
                pool.name(block_id, bytes([n, i]))
        pool.check(owned)
        assert pool.num_free == NUM_BLOCKS - len({block_id for block_ids in owned for block_id in block_ids})


def take(pool: BlockPool, owned: list[list[int]], n: int) -> None:
    if n > pool.num_free:
        with pytest.raises(OutOfBlocks):
            pool.allocate(n)
        return
    owned.append(pool.allocate(n))


def test_the_check_finds_a_lost_block() -> None:
    pool = BlockPool(4)
    pool.allocate(1)
    with pytest.raises(AssertionError):
        pool.check([])


def test_released_content_is_found_until_its_block_is_reused_oldest_first() -> None:
    pool = BlockPool(3)
    for name in (b"a", b"b"):
        block_ids = pool.allocate(1)
        pool.name(block_ids[0], name)
        pool.release(block_ids)
    assert pool.find([b"a"]) and pool.find([b"b"])
    pool.allocate(2)
    assert not pool.find([b"a"]) and pool.find([b"b"])


def test_a_hit_saves_a_block_from_reuse() -> None:
    pool = BlockPool(2)
    block_ids = pool.allocate(1)
    pool.name(block_ids[0], b"a")
    pool.release(block_ids)
    pool.share(pool.find([b"a"]))
    with pytest.raises(OutOfBlocks):
        pool.allocate(2)


def test_only_a_whole_prefix_is_found() -> None:
    pool = BlockPool(3)
    first, second, third = pool.allocate(3)
    pool.name(first, b"1")
    pool.name(third, b"3")
    assert pool.find([b"1", b"2", b"3"]) == [first]
    pool.name(second, b"2")
    assert pool.find([b"1", b"2", b"3"]) == [first, second, third]


def test_nothing_is_shared_between_salts_models_and_adapters() -> None:
    roots = {
        root_digest(salt=salt, model_version=model, adapter_digest=adapter)
        for salt, model, adapter in (("", "m", ""), ("t", "m", ""), ("", "mt", ""), ("", "m", "t"), ("m", "t", ""))
    }
    assert len(roots) == 5
    assert len({chain_digest(root, [1, 2, 3]) for root in roots}) == 5


@given(st.integers(0, 10_000))
def test_blocks_needed_is_the_smallest_number_that_holds_the_tokens(num_tokens: int) -> None:
    count = blocks_needed(num_tokens)
    assert count * 16 >= num_tokens > (count - 1) * 16
