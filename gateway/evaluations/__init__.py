"""Evaluations: a held-out set is sent to a version before callers are.

    data → cases → a batch of requests → answers → [a batch for the judge → its verdicts] → scores → summary

An evaluation is one or two ordinary batches of its tenant (`gateway.batches`), so its requests have the
lifecycle, priority, limits, metering and exactly-once results of batches, and survive the death of any
worker. What is new here is pure: reading the data, building the requests, scoring the answers, and the
statistics. Only `evaluation_store` and `runner` touch the database.
"""
