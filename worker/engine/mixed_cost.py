"""What prompt tokens cost beside decodes: a part for each token, and one for there being any, learned from steps."""

_KEPT = 0.95
_LEAST_SPREAD = 0.1
_LEAST_PART = 0.02
"""Each token costs at least this part of the average; less is measured only by chance."""
_JUMP = 2.0
"""A step that takes so many times longer than expected makes what was learned before worthless."""
_CLEARLY = 1.25


class MixedCost:
    """A line through (prompt tokens, seconds more than decodes alone) by least squares, in which older steps fade.

    A GPU replays a step of decodes as a graph and launches a mixed one kernel by kernel, which takes milliseconds more
    however few tokens it computes.
    """

    def __init__(self) -> None:
        self._weight = self._mean_tokens = self._mean_s = self._variance = self._covariance = 0.0

    def record(self, num_prefill: int, extra_s: float) -> None:
        if self._is_known and extra_s > _JUMP * self._expected_s(num_prefill):
            self._weight = self._mean_tokens = self._mean_s = self._variance = self._covariance = 0.0
        self._weight = _KEPT * self._weight + 1
        share = 1 / self._weight
        more_tokens, more_s = num_prefill - self._mean_tokens, extra_s - self._mean_s
        self._mean_tokens += share * more_tokens
        self._mean_s += share * more_s
        self._variance = (1 - share) * (self._variance + share * more_tokens * more_tokens)
        self._covariance = (1 - share) * (self._covariance + share * more_tokens * more_s)

    def least_tokens(self, wanted_s: float, *, least: float) -> float:
        """The fewest prompt tokens worth a step: `least`, or where their being there clearly costs more than wanted_s
        alone, so many that the tokens take as long as that. Twice `least` as long as the steps were too alike to tell.
        """
        if not self._is_known:
            return 2 * least
        average_s = max(self._mean_s, 0.0) / self._mean_tokens
        per_token_s = max(self._covariance / self._variance, _LEAST_PART * average_s)
        fixed_s = self._mean_s - per_token_s * self._mean_tokens
        return max(fixed_s / per_token_s, least) if fixed_s > _CLEARLY * wanted_s else least

    @property
    def _is_known(self) -> bool:
        return self._variance > (_LEAST_SPREAD * self._mean_tokens) ** 2

    def _expected_s(self, num_prefill: int) -> float:
        return self._mean_s + self._covariance / self._variance * (num_prefill - self._mean_tokens)
