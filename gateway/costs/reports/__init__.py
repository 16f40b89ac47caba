"""What finance reads: the report and what stands beside it, and the comparison of GPU types."""
