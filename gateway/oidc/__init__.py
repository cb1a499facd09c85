"""OpenID Connect as far as a client needs it: the provider, its keys, its tokens. This package knows no tenants."""
