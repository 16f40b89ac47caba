"""The `florin` command's parts: one module a noun, each with a Typer app that joins its group in
`gateway.commands.tree`."""
