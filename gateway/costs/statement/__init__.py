"""A tenant's monthly statement: `statement_figures` reads it, `page`, `document` and `table` show it."""
