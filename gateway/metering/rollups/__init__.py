"""Usage by whole hours and days, recomputed from deduplicated events, and how long windows are read from it."""
