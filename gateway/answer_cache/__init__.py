"""Cached answers: kept sealed in Redis, under names that contain their tenant."""
