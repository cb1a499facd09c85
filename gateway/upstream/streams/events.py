"""Splits bytes that may be cut anywhere into server-sent events (WHATWG HTML, "Server-sent events")."""

MAX_EVENT_BYTES = 16 * 2**20
_BOM = b"\xef\xbb\xbf"


class BrokenStream(Exception):
    """The data is not a stream that we understand."""


class EventBuffer:
    """Buffers incomplete events. Each byte is copied a bounded number of times, however small the pieces."""

    def __init__(self) -> None:
        self._rest: list[bytes] = []
        self._num_bytes = 0
        self._has_begun = False
        self._ends_in_cr = False

    def feed(self, chunk: bytes) -> bytes:
        """All events that are complete by now, with line ends normalised to LF. Raises BrokenStream."""
        if not self._has_begun:
            chunk = self._skip_bom(chunk)
        if self._ends_in_cr or b"\r" in chunk:
            chunk = self._with_lf(chunk)
        if not self._rest:
            end = chunk.rfind(b"\n\n") + 2
            if end < 2:
                return self._keep(chunk)
            if end == len(chunk):
                return chunk
            self._keep(chunk[end:])
            return chunk[:end]
        # The blank line may be split between the buffered data and the chunk.
        seam = self._rest[-1][-1:] + chunk
        end = seam.rfind(b"\n\n") + 2
        if end < 2:
            return self._keep(chunk)
        whole = b"".join([*self._rest, chunk[: end - 1]])
        self._rest, self._num_bytes = [], 0
        self._keep(chunk[end - 1 :])
        return whole

    def finish(self) -> bytes:
        """The last event, if the stream ended without a blank line after it."""
        rest = b"".join(self._rest).rstrip(b"\n")
        self._rest, self._num_bytes = [], 0
        return rest + b"\n\n" if rest else b""

    def _keep(self, piece: bytes) -> bytes:
        if piece:
            self._rest.append(piece)
            self._num_bytes += len(piece)
        if self._num_bytes > MAX_EVENT_BYTES:
            raise BrokenStream(f"an event of more than {MAX_EVENT_BYTES} bytes")
        return b""

    def _skip_bom(self, chunk: bytes) -> bytes:
        """Remove a byte order mark at the very beginning of the stream."""
        begun = b"".join(self._rest) + chunk
        self._rest, self._num_bytes = [], 0
        if len(begun) < len(_BOM) and _BOM.startswith(begun):
            return self._keep(begun)
        self._has_begun = True
        return begun.removeprefix(_BOM)

    def _with_lf(self, chunk: bytes) -> bytes:
        """Lines end in LF, CR LF or CR; within JSON a CR is always escaped."""
        if not chunk:
            return chunk
        # A CR at the end of the last piece has ended its line already; an LF right after it is part of that line end.
        rest = chunk.removeprefix(b"\n") if self._ends_in_cr else chunk
        self._ends_in_cr = chunk.endswith(b"\r")
        return rest.replace(b"\r\n", b"\n").replace(b"\r", b"\n")
