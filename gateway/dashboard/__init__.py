"""`/dashboard`: pages rendered on the server over the usage queries, behind a login with an API key. No script."""
