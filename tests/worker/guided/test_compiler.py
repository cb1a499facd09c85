"""Compiling beside an event loop: shared, bounded, forgotten."""

import asyncio

import pytest

from protocol.guided import Choice, JsonSchema, Regex
from worker.guided import BadGrammar, GrammarCompiler, Vocabulary
from worker.guided import compiler as limits


async def test_those_who_want_the_same_at_once_wait_for_one_compilation(vocabulary: Vocabulary) -> None:
    seconds: list[float] = []
    compiler = GrammarCompiler(vocabulary, observe=seconds.append)
    found = await asyncio.gather(*(compiler.compile(Regex("[a-z]+"), salt="") for _ in range(20)))
    assert len(seconds) == 1 and len({id(grammar) for grammar in found}) == 1
    assert await compiler.compile(Regex("[a-z]+"), salt="") is found[0]
    assert (compiler.num_hits, compiler.num_misses) == (1, 20)
    compiler.close()


async def test_tenants_share_no_grammar(vocabulary: Vocabulary) -> None:
    compiler = GrammarCompiler(vocabulary)
    one, other = [await compiler.compile(Regex("a"), salt=salt) for salt in ("one", "other")]
    assert one is not other
    compiler.close()


async def test_who_leaves_does_not_take_it_from_the_others(vocabulary: Vocabulary) -> None:
    compiler = GrammarCompiler(vocabulary)
    spec = JsonSchema('{"enum": [' + ",".join(f'"value {i}"' for i in range(3000)) + "]}")
    leaving, staying = [asyncio.ensure_future(compiler.compile(spec, salt="")) for _ in range(2)]
    await asyncio.sleep(0)
    leaving.cancel()
    assert (await staying).start() is not None
    assert leaving.cancelled()
    compiler.close()


async def test_what_is_refused_is_not_kept_and_tells_everybody(vocabulary: Vocabulary) -> None:
    compiler = GrammarCompiler(vocabulary)
    results = await asyncio.gather(*(compiler.compile(Regex("("), salt="") for _ in range(3)), return_exceptions=True)
    assert all(isinstance(result, BadGrammar) for result in results)
    with pytest.raises(BadGrammar):
        await compiler.compile(Regex("("), salt="")
    assert compiler.num_hits == 0
    compiler.close()


async def test_the_oldest_are_forgotten_and_so_is_one_that_met_a_limit(vocabulary: Vocabulary) -> None:
    compiler = GrammarCompiler(vocabulary)
    first = await compiler.compile(Choice(("first",)), salt="")
    for i in range(limits.MAX_KNOWN):
        last = await compiler.compile(Choice((f"choice {i}",)), salt="")
    assert await compiler.compile(Choice(("first",)), salt="") is not first
    last.start().give_up()
    assert await compiler.compile(Choice((f"choice {limits.MAX_KNOWN - 1}",)), salt="") is not last
    compiler.close()
