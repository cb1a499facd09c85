"""The gateway's admin API over HTTP, for people and for `up`."""

from collections.abc import Iterator, Mapping
from pathlib import Path
from types import TracebackType
from typing import Any, BinaryIO, Self

import httpx

from tiergate.failure import Failure

Json = dict[str, Any]
TIMEOUT_S = 30.0
UPLOAD_ANSWER_S = 600.0
"""How long to wait for the answer to an upload: having received all of it, the gateway may still be writing gigabytes
to its object store."""
PAGE = 1000


class ApiError(Failure):
    """The gateway refused the request; the message is the gateway's."""

    def __init__(self, message: str, status: int) -> None:
        super().__init__(message, exit_code=1)
        self.status = status


class AdminClient:
    """Client of the admin API. `base_url` may end in `/v1`, as OpenAI's clients require.

    Calls raise ApiError if the gateway refuses, and Failure if nothing answers.
    """

    def __init__(self, base_url: str, admin_key: str) -> None:
        origin = base_url.rstrip("/").removesuffix("/v1")
        try:
            self._http = httpx.Client(
                base_url=f"{origin}/admin/v1", headers={"Authorization": f"Bearer {admin_key}"}, timeout=TIMEOUT_S
            )
        except (httpx.InvalidURL, UnicodeEncodeError) as error:
            raise Failure(f"--base-url or --admin-key cannot be used: {error}") from error

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._http.close()

    def get(self, path: str, **query: Any) -> Json:
        return self._call("GET", path, params=_sent(query))

    def post(self, path: str, body: Json) -> Json:
        return self._call("POST", path, json=body)

    def patch(self, path: str, body: Json) -> Json:
        return self._call("PATCH", path, json=body)

    def put(self, path: str, body: Json) -> Json:
        return self._call("PUT", path, json=body)

    def download(self, path: str, **query: Any) -> bytes:
        return self._send("GET", path, params=query).content

    def download_to(self, target: BinaryIO, path: str, **query: Any) -> None:
        """Write the answer to `target` while it arrives, so its size is not bounded by memory."""
        try:
            with self._http.stream("GET", path, params=_sent(query)) as response:
                if response.is_error:
                    response.read()
                    raise ApiError(_error_text(response), response.status_code)
                for chunk in response.iter_bytes():
                    target.write(chunk)
        except (httpx.HTTPError, httpx.InvalidURL) as error:
            raise self._silent(error) from error

    def upload(self, method: str, path: str, fields: Mapping[str, str], files: Mapping[str, BinaryIO]) -> Json:
        """Send a form with files. They are read while they are sent, in order."""
        timeout = httpx.Timeout(TIMEOUT_S, read=UPLOAD_ANSWER_S)
        named = {name: (Path(file.name).name, file) for name, file in files.items()}
        return self._call(method, path, data=dict(fields), files=named, timeout=timeout)

    def delete(self, path: str) -> None:
        self._call("DELETE", path)

    def rows(self, path: str, *, max_rows: int | None = None, **query: Any) -> Iterator[Json]:
        """The rows of all pages, in order."""
        after: str | None = None
        num_left = max_rows
        while num_left is None or num_left > 0:
            page = self.get(path, after=after, limit=min(PAGE, num_left or PAGE), **query)
            yield from page["data"]
            after = page.get("next")
            if after is None:
                return
            num_left = None if num_left is None else num_left - len(page["data"])

    def _call(self, method: str, path: str, **arguments: Any) -> Json:
        response = self._send(method, path, **arguments)
        return response.json() if response.content else {}

    def _send(self, method: str, path: str, **arguments: Any) -> httpx.Response:
        try:
            response = self._http.request(method, path, **arguments)
        except (httpx.HTTPError, httpx.InvalidURL) as error:
            raise self._silent(error) from error
        if response.is_error:
            raise ApiError(_error_text(response), response.status_code)
        return response

    def _silent(self, error: Exception) -> Failure:
        return Failure(f"{self._http.base_url} does not answer: {str(error) or type(error).__name__}", exit_code=1)


def _sent(query: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in query.items() if value is not None}


def _error_text(response: httpx.Response) -> str:
    try:
        message = response.json()["error"]["message"]
    except (ValueError, KeyError, TypeError):
        message = response.reason_phrase
    return f"{response.status_code}: {message}"
