"""Every change that an operator can make, once. Routes, `florin apply` and tests call it."""
