"""The yardstick: a relay on the gateway's own stack that only passes bytes through.

python -m benchmarks.gateway.relay PORT UPSTREAM_PORT
"""

import resource
import sys
from typing import Any

import aiohttp
import uvicorn

session: aiohttp.ClientSession | None = None
upstream = ""


async def relay(scope: Any, receive: Any, send: Any) -> None:
    global session
    if session is None:
        session = aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0), timeout=aiohttp.ClientTimeout())
    message = await receive()
    body = message["body"]
    while message["more_body"]:
        message = await receive()
        body += message["body"]
    async with session.post(
        upstream + scope["path"], data=body, headers={"content-type": "application/json"}
    ) as answer:
        names = ("content-type", "content-length")
        headers = [(name.encode(), answer.headers[name].encode()) for name in names if name in answer.headers]
        await send({"type": "http.response.start", "status": answer.status, "headers": headers})
        async for chunk in answer.content.iter_any():
            await send({"type": "http.response.body", "body": chunk, "more_body": True})
        await send({"type": "http.response.body", "body": b"", "more_body": False})


def main() -> None:
    global upstream
    port, upstream = int(sys.argv[1]), f"http://127.0.0.1:{sys.argv[2]}"
    hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    uvicorn.run(
        relay, port=port, http="httptools", loop="uvloop", lifespan="off", log_level="warning", access_log=False
    )


if __name__ == "__main__":
    main()
