"""The `florin` commands: one module per noun, each with a Typer app that `gateway.commands.tree` adds to its
group."""
