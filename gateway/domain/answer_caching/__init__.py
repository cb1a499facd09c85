"""Which answers a tenant wants to be given again (docs/caching.md)."""
