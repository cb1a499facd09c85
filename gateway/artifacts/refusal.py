from gateway.http.errors import InvalidRequest


class BadAdapter(InvalidRequest):
    """Files that cannot be served as an adapter. The message names the file and the reason; nothing of them is kept."""

    def __init__(self, message: str, *, param: str) -> None:
        super().__init__(message, param=param, code="invalid_adapter")
