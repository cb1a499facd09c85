"""However children come, tell and go, what is shown is what was counted, and no total ever falls."""

from random import Random

from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from gateway.metric_snapshots import Snapshot
from gateway.metrics import Metrics
from gateway.processes.totals import Totals


def requests(shown: Snapshot) -> float:
    return sum(value for family in shown if family.name == "tiergate_requests" for value in _totals(family.samples))


def processes(shown: Snapshot) -> float:
    return sum(
        value for family in shown if family.name == "tiergate_gateway_processes" for value in family.samples.values()
    )


def _totals(samples: dict[tuple[str, tuple[tuple[str, str], ...]], float]) -> list[float]:
    return [value for (name, _), value in samples.items() if name.endswith("_total")]


class Children(RuleBasedStateMachine):
    @initialize()
    def start_empty(self) -> None:
        self.totals = Totals()
        self.alive: dict[int, Metrics] = {}
        self.told: dict[int, float] = {}
        """Everything that any child, alive or gone, has told."""
        self.num_started = 0
        self.shown = 0.0

    @rule()
    def start(self) -> None:
        self.alive[self.num_started] = Metrics()
        self.num_started += 1

    @precondition(lambda self: self.alive)
    @rule(chosen=st.randoms(use_true_random=False), count=st.integers(0, 5), code=st.sampled_from(["200", "503"]))
    def serve(self, chosen: Random, count: int, code: str) -> None:
        metrics = self._any(chosen)[1]
        for _ in range(count):
            metrics.count_request(int(code), ("small", "m", "free"))

    @precondition(lambda self: self.alive)
    @rule(chosen=st.randoms(use_true_random=False))
    def tell(self, chosen: Random) -> None:
        number, metrics = self._any(chosen)
        self.totals.note(number, metrics.snapshot())
        self.told[number] = requests(metrics.snapshot())

    @precondition(lambda self: self.alive)
    @rule(chosen=st.randoms(use_true_random=False))
    def die(self, chosen: Random) -> None:
        number, _ = self._any(chosen)
        del self.alive[number]
        self.totals.retire(number)

    @invariant()
    def shown_is_what_was_told(self) -> None:
        for silent in (set[int](), set(self.alive)):
            shown = self.totals.of_all(silent=silent)
            assert requests(shown) == sum(self.told.values()) >= self.shown
            assert processes(shown) == len(set(self.alive) & set(self.told) - silent)
            self.shown = requests(shown)

    def _any(self, chosen: Random) -> tuple[int, Metrics]:
        number = chosen.choice(sorted(self.alive))
        return number, self.alive[number]


TestChildren = Children.TestCase
