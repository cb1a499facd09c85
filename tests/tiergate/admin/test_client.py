import json
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import parse_qs, urlsplit

import pytest

from tiergate.admin.client import AdminClient, ApiError
from tiergate.failure import Failure

ROWS = [{"id": number} for number in range(2500)]


class _Api(BaseHTTPRequestHandler):
    """Lists in pages, as the admin API does; everything else is refused, in its shape and in another."""

    def do_GET(self) -> None:
        url = urlsplit(self.path)
        query = {name: values[0] for name, values in parse_qs(url.query).items()}
        if url.path == "/admin/v1/rows":
            first = int(query.get("after", -1)) + 1
            page = ROWS[first : first + int(query["limit"])]
            is_last = page[-1] is ROWS[-1]
            self._answer(200, {"data": page, "next": None if is_last else str(page[-1]["id"])})
        elif url.path == "/admin/v1/refused":
            self._answer(409, {"error": {"message": "there is one already"}})
        else:
            self._answer(502, "a proxy's page")

    def _answer(self, status: int, body: object) -> None:
        content = json.dumps(body).encode()
        self.send_response(status)
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        self.wfile.write(content)

    def log_message(self, format: str, *_: object) -> None:
        return


@pytest.fixture(scope="module")
def origin() -> Iterator[str]:
    with ThreadingHTTPServer(("127.0.0.1", 0), _Api) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield f"http://127.0.0.1:{server.server_address[1]}"
        server.shutdown()
        thread.join()


def test_rows_come_from_all_pages(origin: str) -> None:
    with AdminClient(origin, "key") as client:
        assert list(client.rows("/rows")) == ROWS


@pytest.mark.parametrize("limit", [1, 1000, 1001, 2500, 9999])
def test_no_more_rows_than_asked_for(origin: str, limit: int) -> None:
    with AdminClient(f"{origin}/v1/", "key") as client:
        assert list(client.rows("/rows", max_rows=limit)) == ROWS[:limit]


def test_a_refusal_carries_the_gateways_words(origin: str) -> None:
    with AdminClient(origin, "key") as client, pytest.raises(ApiError, match="409: there is one already") as refused:
        client.get("/refused")
    assert (refused.value.status, refused.value.exit_code) == (409, 1)


def test_what_is_no_gateway_is_told_by_its_status(origin: str) -> None:
    with AdminClient(origin, "key") as client, pytest.raises(ApiError, match="502: Bad Gateway"):
        client.get("/elsewhere")


def test_a_key_that_cannot_be_a_header_is_bad_input() -> None:
    with pytest.raises(Failure) as refused:
        AdminClient("http://127.0.0.1:1", "schlüssel\n")
    assert refused.value.exit_code == 2
