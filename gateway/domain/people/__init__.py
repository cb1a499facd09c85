"""People who logged in through the identity provider."""
