"""Cost lines as files: FOCUS 1.2 and 1.4 in two datasets, and plain ledger lines; CSV or Parquet.

Rows are made one engine-hour (or less) at a time and written as they come: a month of any size takes the same
memory."""
