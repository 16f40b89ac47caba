"""Drivers: one file for each kind of engine, behind one interface. `driver` has the interface, `vllm` its
reference; `DRIVERS` is the table."""

from adapters.drivers.driver import Driver
from adapters.drivers.lorax import Lorax
from adapters.drivers.sglang import Sglang
from adapters.drivers.tgi import Tgi
from adapters.drivers.trtllm import Trtllm
from adapters.drivers.vllm import Vllm
from adapters.model import DriverName, Engine

__all__ = ["DRIVERS", "driver_of"]

DRIVERS: dict[DriverName, Driver] = {d.name: d for d in (Vllm(), Sglang(), Trtllm(), Tgi(), Lorax())}


def driver_of(engine: Engine) -> Driver:
    return DRIVERS[engine.driver]
