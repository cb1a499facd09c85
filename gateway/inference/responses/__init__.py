"""`/v1/responses`: requests are translated into chat completions and take their path."""
