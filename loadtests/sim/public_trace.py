"""`python -m loadtests.sim.public_trace FILE OUT`: a public trace of an LLM service as one for `--trace`.

Such traces have no adapters: each request gets one as in the workload W1. Files that are understood:
AzureLLMInferenceTrace_*.csv (github.com/Azure/AzurePublicDataset, 2023 and 2024) and BurstGPT_*.csv
(github.com/HPMLL/BurstGPT).
"""

from __future__ import annotations

import csv
import datetime as dt
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Annotated

import numpy as np
import typer

from gateway.planning.simulator.workloads import RANK_SHARES, RANKS, TENANTS, WORKLOADS, Drawn
from loadtests.sim.trace_file import COLUMNS

AZURE = "TIMESTAMP", "ContextTokens", "GeneratedTokens"
BURST_GPT = "Timestamp", "Request tokens", "Response tokens"
ADAPTERS = WORKLOADS["W1"]


def main(
    trace: Path,
    out: Path,
    seconds: Annotated[float, typer.Option(help="how much of its beginning")] = 1200,
    seed: int = 1,
) -> None:
    """Convert a trace."""
    with trace.open(newline="", encoding="utf-8-sig") as file:
        rows = sorted(_rows(csv.DictReader(file)))
    rows = [row for row in rows if row[0] - rows[0][0] < seconds]
    arrivals = np.array([row[0] for row in rows]) - rows[0][0]
    adapters = ADAPTERS.choose(Drawn(arrivals, np.random.default_rng(seed), ADAPTERS.adapters)).tolist()
    ranks = np.random.default_rng(0).choice(RANKS, ADAPTERS.adapters, p=RANK_SHARES).tolist()
    with out.open("w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file)
        writer.writerow(COLUMNS)
        for arrival, (_, *tokens), adapter in zip(arrivals.tolist(), rows, adapters, strict=True):
            writer.writerow(
                (f"{arrival:.6f}", f"t{adapter % TENANTS}", f"a{adapter}", ranks[adapter], *tokens)
            )


def _rows(reader: csv.DictReader[str]) -> Iterator[tuple[float, int, int]]:
    """Arrival in seconds, tokens of the prompt and of the answer. Requests without an answer failed."""
    columns = AZURE if AZURE[0] in (reader.fieldnames or ()) else BURST_GPT
    for row in reader:
        prompt, output = int(row[columns[1]]), int(row[columns[2]])
        if prompt and output:
            yield _seconds(row, columns[0]), prompt, output


def _seconds(row: Mapping[str, str], column: str) -> float:
    if column == BURST_GPT[0]:
        return float(row[column])
    text, _, fraction = row[column].partition("+")[0].partition(".")  # that of 2023 has seven digits
    return dt.datetime.fromisoformat(f"{text}+00:00").timestamp() + float(f"0.{fraction or 0}")


if __name__ == "__main__":
    typer.run(main)
