"""The names, help texts and labels of all metrics.

`python -m tests.tools.docs` writes docs/reference/metrics.md from METRICS.
"""

from __future__ import annotations

from typing import Final

METRICS: Final[dict[str, str]] = {
    "florin_requests_total": "Attempts and rejected requests, by adapter and outcome.",
    "florin_tokens_total": "Tokens by adapter and GPU type; `input` excludes cached tokens.",
    "florin_tenant_tokens_total": "Tokens by tenant; `input` excludes cached tokens.",
    "florin_time_to_first_token_seconds": "Time from dispatch to an engine until its first token, by engine.",
    "florin_request_duration_seconds": "Time from dispatch to an engine until the end of the attempt, by "
    "engine.",
    "florin_adapter_time_to_first_token_seconds": "Time from dispatch to an engine until its first token, by "
    "adapter.",
    "florin_adapter_request_duration_seconds": "Time from dispatch to an engine until the end of the "
    "attempt, by adapter.",
    "florin_adapter_holders": "Engines that hold the adapter's live version.",
    "florin_engine_slots": "Slots of the engine: versions that it can serve at a time.",
    "florin_engine_slots_used": "Versions assigned to the engine's slots.",
    "florin_engine_running": "Requests running on the engine, for all gateways, as the engine reports.",
    "florin_engine_waiting": "Requests waiting in the engine's queue, for all gateways, as the engine "
    "reports.",
    "florin_engines_wanted": "Engines that an autoscaler should run for the load of a base model, by GPU "
    "type.",
    "florin_fleet_engines": "Engines of the base model that take requests and answer, without those on "
    "trial.",
    "florin_fleet_capacity": "Requests that these engines run at a time, as far as known.",
    "florin_fleet_requests": "Requests to the base model and its adapters, on engines or waiting for one.",
    "florin_fleet_slots": "Slots of these engines.",
    "florin_fleet_adapters": "Slots in use by requests in flight, and adapters that wait for one.",
    "florin_fleet_expected_delay_seconds": "Expected time to the first token of another request, on average "
    "over these engines.",
    "florin_connections": "Open connections of clients, idle ones included.",
    "florin_connections_closed_total": "Connections of clients that Florin closed because of a limit, by "
    "reason: `header_timeout`, `body_timeout`, `write_timeout`, `idle`, `too_many`, `too_many_from_address`, "
    "`headers_too_large`, `heads` (more unfinished headers than a worker has room for), `invalid_http`, "
    "`pipelining`.",
    "florin_requests_pending": "Requests that are not on an engine: being read, queued, or between two "
    "attempts.",
    "florin_requests_waiting": "Requests that wait for an engine of the base model, on all gateways, also "
    "while it has none.",
    "florin_queue_waiting": "Requests that wait for an engine with room, by base model and the priority of "
    "their keys.",
    "florin_queue_wait_seconds": "How long requests waited for an engine with room, those included that were "
    "refused or gave up; requests that did not have to wait are not counted.",
    "florin_queue_refused_total": "Requests that the fair queue refused, by reason: `expected_wait`, "
    "`timeout`, `tenant_limit`, `worker_limit`, `no_engine` (none has started in time).",
    "florin_tenant_service_total": "Weighted tokens served, by tenant: one for each prompt token, two for "
    "each output token.",
    "florin_engine_credit": "Requests that may be on the engine at a time, over all workers.",
    "florin_client_aborts_total": "Requests whose client disconnected early, by stage: `body` (while sending "
    "it), `waiting` (for an engine), `answer` (before the first byte from an engine), `stream`.",
    "florin_redis_call_seconds": "Round trips to Redis by operation, including failed ones.",
    "florin_ledger_transaction_seconds": "Transactions of the ledger's database, by operation: `read` or "
    "`write`.",
    "florin_build_info": "Always 1; labelled with the versions of Florin and Python and the commit that "
    "it was built from (empty: unknown).",
    "florin_adapter_info": "1 for each registered adapter with a live version.",
    "florin_serving_status_info": "1 for each version that is quarantined or failed, and each suspect "
    "engine; `about` names it.",
    "florin_adapter_loads_total": "Adapter loads on engines, by result.",
    "florin_adapter_load_seconds": "Duration of adapter loads.",
    "florin_verifications_total": "Versions probed after a load, by result: `first`, `sound`, `no_base`, "
    "`skipped`, `quarantined`, `engine_suspect`, `failed`.",
    "florin_verification_seconds": "Duration of a version's verification.",
    "florin_placement_moves_total": "Moves of the placement planner that were carried out, by kind: "
    "`replicate`, `drop`, `prefetch`.",
    "florin_evictions_total": "Versions evicted from an engine's slots to make room.",
    "florin_placement_changes": "Changes of the placement in the last ten minutes, by kind: `load`, "
    "`eviction`, and `undone`: loads whose version was evicted within a minute, and evictions whose version "
    "had a slot again within a minute.",
    "florin_engine_up": "1 while the engine answers health probes, else 0.",
    "florin_engine_hung": "1 while the engine answers health probes but hangs, so that it gets no requests "
    "(maximum over workers).",
    "florin_engine_ejections_total": "Ejections of hung engines.",
    "florin_mirrored_versions_total": "Versions whose place in an engine's memory Florin had derived, "
    "compared with what the engine itself tells, by result (right, wrong). Only of engines that tell it.",
    "florin_engine_samples_refused_total": "Samples of an engine's metrics that were dropped because they "
    "are impossible.",
    "florin_in_flight": "Attempts in flight on the engine.",
    "florin_usage_records_total": "Usage records by result: `logged`, `lost`, `shipped`, `duplicate`, "
    "`quarantined`, `orphaned`, `damaged`, `unrecorded`, `recovered` (lost by the ledger's database after it "
    "had acknowledged them, and inserted again).",
    "florin_wal_oldest_seconds": "Age of the oldest usage record that is not in the ledger yet.",
    "florin_wal_write_seconds": "Duration of a synced write to the usage log.",
    "florin_disk_free_bytes": "Free space on the file system of a directory: `state`, `artifacts` or "
    "`exports`.",
    "florin_disk_size_bytes": "Size of that file system.",
    "florin_condition": "1 while the condition holds on a worker, as in /readyz and `florin doctor` (maximum "
    "over workers).",
    "florin_feed_connected": "1 while the worker follows the registry's change feed (minimum over workers).",
    "florin_clock_offset_seconds": "By how much another clock (`system`, `redis` or `ledger`) differs from "
    "the clock that Florin meters by, in absolute value (maximum over workers); 0 while it cannot be "
    "queried.",
    "florin_tls_certificate_expiry_timestamp_seconds": "Unix time at which a certificate in use expires: "
    "`server` or `engine client` (minimum over workers).",
    "florin_tls_certificate_renewal_failing": "1 while a renewed certificate cannot be used and the old one "
    "stays in use.",
    "florin_failovers_total": "Attempts that were given up and retried on another engine, by reason.",
    "florin_stream_resumes_total": "Streams whose engine failed, by result: `resumed` on another engine, "
    "`completed` (only the end was missing), or ended with an error: `not_resumable`, `refused` (another "
    "engine read the text differently), `failed` (no engine could continue).",
    "florin_engine_faults_total": "Invalid answers of engines, by kind: `malformed` (retried on another "
    "engine if possible), `usage` (delivered, but with inexact token counts).",
    "florin_engine_deaths_total": "Engine deaths, counted once for each tenant and adapter with requests "
    "there.",
    "florin_canary_verdicts_total": "Decisions of canaries' guards, by verdict: `hold`, `rollback`, "
    "`promote` (the next weight).",
    "florin_engine_trial_verdicts_total": "Decisions of the guards of engines on trial, by verdict: `drain`, "
    "`raise` (the next share), `accept` (an engine like the others).",
    "florin_loop_blocked_total": "Times that a worker's event loop stood still for more than a second, by "
    "the function that held it.",
    "florin_unknown_fields_total": "Request fields that were dropped because Florin does not know them.",
    "florin_trace_spans_total": "Spans of traces, by result: `exported`, `failed` (the collector did not "
    "take them), `dropped` (too many were waiting for it).",
    "florin_event_posts_total": "Posts of events to their receivers, by stream (`audit`, `usage`) and "
    "result: `delivered`, `failed`.",
    "florin_leader_passes_total": "Passes of the jobs that one worker does for all, by role (`reconciler`, "
    "`ledger-maintenance`, …) and result: `ok`, `failed`.",
    "florin_events_sent_total": "Events that their receiver has taken, by stream.",
    "florin_event_lag_seconds": "Age of the oldest event that its receiver has not taken, by stream; 0: none "
    "waits.",
    "florin_worker_restarts_total": "Workers that crashed and were restarted.",
    "florin_errors_total": "Error responses, by error code.",
    "florin_failed_keys_total": "Unknown keys, tokens and sign-in links, by answer: `401`, or `429` for an "
    "address that has sent too many.",
    "florin_limit_refusals_total": "Requests refused because of a limit or budget, by tenant, limit (such "
    "as `tokens_per_minute`), level (`tenant`, `key`, `organization`, `adapter`, `end user`, `tag`, "
    "`session`; `request` for limits of one request), and whether it is in shadow and refused nothing.",
    "florin_batch_lines_total": "Lines of batches, by result: `completed`, `failed`, `preempted` (its "
    "seat was given to a request that waited; it runs again).",
    "florin_batches_ended_total": "Batches that ended, by status: `completed`, `failed`, `expired`, "
    "`cancelled`.",
    "florin_batches": "Batches by status.",
    "florin_batch_lines_waiting": "Lines of batches that have no answer yet.",
    "florin_batch_oldest_seconds": "Age of the oldest batch that has not ended; 0: there is none.",
    "florin_budget_used_ratio": "Part of a tenant's budget that is used in its present window, by "
    "tenant and budget, reservations of requests in flight included.",
    "florin_gpu_provisioned_seconds_total": "GPU-seconds for which engines were provisioned.",
    "florin_gpu_busy_seconds_total": "GPU-seconds for which engines had attempts in flight.",
    "florin_cost_total": "Cost in `currency`; `bucket` is `usage`, `retry_waste`, `headroom`, `startup` or "
    "`idle`, the last three without an adapter.",
    "florin_month_cost": "Provisioned GPU cost at list price of the present UTC month so far, in `currency`.",
    "florin_month_cost_forecast": "The same at the month's end, as forecast: `expected`, and the `low` and "
    "`high` end of its 80 % interval.",
    "florin_tenant_month_cost": "Cost of a tenant in the present UTC month so far, in `currency`; "
    "`priced_by` is `rate_card` if it is what its rate card charges.",
    "florin_tenant_month_cost_forecast": "The same at the month's end, as expected.",
    "florin_cost_budget": "Budget for the cost of a tenant in the present UTC month; without a tenant, of "
    "the installation.",
    "florin_cost_budget_used_ratio": "Part of that budget that is used.",
    "florin_cost_anomaly_ratio": "Present anomalies: cost of a `tenant` or `adapter` on its last day, "
    "relative to its habit, or idle part of the time of an `engine`.",
    "florin_token_drift_ratio": "Unexplained difference between an engine's own token counters and its usage "
    "records in the last full hour, relative to the counters.",
    "florin_ledger_imbalance_nano_gpu_hours": "Difference between engine-hours and the sum of their parts; "
    "anything but 0 is a bug.",
    "florin_ledger_set_aside": "Engine-hours that cannot be rolled up and are in no report; see `florin cost "
    "set-aside`.",
    "florin_scheduled_export_failing": "1 if the last attempt of the scheduled export failed; see "
    "`FLORIN_EXPORT_TO`.",
    "florin_scheduled_export_timestamp_seconds": "Unix time at which a scheduled export last succeeded.",
    "florin_ledger_maintenance_timestamp_seconds": "Unix time at which the ledger was last rolled up and "
    "checked; the metrics of GPU time, cost and the ledger are as of then.",
}

LEDGER_METRICS: Final[dict[str, tuple[str, ...]]] = {
    "florin_gpu_provisioned_seconds_total": ("engine", "gpu_type"),
    "florin_gpu_busy_seconds_total": ("engine", "gpu_type"),
    "florin_cost_total": ("adapter", "gpu_type", "currency", "bucket"),
    "florin_token_drift_ratio": ("engine", "token_type"),
    "florin_ledger_imbalance_nano_gpu_hours": (),
    "florin_ledger_set_aside": (),
    "florin_ledger_maintenance_timestamp_seconds": (),
    "florin_scheduled_export_failing": (),
    "florin_scheduled_export_timestamp_seconds": (),
    "florin_month_cost": ("currency",),
    "florin_month_cost_forecast": ("bound", "currency"),
    "florin_tenant_month_cost": ("tenant", "currency", "priced_by"),
    "florin_tenant_month_cost_forecast": ("tenant", "currency", "priced_by"),
    "florin_cost_budget": ("tenant", "currency"),
    "florin_cost_budget_used_ratio": ("tenant",),
    "florin_cost_anomaly_ratio": ("kind", "subject"),
    "florin_batches": ("status",),
    "florin_batch_lines_waiting": (),
    "florin_batch_oldest_seconds": (),
}
"""The metrics computed from the ledger, with their labels."""

AT_SCRAPE: Final[dict[str, tuple[str, ...]]] = {
    "florin_adapter_info": ("adapter", "tenant", "base_model"),
    "florin_serving_status_info": ("about", "code"),
    "florin_adapter_holders": ("adapter",),
    "florin_engine_slots": ("engine",),
    "florin_engine_slots_used": ("engine",),
    "florin_engine_running": ("engine",),
    "florin_engine_waiting": ("engine",),
    "florin_placement_changes": ("kind",),
    "florin_requests_waiting": ("base_model",),
    "florin_engines_wanted": ("base_model", "gpu_type"),
    "florin_fleet_engines": ("base_model",),
    "florin_fleet_capacity": ("base_model",),
    "florin_fleet_requests": ("base_model",),
    "florin_fleet_slots": ("base_model",),
    "florin_fleet_adapters": ("base_model",),
    "florin_fleet_expected_delay_seconds": ("base_model",),
    "florin_build_info": ("version", "commit", "python"),
}
"""The metrics computed when they are scraped, with their labels."""
