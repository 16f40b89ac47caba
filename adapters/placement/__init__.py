"""Which engine holds which version.

scheduling/       which engine a request goes to, and whether to load its version there; pure
loader            makes a version resident: one load, however many wait for it; start here
load_steps        one load on one engine: make room, load, verify, confirm
engine_client     the calls to the engine, in the words of its driver
verification      asks the loaded version and the base model; `fingerprint` compares the answers, pure
residency         where versions are, as this worker last heard; `mirror`: in which of an engine's memories
planner           what operators asked for: labels, minimum and maximum replicas, pins; pure
churn             loads and evictions, and how many of them are undone soon
drain_plan        where an engine's versions go when it is drained; pure
"""
