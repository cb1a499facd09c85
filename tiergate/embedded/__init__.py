"""Embedded versions of services that production runs separately; `tiergate up` runs them on one machine."""
