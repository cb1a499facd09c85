"""An error as a ready-made answer that needs no application."""

from dataclasses import dataclass

from gateway.clock import utc_now
from gateway.http.errors import GatewayError
from gateway.http.header_block import checked_block
from gateway.http.rendering import error_body, error_headers, error_status
from gateway.http.request_ids import HEADER as REQUEST_ID_HEADER
from protocol.ids import new_request_id


@dataclass(frozen=True, slots=True)
class Refusal:
    status: int
    block: bytes
    """Header lines, including the body's Content-Length."""
    body: bytes


def refusal_of(error: GatewayError, **more_headers: str) -> Refusal:
    body = error_body(error)
    lines = error_headers(error) | {"content-length": str(len(body)), **more_headers}
    block = "".join([f"{name}: {value}\r\n" for name, value in lines.items()])
    checked = checked_block(block.encode("latin-1"), num_lines=len(lines))
    return Refusal(error_status(error), _id_line() + checked, body)


class RepeatedRefusal:
    """An error that refuses thousands of requests a second, so all of it except the request id is rendered once."""

    def __init__(self, error: GatewayError) -> None:
        first = refusal_of(error)
        self._status, self._body = first.status, first.body
        self._block = first.block.partition(b"\n")[2]

    def make(self) -> Refusal:
        return Refusal(self._status, _id_line() + self._block, self._body)


def _id_line() -> bytes:
    return f"{REQUEST_ID_HEADER}: {new_request_id(utc_now())}\r\n".encode()
