"""Webhooks: the URLs that tenants want events sent to, and the deliveries to them."""
