// A real OpenID provider (npm's oidc-provider) for tests. Its one argument is JSON: port, redirect_uri,
// backchannel_logout_uri, post_logout_redirect_uri, accounts (login name -> claims). SIGTERM ends it.
import Provider from "oidc-provider";

const given = JSON.parse(process.argv[2]);
const issuer = `http://127.0.0.1:${given.port}`;
const client = {
  client_id: "tiergate",
  client_secret: "a secret+with/signs:that=need&quoting",
  redirect_uris: [given.redirect_uri],
  post_logout_redirect_uris: [given.post_logout_redirect_uri],
  backchannel_logout_uri: given.backchannel_logout_uri,
  backchannel_logout_session_required: true,
};

const provider = new Provider(issuer, {
  clients: [client],
  cookies: { keys: ["for tests"] },
  // Claims stand in the ID token, as with the providers that docs/login.md names.
  conformIdTokenClaims: false,
  claims: { openid: ["sub", "roles", "tenant"], email: ["email", "email_verified"] },
  pkce: { required: () => true },
  features: { backchannelLogout: { enabled: true }, devInteractions: { enabled: true } },
  findAccount: (_ctx, id) => given.accounts[id] && { accountId: id, claims: () => ({ sub: id, ...given.accounts[id] }) },
  // Nobody is asked for consent.
  async loadExistingGrant(ctx) {
    const grant = new ctx.oidc.provider.Grant({
      clientId: ctx.oidc.client.clientId,
      accountId: ctx.oidc.session.accountId,
    });
    grant.addOIDCScope("openid email profile");
    await grant.save();
    return grant;
  },
  // It calls no private addresses, such as those of the gateway of a test, but with a fetch of one's own.
  fetch: (url, { dispatcher, ...options }) => globalThis.fetch(url, options),
});
provider.on("backchannel.error", (_ctx, error) => console.error(`back-channel logout: ${error}`));
provider.on("server_error", (_ctx, error) => console.error(error));

provider.listen(given.port, "127.0.0.1", () => console.log("ready"));
process.on("SIGTERM", () => process.exit(0));
