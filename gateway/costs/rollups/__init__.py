"""Divides engine-hours among the requests that ran in them.

rollup            computes the marked hours, and replaces or corrects their rows; start here
engine_hour       one hour, from records, spans, weights and prices
attribution       the division; pure. `token_weights`: by what
posting           the divided hour as rows; `parts`: and once more by key, user, tag
posted_rows       the rows in the database
balance           checks that they sum to the whole
set_aside         hours that cannot be right
"""
