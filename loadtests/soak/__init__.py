"""`python -m loadtests.soak`: a steady mixed load for as long as one likes, and whether anything grows that
must not. `samples` looks, `trend` judges, purely, and `churn` changes the installation meanwhile."""
