"""A GPU host's side: what `florin engine run` does around one vLLM engine.

engine_flags    what is added to and refused of its command line; pure
gpus            GPU type and count, by NVML
supervisor      its processes: started in a group of their own, restarted, and never left behind
staging         versions on local disk: fetched once, hash-checked, bounded
gateway_client  the host's way to the gateway's admin API
agent           all of it together: registration, heartbeats, the drain
"""
