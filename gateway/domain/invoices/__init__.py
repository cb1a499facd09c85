"""Invoices, credit notes and prepaid credit, and what they need to know of a tenant."""
