"""What is said to be held is held: by the public test suite's instances, and by what demo models make of its schemas
and of 200 of our own."""

import asyncio
import gzip
import json
from dataclasses import replace
from decimal import Decimal, InvalidOperation, localcontext
from pathlib import Path
from typing import Any

import jsonschema_rs
import pytest
from jsonschema import Draft202012Validator

from protocol.guided import JsonSchema
from tests.support.engine_requests import make_request
from tests.worker.guided.conftest import LARGE, SMALL
from tests.worker.guided.schemas import NUM_SCHEMAS, all_schemas
from text.tokenizer import Tokenizer
from worker.engine.engine import Engine
from worker.engine.settings import EngineSettings
from worker.guided import BadGrammar, Grammar, Vocabulary
from worker.guided.compiler import compile_grammar

SUITE = Path(__file__).parent / "suite" / "draft2020-12.json.gz"
TEMPERATURE = 1.5


def suite() -> list[dict[str, Any]]:
    return json.loads(gzip.decompress(SUITE.read_bytes()))  # type: ignore[no-any-return]


def compiled(vocabulary: Vocabulary, schema: object) -> Grammar | None:
    try:
        return compile_grammar(vocabulary, JsonSchema(json.dumps(schema)))
    except BadGrammar:
        return None


def test_no_invalid_instance_of_the_public_suite_passes(vocabulary: Vocabulary, tokenizer: Tokenizer) -> None:
    num_taken, num_valid, num_schemas, num_invalid = 0, 0, 0, 0
    for case in suite():
        grammar = compiled(vocabulary, case["schema"])
        if grammar is None:
            continue
        num_schemas += 1
        for instance, is_valid in case["tests"]:
            ids = tokenizer.encode(json.dumps(instance, ensure_ascii=False), add_special_tokens=False)
            try:
                is_taken = grammar.start(ids).ll.is_accepting()
            except ValueError:
                is_taken = False
            assert is_valid or not is_taken, (case["file"], case["case"], instance)
            num_taken += is_taken
            num_valid += is_valid
            num_invalid += not is_valid
    assert (num_schemas, num_invalid) == (200, 420)
    assert num_taken / num_valid > 0.85


def test_all_of_our_own_schemas_are_held(vocabulary: Vocabulary) -> None:
    schemas = all_schemas()
    assert len(schemas) == NUM_SCHEMAS
    for schema in schemas:
        Draft202012Validator.check_schema(schema)
        compile_grammar(vocabulary, JsonSchema(json.dumps(schema)))


@pytest.mark.parametrize("share", [4])
async def test_what_a_model_completes_validates(share: int, vocabulary: Vocabulary, tokenizer: Tokenizer) -> None:
    """A quarter of all schemas; the whole is marked long."""
    await _all_validate(SMALL, vocabulary, tokenizer, seeds=[16], share=share)


@pytest.mark.long
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("model", [SMALL, LARGE], ids=["small", "large"])
async def test_whatever_the_models_complete_validates(
    model: Path, vocabulary: Vocabulary, tokenizer: Tokenizer
) -> None:
    await _all_validate(model, vocabulary, tokenizer, seeds=range(5), share=1)


async def _all_validate(model: Path, vocabulary: Vocabulary, tokenizer: Tokenizer, *, seeds: Any, share: int) -> None:
    schemas = [*all_schemas(), *(case["schema"] for case in suite())][::share]
    wanted = [(schema, grammar) for schema in schemas if (grammar := compiled(vocabulary, schema)) is not None]
    engine = Engine.load(EngineSettings(model_path=model, max_num_seqs=64, max_waiting=len(wanted)))
    engine.start()
    try:
        num_complete = 0
        for seed in seeds:
            results = await asyncio.gather(*(_answer(engine, grammar, seed) for _, grammar in wanted))
            for (schema, _), (ids, is_complete) in zip(wanted, results, strict=True):
                if is_complete:
                    num_complete += 1
                    text = tokenizer.decode(ids)
                    errors = _errors(schema, text)
                    assert not errors, (schema, text, errors)
        # Many of the suite's take any value, which has no end at this temperature.
        assert num_complete > 0.5 * len(wanted) * len(seeds)
    finally:
        await engine.stop()


def _errors(schema: Any, text: str) -> list[str]:
    if "\\\\p{" in json.dumps(schema):
        # Python's own patterns know no classes of Unicode.
        return [str(each) for each in jsonschema_rs.Draft202012Validator(schema).iter_errors(json.loads(text))]
    # Of binary fractions 0.07 is no multiple of 0.01.
    exact = json.loads(json.dumps(schema), parse_float=Decimal)
    validator = Draft202012Validator(exact, format_checker=Draft202012Validator.FORMAT_CHECKER)
    with localcontext(prec=5000):
        return [each.message for each in validator.iter_errors(json.loads(text, parse_float=_exact))]


def _exact(number: str) -> Decimal | float:
    """1e9999999999999999999 is a number of JSON that no decimal holds."""
    try:
        return Decimal(number)
    except InvalidOperation:
        return float(number)


async def _answer(engine: Engine, grammar: Grammar, seed: int) -> tuple[list[int], bool]:
    request = make_request(
        list(range(40, 60)), max_tokens=400, temperature=TEMPERATURE, ignore_eos=False, seed=seed * 1000
    )
    outputs = [output async for output in engine.generate(replace(request, grammar=grammar))]
    ids = [token_id for output in outputs for token_id in output.token_ids]
    return ids, outputs[-1].finish_reason == "stop"
