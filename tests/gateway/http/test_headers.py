import pytest

from gateway.http.errors import InvalidRequest, UnsupportedMediaType
from gateway.http.headers import check_json, read_headers

HOST = (b"host", b"a")


def test_headers_are_read_by_name_and_the_last_of_a_name_counts() -> None:
    assert read_headers([HOST, (b"x", b"1"), (b"x", b"2")]) == {b"host": b"a", b"x": b"2"}


@pytest.mark.parametrize("name", [b"authorization", b"host", b"content-type", b"content-encoding"])
def test_what_must_come_once_is_refused_twice_even_when_it_says_the_same(name: bytes) -> None:
    with pytest.raises(InvalidRequest, match=name.decode().title()):
        read_headers([HOST, (name, b"identity"), (name, b"identity")])


@pytest.mark.parametrize("header", [(b"content-encoding", b"gzip"), (b"transfer-encoding", b"gzip, chunked")])
def test_an_encoding_that_we_do_not_speak_is_refused(header: tuple[bytes, bytes]) -> None:
    with pytest.raises(UnsupportedMediaType):
        read_headers([HOST, header])


@pytest.mark.parametrize(
    "value", [None, b"application/json", b"application/json; charset=utf-8", b"APPLICATION/JSON", b"application/a+json"]
)
def test_json_goes_by_several_names(value: bytes | None) -> None:
    check_json({} if value is None else {b"content-type": value})


@pytest.mark.parametrize("value", [b"", b"text/json", b"text/plain", b"application/jsonx", b"\xff"])
def test_other_bodies_are_refused(value: bytes) -> None:
    with pytest.raises(UnsupportedMediaType, match="application/json"):
        check_json({b"content-type": value})
