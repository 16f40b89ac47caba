"""`python -m loadtests.soak`: runs a steady mixed load for as long as desired and checks for leaks. `samples`
measures, `trend` judges, purely, and `churn` changes the installation meanwhile."""
