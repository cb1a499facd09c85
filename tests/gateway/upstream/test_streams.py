"""Streams arrive cut anywhere; what the client gets and what is counted must not depend on it."""

import itertools

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.upstream.streams.events import BrokenStream, EventBuffer
from gateway.upstream.streams.foreign import ForeignStream
from gateway.upstream.streams.own import WorkerStream
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
OWN = (
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
WHOLE = b'{"choices":[{"message":{"content":": tokens 1\\n\\n"}}]}'
OWN_WHOLE = (
    b": waiting position=2\n\n: waiting position=0\n\n"
    + tokens_comment([4, 5])
    + b"\n"
    + tokens_comment([6])
    + accounting_comment(FIGURES)
    + data_event(WHOLE)
    + DONE_EVENT
)
Cuts = st.lists(st.integers(0, 2000), max_size=12)


def pieces(sent: bytes, cuts: list[int]) -> list[bytes]:
    edges = [0, *sorted(min(cut, len(sent)) for cut in cuts), len(sent)]
    return [sent[a:b] for a, b in itertools.pairwise(edges)]


def foreign(*, wants_usage: bool = False, model: str = "a") -> ForeignStream:
    return ForeignStream(wants_usage=wants_usage, model_at_member="a", model=model, most_tokens=10**6)


@given(cuts=Cuts)
def test_a_workers_stream_is_read_the_same_however_it_is_cut(cuts: list[int]) -> None:
    stream = WorkerStream()
    seen = b"".join(stream.feed(piece) for piece in pieces(OWN, cuts))
    assert seen == b": waiting position=1\n\n" + b"".join(EVENTS)
    assert (stream.num_tokens, stream.is_done, stream.accounting) == (6, True, FIGURES)


@given(cuts=Cuts)
def test_a_workers_whole_answer_comes_out_of_its_events_however_they_are_cut(cuts: list[int]) -> None:
    stream = WorkerStream(is_whole=True)
    seen = b"".join(stream.feed(piece) for piece in pieces(OWN_WHOLE, cuts))
    assert seen == data_event(WHOLE)
    assert (stream.num_tokens, stream.is_done, stream.accounting) == (3, True, FIGURES)


def test_a_request_waits_until_the_worker_says_otherwise() -> None:
    stream = WorkerStream()
    seen = []
    for piece in (
        b": waiting position=3\n\n",
        b": waiting position=0\n\n",
        b": waiting position=1\n\n",
        b": tokens 1\n\n",
    ):
        stream.feed(piece)
        seen.append(stream.is_waiting)
    assert seen == [True, False, True, False]


@given(cut=st.integers(0, len(OWN)))
def test_what_is_passed_on_is_what_the_told_ids_made(cut: int) -> None:
    stream = WorkerStream()
    seen = stream.feed(OWN[:cut])
    by_ids = {0: b"", 1: b"".join(EVENTS[:1]), 3: b"".join(EVENTS[:2]), 6: b"".join(EVENTS)}
    assert seen.removeprefix(b": waiting position=1\n\n") == by_ids[stream.num_tokens]


def test_ids_are_kept_by_answer_and_over_several_workers() -> None:
    first = WorkerStream()
    first.feed(tokens_comment([1, 2]) + EVENTS[0] + tokens_comment([9], index=2) + EVENTS[1])
    second = WorkerStream(told=first.told)
    second.feed(tokens_comment([3]) + EVENTS[2] + tokens_comment([8], index=2) + b"\n")
    assert second.told.of_answers(3) == [[1, 2, 3], [], [9, 8]]
    assert second.num_tokens == 5


@pytest.mark.parametrize("stream", [WorkerStream(), foreign()])
def test_an_error_event_is_held_back_and_told(stream: WorkerStream | ForeignStream) -> None:
    error = b'{"error":{"message":"m","type":"server_error"}}'
    assert stream.feed(tokens_comment([1]) + EVENTS[0] + data_event(error)) == EVENTS[0]
    assert stream.error == error


def test_an_event_that_only_says_who_speaks_is_no_token() -> None:
    stream = foreign()
    deltas = (b'{"role":"assistant"}', b'{"role":"assistant","content":""}', b'{"content":"a"}', b"{}")
    sent = b"".join(data_event(b'{"choices":[{"index":0,"delta":%s,"finish_reason":null}]}' % each) for each in deltas)
    assert stream.feed(sent) == sent
    assert stream.num_tokens == 1
    with_text = data_event(b'{"choices":[{"index":0,"delta":{"role":"assistant","content":"b"}}]}')
    assert stream.feed(with_text) == with_text
    assert stream.num_tokens == 2


@pytest.mark.parametrize(
    "event",
    [
        b'event: error\ndata: {"message":"boom"}\n\n',
        b"event:error\ndata: boom\n\n",
        b'event: error\ndata: {"choices":[{"delta":{"content":"x"}}]}\n\n',
        data_event(b'{"error":"overloaded"}'),
        data_event(b'{"choices":[],"error":{"message":"m"}}'),
        data_event(b'{"choices":[{"delta":{}}],"error":{"message":"m"}}'),
        data_event(b'{"error":{"message":"m"},"choices":[{"delta":{"content":""},"finish_reason":"error"}]}'),
        data_event(b'{"error":{"message":"m"},"choices":[{"delta":{"content":"x"},"finish_reason":"error"}]}'),
        data_event(b'{"error":{"message":"m"},"choices":[{"text":""}]}'),
        data_event(b'{"object":"error","message":"boom","code":500}'),
    ],
)
def test_an_error_is_known_in_every_form_that_foreign_servers_give_it(event: bytes) -> None:
    stream = foreign()
    assert stream.feed(EVENTS[0] + event + EVENTS[1]) == EVENTS[0]
    assert stream.error is not None and event.endswith(b"data: " + stream.error + b"\n\n")
    assert (stream.num_tokens, stream.finish_reason) == (1, None)


@pytest.mark.parametrize(
    "event",
    [
        data_event(b'{"choices":[{"delta":{"content":"x"}}],"error":null}'),
        data_event(b'{"choices":[{"delta":{"content":""}}],"error":""}'),
        data_event(b'{"choices":[{"delta":{"content":""}}],"error":{}}'),
        data_event(b'{"choices":[{"delta":{"content":"x"}}],"error":{"message":"a warning"}}'),
        b'event: errors\ndata: {"choices":[]}\n\n',
    ],
)
def test_an_empty_error_and_one_beside_text_are_none(event: bytes) -> None:
    stream = foreign()
    assert stream.feed(event) == event
    assert stream.error is None


def test_why_a_foreign_servers_choices_ended_is_told_in_one_word() -> None:
    ends = {
        reason: data_event(b'{"choices":[{"delta":{},"finish_reason":"%s"}]}' % reason)
        for reason in (b"stop", b"length")
    }
    for events, reason in (((b"stop", b"stop"), "stop"), ((b"stop", b"length"), "mixed"), ((), None)):
        stream = foreign()
        stream.feed(b"".join(ends[each] for each in events) + DONE_EVENT)
        assert stream.finish_reason == reason


# Every way that the standard allows to write the same event.
_LINE_ENDS = st.sampled_from([b"\n", b"\r\n", b"\r"])
_PAYLOADS = st.sampled_from(
    [
        b'{"model":"a","choices":[{"index":0,"delta":{"content":"x \\r y"}}]}',
        b'{"model": "a", "choices": [{"delta": {"content": "[DONE] \\"error\\""}}]}',
        b'{"choices":[{"delta":{"content":"z"}}],"usage":null}',
    ]
)
_COMMENTS = st.sampled_from(
    [b"", b": ping", b":", b": tokens 1,2,3", b':accounting {"a":1}', b"id: 7", b"event: x", b"retry: 3"]
)


@st.composite
def _dialect(draw: st.DrawFn) -> tuple[bytes, list[bytes]]:
    """A stream as some foreign server may write it, and the payloads in it. Each line may end in its own way."""
    payloads = draw(st.lists(_PAYLOADS, max_size=5))
    lines: list[bytes] = []
    for payload in [*payloads, b"[DONE]"]:
        comment = draw(_COMMENTS)
        field = draw(st.sampled_from([b"data:", b"data: "]))
        lines += [*([comment] if comment else []), field + payload, *[b""] * draw(st.integers(1, 2))]
    sent = draw(st.sampled_from([b"", b"\xef\xbb\xbf"]))
    for line in lines:
        end = draw(_LINE_ENDS)
        # An LF right after a CR would not end a line of its own.
        sent += line + (b"\r\n" if not line and end == b"\n" and sent.endswith(b"\r") else end)
    if draw(st.booleans()):
        # Some servers forget the blank line at the very end.
        sent = sent.rstrip(b"\r\n") + draw(_LINE_ENDS)
    return sent, payloads


@given(dialect=_dialect(), cuts=Cuts)
def test_a_foreign_stream_is_read_as_the_standard_says(dialect: tuple[bytes, list[bytes]], cuts: list[int]) -> None:
    sent, payloads = dialect
    check_dialect(pieces(sent, cuts), payloads)
    check_dialect([sent[at : at + 1] for at in range(len(sent))], payloads)


def check_dialect(sent: list[bytes], payloads: list[bytes]) -> None:
    stream = foreign()
    seen = b"".join(stream.feed(piece) for piece in sent) + stream.finish()
    data = [line.removeprefix(b"data: ") for line in seen.split(b"\n") if line.startswith(b"data")]
    assert data == payloads
    assert (stream.num_tokens, stream.is_done, stream.accounting) == (len(payloads), True, None)
    assert b"tokens" not in seen and b"accounting" not in seen
    assert b"\r" not in seen.replace(b"\\r", b"")


_TOOL_CALL = b'{"choices":[{"delta":{"tool_calls":[{"index":0,"function":{"arguments":"{\\"a\\""}}]}}]}'
_EVENTS = st.sampled_from(
    [
        *EVENTS,
        data_event(b'{"choices":[{"delta":{"content":"%s"}}]}' % (b"long" * 200)),
        data_event(b'{"choices":[{"delta":{"role":"assistant"}}]}'),
        data_event(b'{"choices":[{"delta":{"content":"c"},"finish_reason":"stop"}]}'),
        data_event(b'{"choices":[],"usage":{"prompt_tokens":3,"completion_tokens":2}}'),
        data_event(b'{"choices":[],"prompt_filter_results":[{}]}'),
        data_event(b'{"choices": [], "prompt_filter_results": [{}]}'),
        data_event(b'{"choices":[{"delta":{},"finish_reason":null}]}'),
        data_event(b'{"choices":[{"delta":{"content":""},"finish_reason":null}]}'),
        data_event(b'{"choices": [{"delta": {"content": ""}, "finish_reason": null}]}'),
        data_event(b'{"choices": [{"delta": {"content": "d"}, "finish_reason": null}]}'),
        data_event(b"{}"),
        data_event(b'{"type":"ping"}'),
        data_event(b""),
        data_event(b'{"choices":[],"usage" :  {"prompt_tokens":3,"completion_tokens":2}}'),
        data_event(b'{"choices":[{"delta":{"content":"e"},"finish_reason"\t: "stop"}]}'),
        data_event(b'{"choices":[{"delta":{"content":"f"},"finish_reason":null}],"usage":{"prompt_tokens":3}}'),
        data_event(_TOOL_CALL),
        data_event(b'{"choices":[{"delta":{"reasoning_content":"hm","content":""}}]}'),
        data_event(b'{"choices":[{"delta":{"reasoning_content":"hm"}}]}'),
        data_event(b'{"choices":[{"delta":{"content":"h"}},{"delta":{"content":"i"}}]}'),
        b'event: message\ndata: {"choices":[{"delta":{"content":"l"}}]}\n\n',
    ]
)
_COMPLETION_EVENTS = st.sampled_from(
    [
        data_event(b'{"choices":[{"text":"a","finish_reason":null}]}'),
        data_event(b'{"choices": [{"text": "b", "finish_reason": null}]}'),
        data_event(b'{"choices":[{"text":"","finish_reason":null}]}'),
        data_event(b'{"choices":[{"text":"c"},{"text":"d"}]}'),
        data_event(b'{"choices":[{"text":"","finish_reason":"stop"}]}'),
        data_event(b'{"choices":[],"usage":{"prompt_tokens":3,"completion_tokens":2}}'),
        data_event(b"{}"),
    ]
)
_ENDS = st.sampled_from(
    [b"", DONE_EVENT, data_event(b'{"error":{"message":"m"}}'), b'event: error\ndata: {"message":"m"}\n\n']
)


def _many(events: st.SearchStrategy[bytes]) -> st.SearchStrategy[list[bytes]]:
    """Mixed, or of two kinds alone, which may make up for each other's lacks where only counts are compared."""
    two = st.tuples(events, events).flatmap(lambda kinds: st.lists(st.sampled_from(kinds), min_size=5, max_size=9))
    return st.lists(events, max_size=60) | two


@given(events=_many(_EVENTS) | _many(_COMPLETION_EVENTS), end=_ENDS, after=st.lists(_EVENTS, max_size=9))
def test_events_that_come_together_are_read_as_one_after_another(
    events: list[bytes], end: bytes, after: list[bytes]
) -> None:
    together, apart = foreign(), foreign()
    sent = [*events, end, *after]
    assert together.feed(b"".join(sent)) == b"".join([apart.feed(event) for event in sent])
    assert {**vars(together), "_buffer": None} == {**vars(apart), "_buffer": None}


def test_a_foreign_models_name_becomes_ours_and_nothing_else_changes() -> None:
    stream = foreign(model="ours")
    sent = data_event(b'{"model": "a","choices":[{"delta":{"content":"\\"model\\":\\"a\\""}}]}')
    assert stream.feed(sent) == sent.replace(b'"model": "a"', b'"model": "ours"')


@pytest.mark.parametrize("name", ["r-7b", "o/r-7b", "a/b/c", "a+b(c)"])
@pytest.mark.parametrize("sign", [b":", b": ", b" : ", b":\t", b" :  ", b"\t: "])
def test_a_foreign_models_name_is_found_however_json_writes_it(name: str, sign: bytes) -> None:
    # Our own name may end as theirs does, and hold what a replacement pattern would understand.
    for ours in ("ours", r"\\1-r-7b", f"x/{name}"):
        stream = ForeignStream(wants_usage=True, model_at_member=name, model=ours, most_tokens=10**6)
        for theirs in (name, name.replace("/", "\\/")):
            event = data_event(b'{"model"%b"%b","choices":[{"delta":{"content":"t"}}]}' % (sign, theirs.encode()))
            shown = event.replace(b'"%b"' % theirs.encode(), msgspec.json.encode(ours))
            other = event.replace(b'"%b"' % theirs.encode(), b'"another"')
            assert stream.feed(event * 5 + other + event) == shown * 5 + other + shown


@pytest.mark.parametrize(
    ("usage", "told"),
    [
        (b"{}", None),
        (b"null", None),
        (b"[]", None),
        (b'"odd"', None),
        (b'{"prompt_tokens":null,"completion_tokens":2,"total_tokens":null}', None),
        (b'{"prompt_tokens":3.0,"completion_tokens":2.0}', None),
        (b'{"prompt_tokens":-3,"completion_tokens":true}', None),
        (b'{"input_tokens":3,"output_tokens":2}', None),
        (b'{"prompt_tokens":3,"completion_tokens":null}', (3, 5, 0)),
        (b'{"prompt_tokens":3,"completion_tokens":7,"prompt_tokens_details":[]}', (3, 7, 0)),
        (b'{"prompt_tokens":3,"completion_tokens":7,"prompt_tokens_details":{"cached_tokens":"2"}}', (3, 7, 0)),
        (b'{"prompt_tokens":3,"completion_tokens":7,"prompt_tokens_details":{"cached_tokens":2}}', (3, 7, 2)),
    ],
)
@pytest.mark.parametrize("is_together", [False, True])
def test_odd_usage_hides_neither_tokens_nor_why_the_answer_ended(
    usage: bytes, told: tuple[int, int, int] | None, is_together: bool
) -> None:
    """In each event, as some servers tell it."""
    stream = foreign()
    ends = [b"null"] * 5 + [b'"stop"']
    texts = [b'"x"'] * 5 + [b'""']
    events = [
        data_event(b'{"choices":[{"delta":{"content":%b},"finish_reason":%b}],"usage":%b}' % (text, end, usage))
        for text, end in zip(texts, ends, strict=True)
    ]
    sent = b"".join([*events, DONE_EVENT])
    seen = b"".join([stream.feed(piece) for piece in ([sent] if is_together else [*events, DONE_EVENT])])
    assert (seen, stream.num_tokens, stream.finish_reason) == (b"".join(events), 5, "stop")
    read = stream.usage
    assert told == (read and (read.prompt_tokens, read.completion_tokens, read.cached_tokens))


def test_tokens_after_early_figures_are_counted_and_the_last_figures_are_believed() -> None:
    stream = foreign()
    early = data_event(b'{"choices":[],"usage":{"prompt_tokens":30,"completion_tokens":0}}')
    assert stream.feed(early + EVENTS[0] * 8) == EVENTS[0] * 8
    assert stream.usage is not None and (stream.usage.prompt_tokens, stream.usage.completion_tokens) == (30, 8)
    middle = data_event(b'{"choices":[{"delta":{"content":"x"}}],"usage":{"prompt_tokens":30,"completion_tokens":12}}')
    stream.feed(middle + EVENTS[0] * 2)
    assert stream.usage.completion_tokens == 14
    stream.feed(data_event(b'{"choices":[],"usage":{"prompt_tokens":31,"completion_tokens":13}}') + DONE_EVENT)
    assert (stream.usage.prompt_tokens, stream.usage.completion_tokens) == (31, 13)


@pytest.mark.parametrize("usage", [b"{}", b'{"prompt_tokens":null}', b'{"prompt_tokens":3.5,"completion_tokens":1}'])
def test_a_usage_chunk_with_odd_figures_is_hidden_all_the_same(usage: bytes) -> None:
    odd = data_event(b'{"choices":[],"usage":%b}' % usage)
    assert foreign().feed(EVENTS[0] + odd) == EVENTS[0]
    assert foreign(wants_usage=True).feed(EVENTS[0] + odd) == EVENTS[0] + odd


@pytest.mark.parametrize("wants_usage", [False, True])
def test_a_usage_chunk_goes_to_whoever_asked_for_it(wants_usage: bool) -> None:
    stream = foreign(wants_usage=wants_usage)
    usage = data_event(b'{"choices":[],"usage":{"prompt_tokens":3,"completion_tokens":2}}')
    assert stream.feed(EVENTS[0] + usage + DONE_EVENT) == EVENTS[0] + (usage if wants_usage else b"")
    assert stream.usage is not None
    assert (stream.usage.prompt_tokens, stream.usage.completion_tokens) == (3, 2)


def test_nothing_counts_after_the_end() -> None:
    stream = foreign()
    assert stream.feed(EVENTS[0] + DONE_EVENT + EVENTS[1]) == EVENTS[0]
    assert stream.feed(EVENTS[2]) == b""
    assert stream.num_tokens == 1


def test_a_large_event_in_small_pieces_is_copied_once() -> None:
    buffer, piece = EventBuffer(), b"x" * 1000
    for _ in range(2000):
        assert buffer.feed(piece) == b""
    # Each piece is kept as it came, not joined to those before it.
    assert all(kept is piece for kept in buffer._rest)
    assert len(buffer.feed(b"\n\n")) == 2_000_002


def test_an_event_without_end_is_refused() -> None:
    buffer = EventBuffer()
    with pytest.raises(BrokenStream):
        for _ in range(40):
            buffer.feed(b"x" * 2**20)
