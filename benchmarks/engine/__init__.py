"""Measures the speed of an OpenAI-compatible engine; see `__main__`."""
