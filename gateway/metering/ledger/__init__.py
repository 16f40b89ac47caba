"""The durable store of usage records and everything computed from them."""
