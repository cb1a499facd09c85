from gateway.http.errors import GatewayError


class ProviderFailed(GatewayError):
    """The identity provider does not answer, or not as it should."""

    status, code = 502, "identity_provider_failed"


class TokenRefused(GatewayError):
    """A token or code is not for us, not from the provider, or not valid now."""

    status, type, code = 403, "permission_error", "token_refused"
