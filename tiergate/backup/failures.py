"""Errors of the database, the disk and the object store, as one-line failures."""

import sqlite3
from collections.abc import Iterator
from contextlib import contextmanager

from obstore.exceptions import BaseError
from sqlalchemy.exc import SQLAlchemyError

from protocol.object_store import BadStoreUrl, first_line
from tiergate.failure import Failure


@contextmanager
def telling_failures() -> Iterator[None]:
    try:
        yield
    except BadStoreUrl as error:
        raise Failure(f"TIERGATE_ARTIFACTS_URL: {error}") from error
    except BaseError as error:
        raise Failure(
            f"the object store does not answer as it should: {first_line(error)[:300]}", exit_code=1
        ) from error
    except SQLAlchemyError as error:
        raise Failure(f"TIERGATE_DATABASE_URL: {first_line(error)[:300]} (is it up?)", exit_code=1) from error
    except sqlite3.Error as error:
        raise Failure(f"an outbox cannot be copied: {error} (is the disk full?)", exit_code=1) from error
    except OSError as error:
        place = f" ({error.filename})" if error.filename else ""
        raise Failure(
            f"{error.strerror or error}{place}; is there room on the disk, and may it be written?", exit_code=1
        ) from error
