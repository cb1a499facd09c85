"""Answers that are given again: kept in Redis under names that hold their tenant, sealed."""
