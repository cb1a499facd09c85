"""Run the tests that failed beside others once more, alone: deadlines pass on a machine that stands still for a moment.

More than a few, or one that fails again, is a failure. Each is named, so that one which comes back is seen.
"""

import json
import subprocess
import sys
from pathlib import Path

MOST = 5
_FAILED = Path(".pytest_cache/v/cache/lastfailed")


def main(arguments: list[str]) -> int:
    _FAILED.unlink(missing_ok=True)
    ended = subprocess.run([sys.executable, "-m", "pytest", *arguments], check=False).returncode
    if ended != 1:
        return ended
    failed = list(json.loads(_FAILED.read_text()))
    if len(failed) > MOST:
        return ended
    print("Failed beside other tests, and run once more alone:", *failed, sep="\n  ", flush=True)
    return subprocess.run([sys.executable, "-m", "pytest", "-n", "0", "-m", "", *failed], check=False).returncode


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
