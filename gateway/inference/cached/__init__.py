"""The answer cache: earlier answers are given again where tenant and request allow it (docs/caching.md)."""
