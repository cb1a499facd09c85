"""`/v1/responses`: a translation of chat completions, whose way the requests go."""
