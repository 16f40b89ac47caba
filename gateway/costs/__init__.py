"""From usage records to money.

weights, attribution    pure: what an engine-hour is divided by, and the division
engine_hours, posting,    one engine-hour from the ledger, its rows, and the roller that keeps all hours'
  rolling               rows up to date
lines                   sums of those rows with their price: what all below is made of
prices, allocation      the price book; who bears what nobody used
reports, export,        what people read
  statement
closing, verifying      a month for good, and the second look at it
reconciling             against engines' counters and the provider's bill
calibration             weights, measured
books, bookkeeper       where and when the sums are made
"""
