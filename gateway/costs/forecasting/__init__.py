"""What is coming: the month's forecast, budgets, anomalies, and the alerts about them."""
