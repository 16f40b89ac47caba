"""Closes a month.

closing           the four steps: flush, cut off, sum, commit; start here
checks            what prevents it
coverage          which records and rows the month covers; `frozen_rates`: at which rates
settlement        what each tenant is billed, rounded once; `charging`: by rate cards
preview           the same for a month that is open
requests          where a second person has to do it
period_hash       the root that proves all of it
"""
