"""Answers that were given before are given again, where tenant and request want that (docs/caching.md)."""
