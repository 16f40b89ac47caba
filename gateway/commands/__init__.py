"""The tree of the `florin` commands, and what they share. Each room has its own, with Typer apps that
`gateway.commands.tree` adds to their groups."""
