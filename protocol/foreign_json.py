"""Reading JSON that somebody else wrote."""

import msgspec

UNREADABLE = (msgspec.MsgspecError, UnicodeDecodeError, RecursionError)
"""What decoding raises for JSON that is malformed, of another form, not UTF-8, or nested too deeply."""
