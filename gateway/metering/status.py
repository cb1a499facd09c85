"""`/health`, `/ready` and `/metrics` for the processes without other HTTP: the producer and the consumer."""

import hmac
import ipaddress
import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

from prometheus_client import CollectorRegistry, generate_latest
from pydantic import SecretStr

from gateway.metering.rounds import Rounds
from gateway.settings import ConfigError

_FORWARDED = ("forwarded", "x-forwarded-for", "x-real-ip")
_TIMEOUT_S = 5


@contextmanager
def status_served(
    host: str, port: int | None, *, setting: str, rounds: Rounds, registry: CollectorRegistry, key: SecretStr | None
) -> Iterator[None]:
    """Serve in a thread beside the loop; not at all if `port` is None. Raises ConfigError naming `setting`."""
    if port is None:
        yield
        return
    try:
        server = _Server((host, port), _Handler)
    except OSError as error:
        raise ConfigError(f"{setting}: cannot listen on {host}:{port}: {error.strerror}") from error
    server.rounds, server.registry, server.key = rounds, registry, key
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.1}, name="status", daemon=True)
    thread.start()
    try:
        yield
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


class _Server(ThreadingHTTPServer):
    daemon_threads = True
    rounds: Rounds
    registry: CollectorRegistry
    key: SecretStr | None


class _Handler(BaseHTTPRequestHandler):
    server: _Server
    timeout = _TIMEOUT_S

    def do_GET(self) -> None:
        path = self.path.partition("?")[0]
        if path == "/health":
            self._tell(self.server.rounds.is_alive, "ok", "the loop stands still")
        elif path == "/ready":
            self._tell(self.server.rounds.is_target_there, "ready", "what takes the events is away")
        elif path == "/metrics":
            self._show_metrics()
        else:
            self._answer(HTTPStatus.NOT_FOUND, {"error": "GET /health, /ready or /metrics"})

    def log_message(self, format: str, *args: object) -> None:
        """Log nothing: every probe would be a line."""

    def _show_metrics(self) -> None:
        key = self.server.key
        if key is None:
            # A request that a proxy on this machine forwards comes from loopback, too.
            if any(name in self.headers for name in _FORWARDED) or not _is_loopback(self.client_address[0]):
                self._answer(HTTPStatus.FORBIDDEN, {"error": "set TIERGATE_METRICS_KEY and send it"})
                return
        elif not hmac.compare_digest(
            (self.headers.get("authorization") or "").encode(), f"Bearer {key.get_secret_value()}".encode()
        ):
            self._answer(HTTPStatus.UNAUTHORIZED, {"error": "send `Authorization: Bearer <TIERGATE_METRICS_KEY>`"})
            return
        self._send(HTTPStatus.OK, generate_latest(self.server.registry), "text/plain; version=0.0.4; charset=utf-8")

    def _tell(self, is_well: bool, well: str, ill: str) -> None:
        self._answer(HTTPStatus.OK if is_well else HTTPStatus.SERVICE_UNAVAILABLE, {"status": well if is_well else ill})

    def _answer(self, status: HTTPStatus, body: dict[str, str]) -> None:
        self._send(status, json.dumps(body).encode(), "application/json")

    def _send(self, status: HTTPStatus, body: bytes, content_type: str) -> None:
        self.send_response(status)
        self.send_header("content-type", content_type)
        self.send_header("content-length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)


def _is_loopback(host: str) -> bool:
    try:
        address = ipaddress.ip_address(host)
    except ValueError:
        return False
    mapped = address.ipv4_mapped if isinstance(address, ipaddress.IPv6Address) else None
    return (mapped or address).is_loopback
