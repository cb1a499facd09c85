"""Models and the pools that serve them: one model per pool."""
