"""florin adapter convert, merge and compress: local files to local files, without a gateway."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn

from adapters.wording import counted
from gateway.commands.client import ApiError, UsageError
from gateway.commands.output import clean, console, say, show, table
from gateway.commands.session import Session, command
from gateway.schemas.base import Answer

if TYPE_CHECKING:
    from adapters.conversion.adapter_files import SourceAdapter
    from adapters.conversion.result import Plain

app = typer.Typer()

_SHOWN_MODULES = 12
_HIGHEST_RANK = 512

Out = Annotated[Path, typer.Option(help="Directory to write. It appears when it is complete.")]
Rank = Annotated[int | None, typer.Option(min=1, max=_HIGHEST_RANK, help="Highest rank of the result.")]
MaxError = Annotated[
    float | None,
    typer.Option(min=0, help="Write nothing if the error, relative to the adapter's change, is above this."),
]
Force = Annotated[bool, typer.Option("--force", help="Replace what an earlier run wrote to --out.")]


class RankError(Answer):
    """The error if all modules were at this rank."""

    rank: int
    error: float


class ConvertedModule(Answer):
    module: str
    method: str
    rank: int
    error: float
    output_error: float | None


class Conversion(Answer):
    out: str
    written: bool
    rank: int
    error: float
    output_error: float | None
    ranks: tuple[RankError, ...]
    modules: tuple[ConvertedModule, ...]


@command(app, "convert", local=True)
def convert(
    session: Session,
    path: Annotated[Path, typer.Argument(metavar="DIR", help="The adapter's directory.")],
    *,
    base: Annotated[Path, typer.Option(help="Directory of the base model, not quantized, in safetensors.")],
    out: Out,
    rank: Rank = None,
    max_error: MaxError = None,
    initial: Annotated[
        Path | None,
        typer.Option(help="The adapter before training, for PiSSA, OLoRA and others that change the base."),
    ] = None,
    force: Force = False,
) -> None:
    """Convert DoRA, full modules, trained tokens and PiSSA to plain LoRA. Needs no gateway and no GPU.

    Exact where the change has a low rank; else the best approximation at --rank (default: the adapter's own),
    with the measured error of each module.

    Example: florin adapter convert ./dora --base /models/Qwen3-8B --out ./plain --rank 64
    """
    from adapters.conversion import adapter_files, base_weights  # load numpy and the checks
    from adapters.conversion import convert as conversion

    with _failures():
        source = adapter_files.read_adapter(path)
        started = adapter_files.read_adapter(initial) if initial else None
        _check_out(out, [path, base, *([initial] if initial else [])], force=force)
        weights = base_weights.read_base_weights(base)
        with _bar("converting") as progress:
            result = conversion.convert(source, weights, rank=rank, initial=started, progress=progress)
        _finish(session, "convert", result, source, [path], out=out, max_error=max_error, force=force)


@command(app, "merge", local=True)
def merge(
    session: Session,
    parts: Annotated[
        list[str],
        typer.Argument(metavar="DIR[:WEIGHT]...", help="Adapters, each with its weight (default: 1)."),
    ],
    *,
    out: Out,
    into_base: Annotated[
        Path | None,
        typer.Option(help="Merge one adapter into this base model, and write the whole model."),
    ] = None,
    rank: Rank = None,
    max_error: MaxError = None,
    initial: Annotated[
        Path | None,
        typer.Option(help="With --into-base: the adapter before training, as for `adapter convert`."),
    ] = None,
    force: Force = False,
) -> None:
    """Merge adapters of one base model into one, or an adapter into its base model. Needs no gateway.

    Adapters are merged exactly, at the sum of their ranks, unless --rank is lower.

    Example: florin adapter merge ./polite ./legal:0.5 --out ./both
    """
    from adapters.conversion import adapter_files, base_weights, output  # load numpy and the checks
    from adapters.conversion import merge as merging

    given = [_weighted(part) for part in parts]
    if into_base is None:
        if initial is not None:
            raise UsageError("--initial needs --into-base; for plain LoRA, convert the adapter first.")
        with _failures():
            sources = [(adapter_files.read_adapter(path), weight) for path, weight in given]
            _check_out(out, [path for path, _ in given], force=force)
            with _bar("merging") as progress:
                result = merging.merge(sources, rank=rank, progress=progress)
            _finish(session, "merge", result, sources[0][0], parts, out=out, max_error=max_error, force=force)
        return
    if len(given) > 1 or given[0][1] != 1 or rank is not None or max_error is not None:
        raise UsageError("--into-base takes one adapter, and neither a weight, --rank nor --max-error.")
    path = given[0][0]
    with _failures():
        source = adapter_files.read_adapter(path)
        started = adapter_files.read_adapter(initial) if initial else None
        _check_out(out, [path, into_base, *([initial] if initial else [])], force=force, model=True)
        weights = base_weights.read_base_weights(into_base)
        with _bar("merging") as progress:
            changed = output.write_merged_model(
                out, source, weights, started, replace=force, progress=progress
            )
    body = {"out": str(out), "written": True, "changed": changed}
    session.result(
        body, lambda _: say(f"Wrote {clean(str(out))}: the base model with {len(changed)} changed weights.")
    )


@command(app, "compress", local=True)
def compress(
    session: Session,
    path: Annotated[Path, typer.Argument(help="The adapter's directory: plain LoRA.")],
    *,
    out: Out,
    rank: Rank = None,
    energy: Annotated[
        float | None,
        typer.Option(
            min=0.01,
            max=1,
            help="Give each module the lowest rank that keeps this share of its squared singular values.",
        ),
    ] = None,
    max_error: MaxError = None,
    force: Force = False,
) -> None:
    """Lower an adapter's rank, by the singular values of each module. Needs no gateway and no base model.

    Example: florin adapter compress ./rank64 --out ./rank16 --rank 16
    """
    from adapters.conversion import adapter_files  # loads numpy and the checks
    from adapters.conversion import merge as merging

    if rank is None and energy is None:
        raise UsageError("Give --rank, --energy, or both.")
    with _failures():
        source = adapter_files.read_adapter(path)
        _check_out(out, [path], force=force)
        with _bar("compressing") as progress:
            result = merging.compress(source, rank=rank, energy=energy, progress=progress)
        _finish(session, "compress", result, source, [path], out=out, max_error=max_error, force=force)


def _finish(
    session: Session,
    name: str,
    result: Plain,
    source: SourceAdapter,
    inputs: list[Any],
    *,
    out: Path,
    max_error: float | None,
    force: bool,
) -> None:
    """Write the result, or refuse it with the ranks that would do."""
    from adapters.conversion.output import write_adapter  # loads numpy

    conversion = Conversion.of(
        result,
        out=str(out),
        written=max_error is None or result.error <= max_error,
        ranks=tuple(RankError(rank=rank, error=error) for rank, error in result.choices()),
        modules=tuple(
            ConvertedModule.of(module, module=module.path, rank=module.factors.rank)
            for module in result.modules
        ),
    )
    if not conversion.written:
        if not session.json:
            _people(conversion)
        fit = next((rank for rank, error in result.choices() if error <= (max_error or 0)), None)
        advice = f"--rank {fit} would do." if fit else "No rank that engines serve would do."
        findings = [] if not session.json else [{"code": "error_too_large", **conversion.body}]
        raise ApiError(
            422,
            f"Nothing was written: error {result.error:.3g} is above --max-error {max_error:g}. {advice}",
            "error_too_large",
            tuple(findings),
        )
    record = {
        "command": name, "from": [Path(str(part)).name for part in inputs], "rank": result.rank,
        "error": result.error, "output_error": result.output_error,
    }  # fmt: skip
    write_adapter(out, result, source, record, replace=force)
    session.result(conversion, _people)


def _people(conversion: Conversion) -> None:
    modules = sorted(conversion.modules, key=lambda m: -m.error)
    columns = ("module", "method", "rank", "error", "output error")
    rows = [
        (m.module, m.method, m.rank, _share(m.error), _share(m.output_error))
        for m in modules[:_SHOWN_MODULES]
    ]
    show(table(columns, rows, right=columns[2:]))
    if len(modules) > _SHOWN_MODULES:
        say(f"… and {counted(len(modules) - _SHOWN_MODULES, 'module')} with smaller errors; --json has all.")
    say("")
    ranks = [(r.rank, _share(r.error)) for r in conversion.ranks]
    show(table(("if all were at rank", "error"), ranks, right=("if all were at rank", "error")))
    say("")
    written = f"Wrote {clean(conversion.out)}" if conversion.written else "Computed"
    outputs = "" if conversion.output_error is None else f", {_share(conversion.output_error)} of the outputs"
    say(f"{written}: rank {conversion.rank}, error {_share(conversion.error)} of the change{outputs}.")


def _share(value: float | None) -> str:
    return (
        "-" if value is None else "0" if value == 0 else f"{value:.3%}" if value >= 1e-5 else f"{value:.0e}"
    )


def _weighted(part: str) -> tuple[Path, float]:
    """`./a:0.5`; a path that exists as it stands has weight 1."""
    path, colon, weight = part.rpartition(":")
    if not colon or Path(part).exists():
        return Path(part), 1.0
    try:
        value = float(weight)
    except ValueError as error:
        raise UsageError(f"{part!r} is neither a directory nor DIR:WEIGHT.") from error
    if not abs(value) <= 1000:
        raise UsageError(f"The weight of {part!r} must be between -1000 and 1000.")
    return Path(path), value


def _check_out(out: Path, inputs: list[Path], *, force: bool, model: bool = False) -> None:
    """Before the work, not after it. Raises UsageError."""
    from adapters.conversion.output import is_adapter, is_model  # loads numpy

    resolved = out.resolve()
    if any(resolved == path.resolve() or resolved in path.resolve().parents for path in inputs):
        raise UsageError("--out must not be or contain an input.")
    if not out.exists() and not out.is_symlink():
        return
    if not force:
        raise UsageError(f"{out} exists: name another --out, or replace it with --force.")
    if out.is_symlink() or not (is_model(out) if model else is_adapter(out)):
        raise UsageError(f"{out} is not {'a model' if model else 'an adapter'}: --force does not replace it.")


@contextmanager
def _failures() -> Iterator[None]:
    from adapters.errors import RejectedError  # with the checks

    try:
        yield
    except RejectedError as refusal:
        findings = tuple(asdict(finding) for finding in refusal.findings)
        raise ApiError(422, str(refusal), "not_convertible", findings) from refusal
    except OSError as error:
        raise UsageError(f"Cannot read or write: {error}.") from error


@contextmanager
def _bar(what: str) -> Iterator[Callable[[str, int, int | None], None]]:
    """On stderr, if it is a terminal."""
    err = console(stderr=True)
    columns = (TextColumn("{task.description}"), BarColumn(), TimeElapsedColumn(), TimeRemainingColumn())
    with Progress(*columns, console=err, disable=not err.is_terminal, transient=True) as progress:
        task = progress.add_task(what, total=None)

        def told(_: str, done: int, total: int | None) -> None:
            progress.update(task, completed=done, total=total)

        yield told
