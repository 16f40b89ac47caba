"""What the parent of several workers knows and they do not: who sits where, and how often one died."""

from __future__ import annotations

from gateway.shared_values import PARENT, Name, SharedValues


class CrewWatch:
    """Mutable: the seats that nobody has."""

    def __init__(self, workers: int) -> None:
        seats = 2 * workers  # where old and new ones overlap
        self.values = SharedValues.create(seats)
        self._free = list(range(PARENT + 1, PARENT + 1 + seats))
        restarts = Name("counter", "florin_worker_restarts", "florin_worker_restarts_total")
        self._restarts = self.values.sit(PARENT).value(restarts)

    def __repr__(self) -> str:
        return f"<CrewWatch {self.values!r}>"

    def take(self) -> int:
        """A seat for a worker that is about to start."""
        return self._free.pop(0)

    def leave(self, seat: int) -> None:
        """Its worker is gone."""
        self.values.dead(seat)
        self._free.append(seat)
        self._free.sort()

    def restarted(self) -> None:
        """A worker ended by itself."""
        self._restarts.inc(1)

    def close(self) -> None:
        self.values.close()
