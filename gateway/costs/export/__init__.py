"""Cost lines as files: FOCUS 1.2 and 1.4 in two datasets, and plain ledger lines; CSV or Parquet.

Rows are produced and written one engine-hour (or less) at a time, so memory use does not depend on the size
of the month."""
