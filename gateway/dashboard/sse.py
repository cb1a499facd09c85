"""Server-sent events that hold HTML, for our scripts."""

HEADERS = {
    "Content-Type": "text/event-stream; charset=utf-8",
    "Cache-Control": "no-store",
    "X-Content-Type-Options": "nosniff",
    # Proxies that buffer answers would hold events back.
    "X-Accel-Buffering": "no",
}


def html_event(name: str, html: str) -> bytes:
    text = html.replace("\r\n", "\n").replace("\r", "\n")
    lines = "".join(f"data: {line}\n" for line in text.split("\n"))
    return f"event: {name}\n{lines}\n".encode()
