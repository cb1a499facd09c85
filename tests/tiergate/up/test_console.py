import io

from tiergate.up.console import Console


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_names_stand_in_one_column() -> None:
    stream = io.StringIO()
    console = Console(stream)
    console.say("starting")
    console.line("worker-small", "ready")
    assert stream.getvalue() == "up           | starting\nworker-small | ready\n"


def test_each_name_has_a_colour_of_its_own_on_a_terminal() -> None:
    stream = Terminal()
    console = Console(stream)
    assert console.is_terminal and not Console(io.StringIO()).is_terminal
    for name in ("gateway", "worker-small", "gateway"):
        console.line(name, "ready")
    first, second, third = stream.getvalue().splitlines()
    assert first == third and first.startswith("\x1b[") and first[:5] != second[:5]


def test_a_reader_that_has_gone_does_not_matter() -> None:
    stream = io.StringIO()
    console = Console(stream)
    stream.close()
    console.say("still here")
