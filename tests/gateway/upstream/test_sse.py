"""Streams arrive cut anywhere; what the client gets and what is counted must not depend on it."""

import itertools

from hypothesis import given
from hypothesis import strategies as st

from gateway.upstream.sse import OpenAIStream, WorkerStream
from protocol.accounting import DONE_EVENT, Accounting, accounting_comment, data_event, tokens_comment

FIGURES = Accounting(
    prompt_tokens=5,
    cached_prompt_tokens=0,
    completion_tokens=6,
    queue_ms=0,
    compute_ms=0,
    worker_id="w",
    finish_reason="stop",
)
EVENTS = [data_event(b'{"choices":[{"delta":{"content":"%d"}}]}' % i) for i in range(3)]
STREAM = (
    b": waiting position=1\n\n"
    + EVENTS[0]
    + tokens_comment([7])
    + b"\n"
    + tokens_comment([8, 9])
    + EVENTS[1]
    + tokens_comment([1, 2, 3])
    + EVENTS[2]
    + accounting_comment(FIGURES)
    + DONE_EVENT
)


@given(cuts=st.lists(st.integers(0, len(STREAM)), max_size=12))
def test_a_workers_stream_is_read_the_same_however_it_is_cut(cuts: list[int]) -> None:
    stream = WorkerStream()
    edges = [0, *sorted(cuts), len(STREAM)]
    seen = b"".join(stream.feed(STREAM[a:b]) for a, b in itertools.pairwise(edges))
    assert seen == b": waiting position=1\n\n" + b"".join(EVENTS)
    assert (stream.num_tokens, stream.is_done, stream.accounting) == (6, True, FIGURES)


@given(cuts=st.lists(st.integers(0, 200), max_size=8))
def test_a_foreign_stream_may_end_its_lines_with_crlf(cuts: list[int]) -> None:
    sent = (EVENTS[0] + EVENTS[1] + DONE_EVENT).replace(b"\n", b"\r\n")
    stream = OpenAIStream(wants_usage=False, model_at_member="a", model="a")
    edges = [0, *sorted(min(cut, len(sent)) for cut in cuts), len(sent)]
    seen = b"".join(stream.feed(sent[a:b]) for a, b in itertools.pairwise(edges))
    assert seen == EVENTS[0] + EVENTS[1]
    assert (stream.num_tokens, stream.is_done) == (2, True)


def test_an_error_event_is_passed_on_and_remembered() -> None:
    stream = WorkerStream()
    event = data_event(b'{"error":{"message":"m","type":"server_error"}}')
    assert stream.feed(event) == event
    assert stream.error_event
    assert not stream.has_content


def test_why_a_foreign_servers_choices_ended_is_told_in_one_word() -> None:
    ends = {
        reason: data_event(b'{"choices":[{"delta":{},"finish_reason":"%s"}]}' % reason)
        for reason in (b"stop", b"length")
    }
    for events, reason in (((b"stop", b"stop"), "stop"), ((b"stop", b"length"), "mixed"), ((), None)):
        stream = OpenAIStream(wants_usage=False, model_at_member="a", model="a")
        stream.feed(b"".join(ends[each] for each in events) + DONE_EVENT)
        assert stream.finish_reason == reason
