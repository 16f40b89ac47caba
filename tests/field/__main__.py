from tests.field.table import TABLE, table

TABLE.write_text(table())
