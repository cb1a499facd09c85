"""Who logged in through the identity provider."""
