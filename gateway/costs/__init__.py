"""From usage records to money.

rollups/                       divides each engine-hour among its requests and keeps the rows up to date
cost_lines                     sums of those rows with their prices: the basis of everything below
prices/, allocation            the price book; who pays for unused GPU time
reports/, export/, statement/  what people read
closing/                       closes a month: frozen rates, statements, period hash
verification/, proofs/         recomputes closed months, and proves statements
reconciliation/                compares with the engines' counters and the provider's bill
calibration/                   measures what tokens cost on a GPU
maintenance/                   the ledger process and the maintenance job

Most rooms have `schemas`, `operations`, `routes` and `commands` of their own.
"""
