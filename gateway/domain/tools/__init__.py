"""Tools that the platform calls itself: whose they are, where they are, and what they are called with."""
