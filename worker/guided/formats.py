"""Exact regular expressions for formats that the grammar engine reads more generously than RFC 3339."""

_YEAR = "(?:000[1-9]|00[1-9][0-9]|0[1-9][0-9]{2}|[1-9][0-9]{3})"
_LEAP_YEAR = "(?:[0-9]{2}(?:0[48]|[2468][048]|[13579][26])|(?:0[48]|[2468][048]|[13579][26])00)"
_THIRTY_ONE = "(?:0[13578]|1[02])-(?:0[1-9]|[12][0-9]|3[01])"
_THIRTY = "(?:0[469]|11)-(?:0[1-9]|[12][0-9]|30)"
_MONTH_AND_DAY = f"(?:{_THIRTY_ONE}|{_THIRTY}|02-(?:0[1-9]|1[0-9]|2[0-8]))"
_DATE = f"(?:{_YEAR}-{_MONTH_AND_DAY}|{_LEAP_YEAR}-02-29)"
# No leap seconds: they exist only at one moment of a day, which depends on the offset.
_TIME = r"(?:[01][0-9]|2[0-3]):[0-5][0-9]:[0-5][0-9](?:\.[0-9]{1,9})?(?:Z|[+-](?:[01][0-9]|2[0-3]):[0-5][0-9])"

PATTERNS = {"date": f"^{_DATE}$", "time": f"^{_TIME}$", "date-time": f"^{_DATE}T{_TIME}$"}
"""Used as `pattern` in place of `format`. The year 0000 is left out, since most libraries do not know it."""
