"""Token counts that a sequence's sampling needs, kept up to date at a constant cost per token. No torch."""

from array import array


class TokenHistory:
    """The distinct ids of prompt and answer, and how often the answer has each; parallel arrays of 64-bit integers."""

    def __init__(self, prompt_ids: list[int]) -> None:
        distinct = dict.fromkeys(prompt_ids)
        self.ids = array("q", distinct)
        self.counts = array("q", bytes(8 * len(distinct)))
        self._places = {token_id: i for i, token_id in enumerate(distinct)}
        self._num_seen = len(prompt_ids)

    def catch_up(self, token_ids: list[int]) -> None:
        """token_ids: prompt and answer so far; tokens since the last call are counted."""
        for i in range(self._num_seen, len(token_ids)):
            place = self._places.setdefault(token_ids[i], len(self.ids))
            if place == len(self.ids):
                self.ids.append(token_ids[i])
                self.counts.append(0)
            self.counts[place] += 1
        self._num_seen = len(token_ids)
