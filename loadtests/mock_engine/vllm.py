"""The mock engine under vLLM's command line: `python -m loadtests.mock_engine.vllm serve MODEL --port 80 …`.

It ignores flags that it does not need. `--mock-core` starts a child process, like vLLM's engine core, that
must not outlive it. `--mock-fail WORDS` prints them on stderr and exits with 3.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import signal
import ssl
import subprocess
import sys

import uvloop

from loadtests.mock_engine.engine import MockEngine

_CORE = "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); time.sleep(600)"


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m loadtests.mock_engine.vllm", description="A fake vLLM.")
    parser.add_argument("serve", choices=["serve"])
    parser.add_argument("model")
    parser.add_argument("--served-model-name", nargs="+")
    parser.add_argument("--host", default="127.0.0.1")
    parser.add_argument("--port", type=int, default=8000)
    parser.add_argument("--max-loras", type=int, default=1)
    parser.add_argument("--max-cpu-loras", type=int)
    parser.add_argument("--max-lora-rank", type=int, default=16)
    parser.add_argument("--enable-lora", action="store_true")
    parser.add_argument("--api-key", default=os.environ.get("VLLM_API_KEY", ""))
    for name in ("--ssl-certfile", "--ssl-keyfile", "--ssl-ca-certs"):
        parser.add_argument(name)
    parser.add_argument("--ssl-cert-reqs", type=int, default=0)
    parser.add_argument("--mock-start-seconds", type=float, default=0.0)
    parser.add_argument("--mock-core", action="store_true")
    parser.add_argument("--mock-fail", default="")
    options, _ = parser.parse_known_args()
    if options.mock_fail:
        sys.exit((sys.stderr.write(options.mock_fail + "\n"), 3)[1])
    merged = any(name.startswith("fl-") for name in options.served_model_name or ())
    if (not options.enable_lora and not merged) or os.environ.get("VLLM_ALLOW_RUNTIME_LORA_UPDATING") != "1":
        sys.exit("the LoRA routes are not enabled")
    if options.mock_core:
        subprocess.Popen([sys.executable, "-c", _CORE])
    uvloop.run(_serve(options))


def _tls(options: argparse.Namespace) -> ssl.SSLContext | None:
    """An SSL context like that of vLLM's uvicorn."""
    if not options.ssl_certfile:
        return None
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(options.ssl_certfile, options.ssl_keyfile)
    context.verify_mode = ssl.VerifyMode(options.ssl_cert_reqs)
    if options.ssl_ca_certs:
        context.load_verify_locations(options.ssl_ca_certs)
    return context


async def _serve(options: argparse.Namespace) -> None:
    await asyncio.sleep(options.mock_start_seconds)
    stop = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, stop.set)
    engine = MockEngine(
        host=options.host,
        port=options.port,
        tls=_tls(options),
        api_key=options.api_key,
        base=(options.served_model_name or [options.model])[0],
        root=options.model,
        max_loras=options.max_loras,
        max_cpu_loras=options.max_cpu_loras or options.max_loras,
        max_lora_rank=options.max_lora_rank,
    )
    engine.on_death = lambda: os._exit(137)
    async with engine:
        print(f"serving {options.model} at {engine.url}", flush=True)
        await stop.wait()


if __name__ == "__main__":
    main()
