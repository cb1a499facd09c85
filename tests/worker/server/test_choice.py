"""What an answer becomes does not depend on how many of its tokens arrive at once."""

import random
from typing import Any

import pytest

from tests.support.scripted import make_scripted_checkpoint
from tests.worker.server.test_tool_calls import SCRIPT
from text.bundle import Bundle
from text.reasoning import ReasoningFormat
from text.tool_calls.parts import CallArguments, CallBegun, CallEnded
from worker.engine.request import EngineRequest, SamplingParams, TokenLogprobs, TokenOutput
from worker.engine.stream import Bell, TokenStream
from worker.server.calls import CallReading
from worker.server.choice import Choice, Piece
from worker.server.display import Display
from worker.server.intake import Job


@pytest.fixture(scope="module")
def bundle(tmp_path_factory: pytest.TempPathFactory) -> Bundle:
    return Bundle.from_folder(make_scripted_checkpoint(tmp_path_factory.mktemp("scripted") / "m", SCRIPT))


def make_job(*, stops: tuple[str, ...] = (), is_single: bool = False, reasoning: ReasoningFormat | None = None) -> Job:
    return Job(
        request_id="1",
        tenant="",
        prompts=[],
        n=1,
        answer_id="1",
        model="tiny",
        created_at_s=0,
        arrived_at=0.0,
        is_chat=True,
        goes_on=False,
        display=Display(),
        stops=stops,
        reasoning=reasoning,
        calls=CallReading(format="hermes", names=frozenset(["weather"]), is_single=is_single),
        has_logprobs=True,
        is_stream=True,
        includes_usage=False,
        usage_in_each=False,
        wants_accounting=True,
        tells_progress=False,
    )


def take_all(bundle: Bundle, job: Job, ids: list[int], cuts: int) -> tuple[list[Piece], int]:
    """The pieces of an answer whose ids arrive together but where a bit of `cuts` is set; how many were discarded."""
    discarded: list[int] = []
    tokens = TokenStream("1", lambda _: None, discarded.append, Bell())
    request = EngineRequest(request_id="1", prompt_ids=[1], sampling=SamplingParams(num_logprobs=0))
    choice = Choice(job, 0, request, None, bundle.tokenizer, tokens)
    pieces = []
    for i, token_id in enumerate(ids):
        is_last = i == len(ids) - 1
        tokens.put(
            TokenOutput(
                token_ids=[token_id],
                finish_reason="stop" if is_last else None,
                logprobs=(TokenLogprobs(logprob=-float(i), top=()),),
            )
        )
        if is_last or cuts >> i & 1:
            output = tokens.take()
            if output is not None:
                pieces += choice.take(output, ())
    return pieces, sum(discarded)


def encode(bundle: Bundle, text: str) -> list[int]:
    return bundle.tokenizer.encode(text, add_special_tokens=False)


def told(pieces: list[Piece]) -> list[tuple[Any, ...]]:
    """Without the calls' ids, which are made up."""
    return [
        (
            piece.token_ids,
            [part.name if isinstance(part, CallBegun) else part for part in piece.parts],
            piece.scored,
            piece.finish_reason,
        )
        for piece in pieces
    ]


@pytest.mark.parametrize("stops", [(), ("ther",)], ids=str)
async def test_logprobs_beside_calls_go_out_by_the_ids_however_these_were_merged(
    bundle: Bundle, stops: tuple[str, ...]
) -> None:
    """Else another replica, which knows the ids alone, would send some of them again."""
    ids = [token_id for part in [*SCRIPT, "<|im_end|>"] for token_id in encode(bundle, part)]
    job = make_job(stops=stops)
    expected, num_discarded = take_all(bundle, job, ids, -1)
    assert len(expected) > 3
    chance = random.Random(0)
    for cuts in [0, *(chance.getrandbits(len(ids)) for _ in range(100))]:
        pieces, discarded = take_all(bundle, job, ids, cuts)
        assert (told(pieces), discarded) == (told(expected), num_discarded)


async def test_an_answer_that_may_have_one_call_ends_with_it_and_what_came_after_does_not_count(bundle: Bundle) -> None:
    """However the tokens were merged: they are billed."""
    call, rest = SCRIPT, ["text", "I look."]
    ids = [token_id for part in [*call, *rest, "<|im_end|>"] for token_id in encode(bundle, part)]
    num_kept = len([token_id for part in call[:-2] for token_id in encode(bundle, part)])
    chance = random.Random(0)
    for cuts in [0, -1, *(chance.getrandbits(len(ids)) for _ in range(20))]:
        pieces, discarded = take_all(bundle, make_job(is_single=True), ids, cuts)
        assert pieces[-1].finish_reason == "tool_calls"
        assert pieces[-1].parts[-1] == CallEnded()
        assert sum(len(piece.token_ids) for piece in pieces) == num_kept
        assert discarded == len(ids) - num_kept


async def test_each_token_of_the_arguments_goes_out_as_it_comes(bundle: Bundle) -> None:
    ids = [token_id for part in [*SCRIPT, "<|im_end|>"] for token_id in encode(bundle, part)]
    pieces, _ = take_all(bundle, make_job(), ids, -1)
    written = [part.text for piece in pieces for part in piece.parts if isinstance(part, CallArguments)]
    assert written == ['{"ci', 'ty": "Kö', 'ln"}']
