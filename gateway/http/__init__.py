"""The ground of every door: errors and their rendering, bodies, request ids, pages of lists, OpenAPI."""
