"""Models and the pools that serve them: one model a pool."""
