"""The durable store of usage records and of what is made of them."""
