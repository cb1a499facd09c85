"""Requests that name server tools: several rounds on the normal path, with the tools called between rounds."""
