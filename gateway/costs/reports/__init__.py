"""Reports: costs, unit prices, closed months, usage records, and the comparison of GPU types."""
