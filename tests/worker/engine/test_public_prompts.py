"""What the operator made public is cached once for all tenants, and nothing else is."""

from pathlib import Path

from hypothesis import given
from hypothesis import strategies as st

from tests.support.engine_requests import collect, last_output, make_request
from worker.engine.engine import Engine
from worker.engine.prefix_cache import PublicPrompts, root_digest
from worker.engine.settings import EngineSettings

PUBLIC = [20 + i % 50 for i in range(70)]
PRIVATE = [7] * 40


async def test_tenants_find_the_public_part_of_each_others_prompts_only(checkpoint: Path) -> None:
    engine = Engine.load(EngineSettings(model_path=checkpoint, num_threads=1))
    engine.share_prompts([PUBLIC])
    engine.start()
    first = await last_output(engine, make_request(PUBLIC + PRIVATE, max_tokens=4, cache_salt="a"))
    other = await last_output(engine, make_request(PUBLIC + PRIVATE, max_tokens=4, cache_salt="b"))
    again = await last_output(engine, make_request(PUBLIC + PRIVATE, max_tokens=4, cache_salt="b"))
    # Of 70 public tokens four blocks of 16, of all 110 six.
    assert (first.cached_tokens, other.cached_tokens, again.cached_tokens) == (0, 64, 96)
    await engine.stop()


async def test_answers_are_the_same_with_and_without_sharing(checkpoint: Path) -> None:
    engine = Engine.load(EngineSettings(model_path=checkpoint, num_threads=1))
    engine.start()
    expected = await collect(engine, make_request(PUBLIC + PRIVATE, max_tokens=20))
    await engine.stop()
    engine = Engine.load(EngineSettings(model_path=checkpoint, num_threads=1))
    engine.share_prompts([PUBLIC])
    engine.start()
    for salt in "ab":
        assert await collect(engine, make_request(PUBLIC + PRIVATE, max_tokens=20, cache_salt=salt)) == expected
    await engine.stop()


async def test_adapters_never_share_and_neither_do_prompts_that_only_resemble(engine: Engine) -> None:
    engine.share_prompts([PUBLIC])
    for adapter in (None, "one", "two"):
        request = make_request(PUBLIC + PRIVATE, max_tokens=1, adapter=adapter, cache_salt="a")
        assert (await last_output(engine, request)).cached_tokens == 0
    for salt, expected in (("a", 0), ("b", 0), ("b", 96)):
        request = make_request([6, *PUBLIC[1:], *PRIVATE], max_tokens=1, cache_salt=salt)
        assert (await last_output(engine, request)).cached_tokens == expected


@given(st.lists(st.integers(0, 3), max_size=80), st.lists(st.lists(st.integers(0, 3), max_size=80), max_size=3))
def test_only_full_blocks_that_a_public_prompt_begins_with_are_named(
    prompt: list[int], public: list[list[int]]
) -> None:
    names = PublicPrompts(public).names(prompt, model_version="m", adapter_digest="")
    longest = max((n for each in public for n in range(len(each) + 1) if each[:n] == prompt[:n]), default=0)
    assert len(names) == min(longest, len(prompt)) // 16


def test_no_salt_makes_a_tenants_names_public() -> None:
    public = root_digest(salt=None, model_version="m", adapter_digest="")
    salts = ("", "m", "None", "\x00", "\xff\xff\xff\xff", "a" * 300)
    assert public not in {root_digest(salt=salt, model_version="m", adapter_digest="") for salt in salts}
