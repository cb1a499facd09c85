"""API keys: made, hashed, looked up by prefix, cached, revoked."""
