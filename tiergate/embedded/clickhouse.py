"""ClickHouse's HTTP interface over chDB, on loopback: `tiergate clickhouse`.

Implements the parts that clickhouse-connect uses: statements in the URL or the body, `FORMAT Native` both ways,
`param_*`, settings as parameters, summaries and exceptions in headers. Sessions and compressed blocks are not
supported: every request carries its own settings. Every query needs the password of the user `tiergate`, in any of the
ways that ClickHouse accepts one. Requests from web pages (with an Origin or a foreign Host) are refused.
"""

import asyncio
import json
import logging
import signal
import sys
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from uuid import uuid4

import lz4.frame
from aiohttp import web

from tiergate.embedded.credentials import WrongPassword, check_password
from tiergate.embedded.engine import Answer, Engine, EngineError
from tiergate.embedded.statements import BadRequest, Statement, parse_statement

_log = logging.getLogger(__name__)

_HOST = "127.0.0.1"
_MAX_BODY_BYTES = 128 << 20
_NUM_READERS = 3
_STATUS_OF_CODE = {
    **dict.fromkeys((36, 47, 53, 62, 43, 42, 27, 130, 457, 115, 456, 6, 38, 41, 70, 72), 400),
    **dict.fromkeys((60, 81, 16, 46), 404),
    159: 408,
    497: 403,
    516: 401,
    202: 503,
    241: 503,
}


class _Server:
    def __init__(
        self, engine: Engine, readers: ThreadPoolExecutor, writer: ThreadPoolExecutor, *, password: str
    ) -> None:
        self._engine = engine
        self._password = password
        self._readers = readers
        self._writer = writer

    async def ping(self, request: web.Request) -> web.Response:
        return web.Response(text="Ok.\n")

    async def query(self, request: web.Request) -> web.Response:
        query_id = request.query.get("query_id") or str(uuid4())
        headers = {"X-ClickHouse-Query-Id": query_id, "X-ClickHouse-Timezone": self._engine.timezone}
        try:
            _check_origin(request)
            check_password(request.headers, request.query, password=self._password)
            params, body = await _read(request)
            if request.method == "GET" and not params.get("query"):
                return await self.ping(request)
            statement = parse_statement(params, body, default_format=_default_format(request))
            is_read_only = request.method == "GET"
            answer = await self._run(statement, is_read_only=is_read_only)
        except BadRequest as error:
            return _failure(EngineError(f"Code: 36. DB::Exception: {error}. (BAD_ARGUMENTS)"), headers)
        except WrongPassword as error:
            text = f"Code: 516. DB::Exception: {error}. (AUTHENTICATION_FAILED)"
            return _failure(EngineError(text), headers | {"WWW-Authenticate": 'Basic realm="tiergate clickhouse"'})
        except EngineError as error:
            return _failure(error, headers)
        headers["X-ClickHouse-Summary"] = _summary(answer)
        if answer.body or statement.is_read:
            headers["X-ClickHouse-Format"] = statement.format
        content_type = "application/octet-stream" if statement.format == "Native" else "text/plain; charset=utf-8"
        return web.Response(body=answer.body, headers=headers | {"Content-Type": content_type})

    async def _run(self, statement: Statement, *, is_read_only: bool) -> Answer:
        pool = self._readers if statement.is_read else self._writer
        loop = asyncio.get_running_loop()
        return await loop.run_in_executor(pool, lambda: self._engine.run(statement, is_read_only=is_read_only))


def make_app(
    engine: Engine, readers: ThreadPoolExecutor, writer: ThreadPoolExecutor, *, password: str
) -> web.Application:
    server = _Server(engine, readers, writer, password=password)
    app = web.Application(client_max_size=_MAX_BODY_BYTES)
    app.router.add_get("/ping", server.ping)
    app.router.add_get("/replicas_status", server.ping)
    app.router.add_get("/", server.query)
    app.router.add_post("/", server.query)
    return app


def run(data_dir: Path, port: int, *, password: str) -> int:
    """Serve until SIGTERM or SIGINT; returns the exit status. A bad directory or a port in use: one line, status 2."""
    try:
        return asyncio.run(_serve(data_dir, port, password))
    except (OSError, EngineError) as error:
        sys.stderr.write(f"tiergate clickhouse: {error}\n")
        return 2


async def _serve(data_dir: Path, port: int, password: str) -> int:
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    for name in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(name, stop.set)
    with ThreadPoolExecutor(_NUM_READERS, "reader") as readers, ThreadPoolExecutor(1, "writer") as writer:
        engine = await loop.run_in_executor(writer, Engine, data_dir)
        try:
            runner = web.AppRunner(make_app(engine, readers, writer, password=password), access_log=None)
            await runner.setup()
            try:
                await web.TCPSite(runner, _HOST, port).start()
                _log.info("ClickHouse %s serves %s on http://%s:%d", engine.version, data_dir, *runner.addresses[0][:2])
                await stop.wait()
            finally:
                await runner.cleanup()
        finally:
            await loop.run_in_executor(writer, engine.close)
    return 0


async def _read(request: web.Request) -> tuple[dict[str, str], bytes]:
    """All parameters, including those of a form, and the decompressed body."""
    params = dict(request.query)
    if request.content_type in ("multipart/form-data", "application/x-www-form-urlencoded"):
        for name, value in (await request.post()).items():
            if not isinstance(value, str):
                raise BadRequest("external data (files in the form) is not supported")
            params[name] = value
        return params, b""
    body = await request.read()
    # aiohttp has already decoded gzip and deflate, and others if their package is installed.
    if body and request.headers.get("Content-Encoding", "") == "lz4":
        body = await asyncio.to_thread(_decompress_lz4, body)
    return params, body


def _decompress_lz4(body: bytes) -> bytes:
    """lz4 is clickhouse-connect's first choice for inserts; it depends on the package."""
    try:
        return bytes(lz4.frame.decompress(body))
    except RuntimeError as error:
        raise BadRequest(f"the body is not an lz4 frame: {error}") from error


def _check_origin(request: web.Request) -> None:
    """Refuse web pages in a browser on this machine, whether they connect directly or by DNS rebinding."""
    host = (request.headers.get("Host") or "").rsplit(":", 1)[0]
    if "Origin" in request.headers or host not in ("127.0.0.1", "localhost"):
        raise BadRequest("requests from web pages are refused")


def _default_format(request: web.Request) -> str:
    return request.headers.get("X-ClickHouse-Format", "TabSeparated")


def _summary(answer: Answer) -> str:
    counts = {
        "read_rows": answer.num_read_rows,
        "read_bytes": answer.num_read_bytes,
        "written_rows": answer.num_written_rows,
        "written_bytes": answer.num_written_bytes,
        "elapsed_ns": answer.elapsed_ns,
    }
    return json.dumps({name: str(count) for name, count in counts.items()})


def _failure(error: EngineError, headers: Mapping[str, str]) -> web.Response:
    return web.Response(
        status=_STATUS_OF_CODE.get(error.code, 500),
        text=error.message + "\n",
        headers={**headers, "X-ClickHouse-Exception-Code": str(error.code)},
    )
