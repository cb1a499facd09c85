"""HTTP basics that all routes share: errors and their rendering, bodies, request ids, list pages, OpenAPI."""
