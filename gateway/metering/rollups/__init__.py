"""Whole hours and days of usage, recomputed from deduplicated events, and the reading of long windows through them."""
