"""Log lines of a process: short, on stderr; `up` puts the process's name before them."""

import logging


def start_logging(level: str = "info") -> None:
    logging.basicConfig(
        level=level.upper(), format="%(asctime)s %(levelname)s %(name)s: %(message)s", datefmt="%H:%M:%S"
    )
    # Every request to a store or a worker would be a line.
    for chatty in ("httpx", "httpcore", "aiohttp.access", "alembic.runtime.plugins"):
        logging.getLogger(chatty).setLevel(max(logging.WARNING, logging.getLogger().level))
