"""Constrained answers through the whole engine, beside others, with a demo model."""

import asyncio
import json
from array import array
from collections.abc import AsyncIterator
from dataclasses import replace

import jsonschema
import pytest
from llguidance import LLMatcher, LLParserLimits

from protocol.guided import ANY_OBJECT, Choice, Grammar, JsonSchema, Regex, Spec
from tests.support.engine_requests import collect, make_request
from tests.worker.guided.conftest import SMALL
from text.tokenizer import Tokenizer
from worker.engine.engine import Engine
from worker.engine.errors import GrammarLimit, InvalidRequest, NoTokenLeft
from worker.engine.request import EngineRequest, TokenOutput
from worker.engine.settings import EngineSettings
from worker.guided import Vocabulary
from worker.guided import grammar as grammars
from worker.guided.compiler import compile_grammar

ORDER = {
    "type": "object",
    "properties": {
        "customer_identifier": {"type": "string", "maxLength": 8},
        "priority_level": {"enum": ["low", "urgent"]},
        "items": {
            "type": "array",
            "items": {"type": "integer", "minimum": 0, "maximum": 999},
            "minItems": 1,
            "maxItems": 3,
        },
    },
    "required": ["customer_identifier", "priority_level", "items"],
    "additionalProperties": False,
}
PROMPT = list(range(40, 72))


@pytest.fixture
async def engine() -> AsyncIterator[Engine]:
    engine = Engine.load(EngineSettings(model_path=SMALL, num_threads=1))
    engine.start()
    yield engine
    await engine.stop()


def constrained(vocabulary: Vocabulary, spec: Spec, **options: object) -> EngineRequest:
    options = {"max_tokens": 200, "temperature": 1.5, "ignore_eos": False, **options}
    return replace(make_request(PROMPT, **options), grammar=compile_grammar(vocabulary, spec))  # type: ignore[arg-type]


async def outputs_of(engine: Engine, request: EngineRequest) -> list[TokenOutput]:
    return [output async for output in engine.generate(request)]


def as_schema(value: object, whitespace: str | None = None) -> JsonSchema:
    return JsonSchema(json.dumps(value), whitespace)


async def test_every_kind_of_answer_follows_its_grammar_beside_unconstrained_ones(
    engine: Engine, vocabulary: Vocabulary, tokenizer: Tokenizer
) -> None:
    specs = [as_schema(ORDER), Choice(("red", "green", "blue")), Regex("[0-9]{4}-[a-f]{2}"), Grammar('start: "a"+ "!"')]
    wanted = [constrained(vocabulary, specs[i % 4], seed=i, max_tokens=400) for i in range(24)]
    free = [make_request(PROMPT, max_tokens=40, temperature=1.0, seed=i) for i in range(8)]
    alone = [await collect(engine, request) for request in free]
    found = await asyncio.gather(*(outputs_of(engine, each) for each in wanted), *(collect(engine, f) for f in free))
    assert list(found[24:]) == alone
    for i, outputs in enumerate(found[:24]):
        assert isinstance(outputs[-1], TokenOutput) and outputs[-1].finish_reason == "stop"
        ids = [token_id for output in outputs for token_id in output.token_ids]
        text = tokenizer.decode(ids)
        if i % 4 == 0:
            jsonschema.validate(json.loads(text), ORDER)
        matcher = compile_grammar(vocabulary, specs[i % 4]).start(ids)
        assert matcher.is_over, text


async def test_forced_tokens_cost_no_step_of_their_own_and_change_no_greedy_text(
    engine: Engine, vocabulary: Vocabulary, tokenizer: Tokenizer
) -> None:
    jumping = constrained(vocabulary, as_schema(ORDER, ""), temperature=0.0)
    # Whoever wants log-probabilities gets each token from a step.
    stepping = constrained(vocabulary, as_schema(ORDER, ""), temperature=0.0, num_logprobs=0)
    few, many = await outputs_of(engine, jumping), await outputs_of(engine, stepping)
    ids, same = ([token_id for output in each for token_id in output.token_ids] for each in (few, many))
    assert ids == same
    jsonschema.validate(json.loads(tokenizer.decode(ids)), ORDER)
    assert all(len(output.token_ids) == len(output.logprobs) for output in many)
    # Outputs that nobody took in time are merged, which makes them longer, never shorter.
    assert max(len(output.token_ids) for output in few) > 3


async def test_an_answer_that_goes_on_elsewhere_is_the_same(engine: Engine, vocabulary: Vocabulary) -> None:
    request = constrained(vocabulary, as_schema(ORDER), seed=11, max_tokens=300)
    outputs = await outputs_of(engine, request)
    whole = [token_id for output in outputs for token_id in output.token_ids]
    for cut in range(1, len(outputs), max(1, len(outputs) // 6)):
        given = [token_id for output in outputs[:cut] for token_id in output.token_ids]
        rest = await collect(engine, replace(request, given_ids=tuple(given)))
        assert given + rest == whole


async def test_given_ids_that_break_the_grammar_are_refused(engine: Engine, vocabulary: Vocabulary) -> None:
    request = constrained(vocabulary, Choice(("red",)))
    with pytest.raises(InvalidRequest, match="do not follow"):
        await collect(engine, replace(request, given_ids=(5, 6)))


async def test_an_answer_that_is_cut_says_so(engine: Engine, vocabulary: Vocabulary, tokenizer: Tokenizer) -> None:
    for max_tokens in range(1, 12):
        outputs = await outputs_of(engine, constrained(vocabulary, as_schema(ORDER, ""), seed=3, max_tokens=max_tokens))
        ids = [token_id for output in outputs for token_id in output.token_ids]
        assert (len(ids), outputs[-1].finish_reason) == (max_tokens, "length")


async def test_the_end_of_the_grammar_ends_the_answer_whatever_else_is_wished(
    engine: Engine, vocabulary: Vocabulary, tokenizer: Tokenizer
) -> None:
    for wish in (
        {"ignore_eos": True},
        {"min_tokens": 50},
        {"min_tokens": 50, "num_logprobs": 1},
        {"ignore_eos": True, "num_logprobs": 0},
    ):
        ids = await collect(engine, constrained(vocabulary, Choice(("a long answer", "a short one")), **wish))
        assert tokenizer.decode(ids) in ("a long answer", "a short one")
        assert ids[-1] in vocabulary.eos_token_ids


async def test_while_the_grammar_goes_on_min_tokens_keeps_the_answer_from_ending(
    engine: Engine, vocabulary: Vocabulary
) -> None:
    ids = await collect(engine, constrained(vocabulary, Regex("[0-9]+"), min_tokens=30, max_tokens=60))
    assert len(ids) > 30


async def test_stop_tokens_and_biases_count_within_the_grammar(
    engine: Engine, vocabulary: Vocabulary, tokenizer: Tokenizer
) -> None:
    (blue, *_) = tokenizer.encode("blue", add_special_tokens=False)
    (outside, *_) = tokenizer.encode("x", add_special_tokens=False)
    bias = {blue: 100.0, outside: 100.0}
    ids = await collect(engine, constrained(vocabulary, Choice(("red", "green", "blue")), logit_bias=bias))
    assert tokenizer.decode(ids) == "blue"
    forced = constrained(vocabulary, Choice(("the answer is forty two",)), stop_token_ids=(ids_of(tokenizer, " is"),))
    outputs = await outputs_of(engine, forced)
    text = tokenizer.decode([i for output in outputs for i in output.token_ids])
    assert (text, outputs[-1].finish_reason) == ("the answer is", "stop")


def ids_of(tokenizer: Tokenizer, text: str) -> int:
    (token_id,) = tokenizer.encode(text, add_special_tokens=False)
    return token_id


async def test_penalties_leave_a_constrained_answer_right(
    engine: Engine, vocabulary: Vocabulary, tokenizer: Tokenizer
) -> None:
    wishes = {"presence_penalty": 2.0, "repetition_penalty": 1.5, "temperature": 0.0, "max_tokens": 400}
    ids = await collect(engine, constrained(vocabulary, as_schema(ORDER), **wishes))
    jsonschema.validate(json.loads(tokenizer.decode(ids)), ORDER)


async def test_limits_that_leave_no_token_are_the_requests_own_fault(
    engine: Engine, vocabulary: Vocabulary, tokenizer: Tokenizer
) -> None:
    allowed = array("q", [ids_of(tokenizer, " is")])
    with pytest.raises(NoTokenLeft) as caught:
        await collect(engine, constrained(vocabulary, Regex("[0-9]+"), allowed_token_ids=allowed))
    assert (caught.value.status, caught.value.param) == (400, "allowed_token_ids")


@pytest.mark.parametrize("num_logprobs", [None, 2])
async def test_an_answer_that_may_not_go_on_ends_unfinished(
    engine: Engine, vocabulary: Vocabulary, tokenizer: Tokenizer, num_logprobs: int | None
) -> None:
    digit = ids_of(tokenizer, "7")
    wish = {"allowed_token_ids": array("q", [digit]), "num_logprobs": num_logprobs}
    outputs = await outputs_of(engine, constrained(vocabulary, Regex("[0-9]{3} apples"), **wish))
    assert [i for output in outputs for i in output.token_ids] == [digit] * 3
    assert outputs[-1].finish_reason == "length"


async def test_so_does_a_free_answer_that_may_neither_go_on_nor_end(engine: Engine, vocabulary: Vocabulary) -> None:
    end, said = vocabulary.eos_token_ids[0], 300
    request = make_request(
        PROMPT, min_tokens=5, bad_words=((said, said),), allowed_token_ids=array("q", [said, end]), ignore_eos=False
    )
    outputs = await outputs_of(engine, request)
    assert [i for output in outputs for i in output.token_ids] == [said]
    assert outputs[-1].finish_reason == "length"


def small_grammar(vocabulary: Vocabulary, pattern: str, max_states: int, forgotten: list[int]) -> grammars.Grammar:
    text = LLMatcher.grammar_from_regex(pattern)
    few = LLParserLimits(max_lexer_states=max_states, verbose_errors=False)
    template = LLMatcher(vocabulary.ll, text, log_level=0, limits=few)
    return grammars.Grammar(template, vocabulary.eos_token_ids[0], lambda: forgotten.append(1))


async def test_a_grammar_that_meets_a_limit_fails_its_own_request_alone(engine: Engine, vocabulary: Vocabulary) -> None:
    forgotten: list[int] = []
    small = small_grammar(vocabulary, "(a|b)*a(a|b){14}", 10, forgotten)
    request = constrained(vocabulary, ANY_OBJECT)
    failing = [replace(request, grammar=small, request_id=f"failing {i}") for i in range(2)]
    free = make_request(PROMPT, max_tokens=40)
    results = await asyncio.gather(*(collect(engine, each) for each in (*failing, free)), return_exceptions=True)
    # Whoever asks for it again gets the same: no fault of the worker, so that nobody else is sent elsewhere.
    assert isinstance(results[0], GrammarLimit) and results[0].status == 400
    assert isinstance(results[1], GrammarLimit)
    assert isinstance(results[2], list) and len(results[2]) == 40
    assert forgotten


async def test_an_answer_that_has_begun_ends_unfinished_where_its_grammar_meets_a_limit(
    engine: Engine, vocabulary: Vocabulary, tokenizer: Tokenizer
) -> None:
    forgotten: list[int] = []
    before = engine.report().completion_tokens_total
    # Whatever is chosen, each letter is a state of its own.
    small = small_grammar(vocabulary, "(a|b){300}", 40, forgotten)
    outputs = await outputs_of(engine, replace(constrained(vocabulary, ANY_OBJECT), grammar=small))
    ids = [i for output in outputs for i in output.token_ids]
    assert set(tokenizer.decode(ids)) <= set("ab") and ids
    assert outputs[-1].finish_reason == "length" and forgotten
    assert engine.report().completion_tokens_total == before + len(ids)


async def test_preempted_constrained_answers_are_the_same(engine: Engine, vocabulary: Vocabulary) -> None:
    requests = [constrained(vocabulary, as_schema(ORDER), seed=i, max_tokens=150) for i in range(12)]
    alone = [await collect(engine, request) for request in requests]
    tight = Engine.load(
        EngineSettings(model_path=SMALL, num_threads=1, max_model_len=256, num_blocks=24, max_batched_tokens=64)
    )
    tight.start()
    try:
        assert await asyncio.gather(*(collect(tight, request) for request in requests)) == alone
        assert tight.report().num_preemptions_total > 0
    finally:
        await tight.stop()


async def test_an_aborted_constrained_answer_leaves_the_others_alone(engine: Engine, vocabulary: Vocabulary) -> None:
    long = constrained(vocabulary, Regex("[a-z ]{400}"), max_tokens=400)
    stream = engine.generate(long)
    await anext(aiter(stream))
    kept = asyncio.ensure_future(collect(engine, constrained(vocabulary, as_schema(ORDER), seed=1)))
    await stream.aclose()
    assert await kept == await collect(engine, constrained(vocabulary, as_schema(ORDER), seed=1))


async def test_in_deterministic_mode_neighbours_change_nothing(vocabulary: Vocabulary) -> None:
    engine = Engine.load(EngineSettings(model_path=SMALL, num_threads=1, is_deterministic=True))
    engine.start()
    try:
        requests = [constrained(vocabulary, as_schema(ORDER), seed=i) for i in range(8)]
        alone = [await collect(engine, request) for request in requests]
        assert await asyncio.gather(*(collect(engine, request) for request in requests)) == alone
    finally:
        await engine.stop()
