"""Speed of an OpenAI-compatible engine; see `__main__`."""
