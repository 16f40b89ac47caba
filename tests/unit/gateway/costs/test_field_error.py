import importlib
import pickle
import pkgutil

import pytest

from gateway import costs
from gateway.costs.field_error import FieldError


def kinds() -> list[type[FieldError]]:
    for module in pkgutil.walk_packages(costs.__path__, "gateway.costs."):
        importlib.import_module(module.name)
    return sorted(FieldError.__subclasses__(), key=lambda kind: kind.__name__)


@pytest.mark.parametrize("kind", kinds())
def test_it_leaves_the_ledger_process_whole(kind):
    there = pickle.loads(pickle.dumps(kind("month", "month: not a month.")))
    assert (type(there), there.param, there.message, str(there)) == (
        kind, "month", "month: not a month.", "month: not a month.",
    )  # fmt: skip


def test_there_are_some():
    assert len(kinds()) >= 10
