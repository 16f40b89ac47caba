"""The whole registry as one document: `florin export`, `florin apply`, fleet files."""
