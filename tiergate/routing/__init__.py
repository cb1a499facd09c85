"""Teaching the router: graded prompts in, weights, thresholds and their quality out."""
