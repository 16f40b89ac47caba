"""The engine agent: what `florin engine run` does around one vLLM engine on a GPU host.

engine_flags    which command-line flags are added and refused; pure
gpus            GPU type and count, from NVML
supervisor      the engine's processes: started in their own group, restarted, never orphaned
staging         versions on local disk: fetched once, verified, bounded
gateway_client  client of the gateway's admin API
agent           ties it together: registration, heartbeats, drain
"""
