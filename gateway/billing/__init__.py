"""Billing: the usage ledger behind quotas and budgets, invoices, rerating and reconciliation."""
