"""Answer caching: which answers a tenant wants to have reused (docs/caching.md)."""
