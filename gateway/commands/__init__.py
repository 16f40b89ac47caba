"""The `florin` command's parts: one module a noun, each a Typer app that `gateway.command_tree` mounts."""
