"""Calling tools over HTTP on behalf of a model, and keeping account of each call."""
