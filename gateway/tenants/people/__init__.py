"""People who sign in with an OpenID Connect issuer, instead of using a key.

`issuer` fetches and keeps the issuer's public keys, `tokens` verifies a token with them, `claims` says whose
it is and which role they have, `verification` does all of it, and `sign_in` makes tokens of a browser's visit
to the issuer. A verified person is a `Key` that is in no registry: its id begins with `oidc`, and it expires
with the token.
"""
