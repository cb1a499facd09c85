"""Usage as foreign servers report it: only what all of them have is required."""

import msgspec


class _PromptDetails(msgspec.Struct):
    cached_tokens: int | None = None


class ForeignUsage(msgspec.Struct):
    prompt_tokens: int
    completion_tokens: int = 0
    prompt_tokens_details: _PromptDetails | None = None

    @property
    def cached_tokens(self) -> int:
        details = self.prompt_tokens_details
        return (details.cached_tokens or 0) if details is not None else 0
