"""Batches in the data plane: their routes, and running a line, which takes the path of any other request."""
