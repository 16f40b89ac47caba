"""Dynamo's LoRA placement and the workloads of its simulation, written anew from its `lib/llm/src/lora` and
`lib/llm/tests/lora_simulation` (pull requests 8192 and 13758, summer of 2026), to compare with.

Its controller decides every TICK, from the arrivals of the last WINDOW ticks, which engines an adapter's
requests may go to; loads happen when a request arrives that finds none. Not modelled: more than 16 engines,
from where on the flow looks at each adapter's nearest ones first, and engines that come and go.
"""
