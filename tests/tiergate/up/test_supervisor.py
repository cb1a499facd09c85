import asyncio
import os
import re
import signal
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import msgspec
import pytest

from tests.support.processes import DEADLINE_S, SLEEPS, Lines, is_alive, python, until
from tiergate.up.service import Crashed
from tiergate.up.supervisor import Supervisor


@asynccontextmanager
async def running(supervisor: Supervisor) -> AsyncIterator[None]:
    """The supervisor at work; it is stopped at the end."""
    async with asyncio.TaskGroup() as group:
        group.create_task(supervisor.run(_nothing))
        try:
            yield
        finally:
            supervisor.request_stop()


async def _nothing() -> None:
    return None


async def test_a_killed_process_is_started_again() -> None:
    lines = Lines()
    supervisor = Supervisor(lines)
    service = supervisor.add(python("worker", SLEEPS))
    async with running(supervisor):
        await lines.until("worker       | up and running")
        first = service.pid
        assert first is not None
        os.kill(first, signal.SIGKILL)
        await lines.until("worker       | up and running", times=2)
        assert service.pid != first
        assert "worker died (signal SIGKILL)" in lines.text


async def test_everything_stops_in_reverse_order() -> None:
    lines = Lines()
    supervisor = Supervisor(lines)
    says_bye = (
        "import os, signal, time\n"
        "signal.signal(signal.SIGTERM, lambda *_: (os.write(1, b'bye\\n'), os._exit(0)))\n"
        "print('up and running', flush=True)\n"
        "time.sleep(600)"
    )
    services = [supervisor.add(python(name, says_bye)) for name in ("first", "second", "third")]
    async with running(supervisor):
        await lines.until("up and running", times=3)
        pids = [service.pid for service in services]
    assert re.findall(r"(\w+) +\| bye", lines.text) == ["third", "second", "first"], lines.text
    assert not any(is_alive(pid) for pid in pids if pid)


async def test_a_process_that_ignores_sigterm_is_killed_after_its_time() -> None:
    lines = Lines()
    supervisor = Supervisor(lines)
    stubborn = "import signal; signal.signal(signal.SIGTERM, signal.SIG_IGN)\n" + SLEEPS
    service = supervisor.add(python("stubborn", stubborn, stop_within_s=0.2))
    async with running(supervisor):
        await lines.until("up and running")
        pid = service.pid
    assert pid is not None and not is_alive(pid)
    assert "stubborn did not stop within 0.2 s" in lines.text


async def test_a_second_request_to_stop_waits_for_nobody() -> None:
    lines = Lines()
    supervisor = Supervisor(lines)
    stubborn = "import signal; signal.signal(signal.SIGTERM, signal.SIG_IGN)\n" + SLEEPS
    supervisor.add(python("stubborn", stubborn, stop_within_s=600))
    async with asyncio.timeout(DEADLINE_S), running(supervisor):
        await lines.until("up and running")
        supervisor.request_stop()
        await lines.until("stopping stubborn")
        supervisor.kill()


async def test_a_process_that_does_not_become_ready_is_started_again() -> None:
    async def never() -> bool:
        return False

    lines = Lines()
    supervisor = Supervisor(lines)
    service = supervisor.add(msgspec.structs.replace(python("slow", SLEEPS, probe=never), ready_within_s=0.5))
    async with running(supervisor):
        await lines.until("slow died (signal SIGKILL)")
        await lines.until("up and running", times=2)
        assert not service.ready.is_set()


async def test_muted_lines_are_not_shown() -> None:
    lines = Lines()
    supervisor = Supervisor(lines)
    spec = python("chatty", "print('buy more memory', flush=True)\n" + SLEEPS)
    supervisor.add(msgspec.structs.replace(spec, muted=("more memory",)))
    async with running(supervisor):
        await lines.until("up and running")
    assert "memory" not in lines.text


async def test_what_a_dead_process_left_behind_is_killed_with_it() -> None:
    lines = Lines()
    supervisor = Supervisor(lines)
    forks = (
        "import subprocess, sys\n"
        f"print('child', subprocess.Popen([sys.executable, '-c', {SLEEPS!r}]).pid, flush=True)\n"
    )
    service = supervisor.add(python("parent", forks + SLEEPS))
    async with running(supervisor):
        await lines.until("up and running", times=2)
        found = re.search(r"child (\d+)", lines.text)
        assert found and service.pid
        os.kill(service.pid, signal.SIGKILL)
        await until(lambda: not is_alive(int(found[1])), what="the grandchild's end")


async def test_a_crash_loop_ends_with_the_processs_own_last_words() -> None:
    lines = Lines()
    supervisor = Supervisor(lines)
    supervisor.add(python("other", SLEEPS))
    supervisor.add(python("broken", "import sys; sys.exit('the disk is on fire')"))
    with pytest.raises(Crashed, match="broken died 5 times in a row: the disk is on fire") as crashed:
        await supervisor.run(_nothing)
    assert crashed.value.exit_code == 1
    assert "stopping other" in lines.text


async def test_bad_input_is_not_tried_again() -> None:
    supervisor = Supervisor(Lines())
    supervisor.add(python("worker", "import sys; print('weights.bin: no such tensor'); sys.exit(2)"))
    with pytest.raises(Crashed, match=r"^weights\.bin: no such tensor$") as crashed:
        await supervisor.run(_nothing)
    assert crashed.value.exit_code == 2


async def test_a_process_starts_when_what_it_needs_is_there() -> None:
    lines = Lines()
    supervisor = Supervisor(lines)
    first = supervisor.add(python("first", SLEEPS))
    supervisor.add(python("second", SLEEPS), needs=first.ready.wait)
    async with running(supervisor):
        await lines.until("second is ready")
    assert lines.text.index("first is ready") < lines.text.index("second is ready")


async def test_long_and_broken_lines_are_passed_on() -> None:
    lines = Lines()
    supervisor = Supervisor(lines)
    code = "import sys; sys.stdout.buffer.write(b'x' * 100_000 + b'\\n\\xff\\nlast'); sys.stdout.flush()\n" + SLEEPS
    supervisor.add(python("noisy", code))
    async with running(supervisor):
        await lines.until("lastup and running")
    assert lines.text.count("x") >= 100_000 and "�" in lines.text


@pytest.mark.skipif(sys.platform != "linux", reason="the kernel's parent-death signal is Linux's")
async def test_no_child_survives_the_kill_of_its_supervisor() -> None:
    code = (
        "import asyncio\n"
        "from tests.support.processes import SLEEPS, python\n"
        "from tiergate.up.console import Console\n"
        "from tiergate.up.supervisor import Supervisor\n"
        "supervisor = Supervisor(Console())\n"
        "service = supervisor.add(python('child', 'import os; print(\"pid\", os.getpid(), flush=True)\\n' + SLEEPS))\n"
        "asyncio.run(supervisor.run(lambda: asyncio.sleep(600)))\n"
    )
    process = await asyncio.create_subprocess_exec(sys.executable, "-c", code, stdout=asyncio.subprocess.PIPE)
    assert process.stdout is not None
    while (found := re.search(r"pid (\d+)", (await process.stdout.readline()).decode())) is None:
        assert not process.stdout.at_eof()
    pid = int(found[1])
    assert is_alive(pid)
    process.kill()
    await process.wait()
    await until(lambda: not is_alive(pid), what="the child's end")
