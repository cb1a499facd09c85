"""Trains the router: from graded prompts to weights, thresholds and their quality."""
