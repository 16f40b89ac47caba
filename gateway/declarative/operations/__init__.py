"""The whole registry as one document, and back: `florin export`, `florin apply`.

`document` is its shape, and `specs` that of its objects; `current` reads the registry as one; `plan`, pure,
says what would change (`resolve`: what each object is to become); `execute` does it, object by object
(`objects`, and `splits` for adapters).
"""
