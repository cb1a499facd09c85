"""Calls tools over HTTP on behalf of a model, and records each call."""
