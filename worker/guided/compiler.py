"""Compiles grammars in separate threads, without the GIL and at a low priority, and caches them."""

import asyncio
import json
import os
import threading
import time
from collections import OrderedDict
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial

import msgspec
from llguidance import LLMatcher, LLParserLimits

from protocol.guided import Spec
from worker.guided.errors import BadGrammar, CompilerBusy
from worker.guided.grammar import Grammar
from worker.guided.lark import to_llguidance
from worker.guided.schema import Schema, explain
from worker.guided.vocabulary import Vocabulary

MAX_KNOWN = 256
MAX_KNOWN_BYTES = 4 << 20
MAX_WAITING = 256
_MAX_FIRST_MASK_S = 0.25
"""A grammar that takes longer for its first token's mask would hold up other requests' steps with the next ones."""
_MAX_WAIT_S = 10.0
_LOW_PRIORITY = 10
_LIMITS = LLParserLimits(
    # About 5, 5 and 1 milliseconds.
    initial_lexer_fuel=250_000,
    step_lexer_fuel=100_000,
    step_max_items=20_000,
    # Allows this many optional properties.
    max_items_in_row=8_000,
    # 1 to 2 KB each.
    max_lexer_states=30_000,
    max_grammar_size=200_000,
    verbose_errors=False,
)
Observer = Callable[[float], None]


class GrammarCompiler:
    """Belongs to one event loop. Caches compiled grammars by tenant, up to a total number and size."""

    def __init__(self, vocabulary: Vocabulary, *, observe: Observer = lambda seconds: None) -> None:
        """observe: called in the event loop with the seconds of each compilation."""
        self._vocabulary = vocabulary
        self._observe = observe
        self._known: OrderedDict[tuple[str, bytes], Grammar] = OrderedDict()
        self._known_bytes = 0
        self._under_way: dict[tuple[str, bytes], asyncio.Future[Grammar]] = {}
        num_threads = 1 if (os.cpu_count() or 1) <= 4 else 2
        self._pool = ThreadPoolExecutor(num_threads, "grammars", initializer=_yield_to_others)
        self._lock = threading.Lock()
        self.num_hits = 0
        self.num_misses = 0

    async def compile(self, spec: Spec, *, salt: str) -> Grammar:
        """salt: the tenant's; tenants share no grammars. Raises BadGrammar or CompilerBusy."""
        encoded = msgspec.json.encode(spec)
        key = salt, encoded
        with self._lock:
            known = self._known.get(key)
            if known is not None:
                self._known.move_to_end(key)
                self.num_hits += 1
                return known
        self.num_misses += 1
        under_way = self._under_way.get(key)
        if under_way is None:
            if len(self._under_way) >= MAX_WAITING:
                raise CompilerBusy()
            under_way = asyncio.ensure_future(self._compile(spec, key))
            self._under_way[key] = under_way
            under_way.add_done_callback(partial(self._forget_under_way, key))
        try:
            async with asyncio.timeout(_MAX_WAIT_S):
                # A caller that leaves must not cancel the compilation for others that wait for it.
                return await asyncio.shield(under_way)
        except TimeoutError as error:
            raise CompilerBusy() from error

    def close(self) -> None:
        self._pool.shutdown(cancel_futures=True)

    async def _compile(self, spec: Spec, key: tuple[str, bytes]) -> Grammar:
        loop = asyncio.get_running_loop()
        forget = partial(self._forget, key)
        grammar, seconds = await loop.run_in_executor(self._pool, _timed, self._vocabulary, spec, forget)
        self._observe(seconds)
        self._remember(key, grammar)
        return grammar

    def _remember(self, key: tuple[str, bytes], grammar: Grammar) -> None:
        with self._lock:
            self._known[key] = grammar
            self._known_bytes += len(key[1])
            while len(self._known) > MAX_KNOWN or self._known_bytes > MAX_KNOWN_BYTES:
                (_, oldest), _ = self._known.popitem(last=False)
                self._known_bytes -= len(oldest)

    def _forget(self, key: tuple[str, bytes]) -> None:
        """Any thread may call this."""
        with self._lock:
            if self._known.pop(key, None) is not None:
                self._known_bytes -= len(key[1])

    def _forget_under_way(self, key: tuple[str, bytes], done: "asyncio.Future[Grammar]") -> None:
        del self._under_way[key]
        # All callers may have left, so the error is retrieved here.
        if not done.cancelled():
            done.exception()


def _timed(vocabulary: Vocabulary, spec: Spec, forget: Callable[[], None]) -> tuple[Grammar, float]:
    started_at = time.perf_counter()
    return compile_grammar(vocabulary, spec, forget=forget), time.perf_counter() - started_at


def compile_grammar(vocabulary: Vocabulary, spec: Spec, *, forget: Callable[[], None] = lambda: None) -> Grammar:
    """Compile in the calling thread. forget: see `Grammar`. Raises BadGrammar."""
    text = to_llguidance(spec, vocabulary.marks)
    template = LLMatcher(vocabulary.ll, text, log_level=0, limits=_LIMITS)
    if not template.is_error():
        started_at = time.perf_counter()
        template.compute_bitmask()
        if time.perf_counter() - started_at > _MAX_FIRST_MASK_S:
            raise BadGrammar("the schema has too many cases at its start, as of nested repetitions in a pattern")
    if template.is_error():
        raise BadGrammar(explain(template.get_error(), _schemas_of(text)))
    return Grammar(template, vocabulary.eos_token_ids[0], forget)


def _schemas_of(text: str) -> list[Schema]:
    return [each["json_schema"] for each in json.loads(text)["grammars"] if "json_schema" in each]


def _yield_to_others() -> None:
    """Give steps precedence over compiling; on Linux a thread has its own priority."""
    if hasattr(os, "setpriority"):
        os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), _LOW_PRIORITY)
