"""Batches at the data plane: their routes, and a line's way, which is that of any request."""
