"""The engine agent: what `florin engine run` does around one vLLM engine on a GPU host.

engine_flags      which command-line flags are added and refused; pure
gpus              GPU type and count, from NVML
engine_process    the engine's processes: started in their own session, never orphaned
supervisor        restarts the engine when it exits
staging           versions on local disk: fetched once, verified, bounded
gateway_client    client of the gateway's admin API
heartbeat         registration and heartbeats
drain             graceful shutdown
handover          a restart of the agent under a running engine
agent             ties it together
"""
