"""The console's login for people, by OpenID Connect."""
