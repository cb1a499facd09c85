"""What a tenant has used: the ledger behind quotas and budgets."""
