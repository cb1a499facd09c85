"""Visits record who is logged in to the console, so that a visit can be ended from elsewhere."""
