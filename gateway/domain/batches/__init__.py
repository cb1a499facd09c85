"""Batches: requests in a file, answered on idle capacity within a day."""
