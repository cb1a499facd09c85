"""An error as an answer that no application has to give."""

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
    """Header lines, the body's Content-Length among them."""
    body: bytes


def refusal_of(error: GatewayError, **more_headers: str) -> Refusal:
    body = error_body(error)
    lines = error_headers(error) | {
        REQUEST_ID_HEADER: new_request_id(utc_now()),
        "content-length": str(len(body)),
        **more_headers,
    }
    block = "".join([f"{name}: {value}\r\n" for name, value in lines.items()])
    return Refusal(error_status(error), checked_block(block.encode("latin-1"), num_lines=len(lines)), body)
