"""Erasures of tenants and of end users: durable jobs, carried out by `gateway/erasure`."""
