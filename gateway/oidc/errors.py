from gateway.http.errors import GatewayError


class ProviderFailed(GatewayError):
    """The identity provider does not answer, or not as it should."""

    status, code = 502, "identity_provider_failed"


class TokenRefused(GatewayError):
    """What it vouched for is not for us, not from it, or not for now."""

    status, type, code = 403, "permission_error", "token_refused"
