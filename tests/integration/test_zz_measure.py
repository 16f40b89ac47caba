import asyncio, time, collections
from tests.integration.test_data_plane import HELLO, voice
from tests.integration.conftest import *
from loadtests.mock_engine import MockEngine
async def test_measure(town: Town):
    async with MockEngine() as c, MockEngine() as d:
        await town.gateway.add_engine("c", c.url); await town.gateway.add_engine("d", d.url)
        engines = [town.a, town.b, c, d]
        times=[]
        async def ask(stream):
            t=time.monotonic()
            async with town.gateway.client("acme", timeout=60) as client:
                r = await client.chat.completions.create(model="support", messages=HELLO, stream=stream)
                if stream: "".join([x.choices[0].delta.content or "" async for x in r])
            times.append(time.monotonic()-t)
        await ask(False)
        (h,) = [e for e in engines if e.state.calls]
        name=[s for s in town.gateway.state.pool.states() if s.engine.url==h.url][0].engine.name
        h.stop_core(); times.clear()
        t=time.monotonic()
        async def later(i):
            await asyncio.sleep(i*0.3); await ask(i%2==0)
        r = await asyncio.gather(*(later(i) for i in range(104)), return_exceptions=True)
        bad=[x for x in r if isinstance(x,Exception)]
        st=town.gateway.state.pool.state(name)
        print(f"AFTER defaults: {len(bad)} of 104 failed; longest {max(times):.1f}s; quick(<1s) {sum(x<1 for x in times)}")
        t0=time.monotonic(); h.core.go_on()
        while not st.usable: await asyncio.sleep(0.1)
        print(f"back {time.monotonic()-t0:.1f}s after it went on; ejections {st.standing.ejections}")
