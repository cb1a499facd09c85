from tests.support.s3_fixtures import s3, s3_server

__all__ = ["s3", "s3_server"]
