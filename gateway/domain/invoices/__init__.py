"""Invoices, credit notes and prepaid credit, and a tenant's billing terms."""
