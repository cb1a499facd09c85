import pytest
from hypothesis import given
from hypothesis import strategies as st
from redis.exceptions import ResponseError

from gateway.redis_client.resp import BadReply, Replies, Reply, encode

replies = st.recursive(
    st.none() | st.integers(-(2**63), 2**63 - 1) | st.binary(max_size=40),
    lambda inner: st.lists(inner, max_size=4),
    max_leaves=12,
)


def write(reply: Reply) -> bytes:
    """As a server would."""
    if reply is None:
        return b"$-1\r\n"
    if isinstance(reply, int):
        return b":%d\r\n" % reply
    if isinstance(reply, bytes):
        return b"$%d\r\n%b\r\n" % (len(reply), reply)
    assert isinstance(reply, list)
    return b"*%d\r\n" % len(reply) + b"".join(write(each) for each in reply)


@given(sent=st.lists(replies, max_size=5), data=st.data())
def test_replies_are_read_however_they_are_cut(sent: list[Reply], data: st.DataObject) -> None:
    stream, reader, read = b"".join(write(reply) for reply in sent), Replies(), []
    while stream:
        cut = data.draw(st.integers(1, len(stream)))
        read += list(reader.feed(stream[:cut]))
        stream = stream[cut:]
    assert read == sent


def test_status_and_error_replies() -> None:
    ok, error = Replies().feed(b"+OK\r\n-ERR no\r\n")
    assert ok == b"OK"
    assert isinstance(error, ResponseError)
    assert str(error) == "ERR no"


@pytest.mark.parametrize("stream", [b"HTTP/1.1 400 Bad Request\r\n", b":x\r\n", b"$1x\r\n", b"*?\r\n"])
def test_what_is_no_reply_of_redis_is_refused(stream: bytes) -> None:
    with pytest.raises(BadReply):
        list(Replies().feed(stream))


def test_a_command_is_an_array_of_strings() -> None:
    assert encode("SET", "ä", 12) == b"*3\r\n$3\r\nSET\r\n$2\r\n\xc3\xa4\r\n$2\r\n12\r\n"
