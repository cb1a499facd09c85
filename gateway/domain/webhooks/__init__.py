"""Webhooks: where tenants want to be told of events, and what is still to be delivered there."""
