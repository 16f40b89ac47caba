"""The OpenID provider against which tests sign in."""
