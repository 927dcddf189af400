"""`deuz brake`: stop what begins, and let it go on."""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated, cast

import typer
from rich.markup import escape
from rich.table import Table

from deuz_workers.cli.amounts import ago
from deuz_workers.cli.output import Output
from deuz_workers.cli.session import AppOption, JsonOption, on_app, stored

if TYPE_CHECKING:
    from deuz_workers.app.deuz import Deuz
    from deuz_workers.core.brake import Brake, BrakeAct, BrakeKind

app = typer.Typer(help="Brakes: set, lift, list. While one is set, no model call and no tool begins of what it names.")

Kind = Annotated[str, typer.Argument(metavar="KIND", help="One of scope, agent, tool, model, queue.")]
Name = Annotated[str, typer.Argument(metavar="NAME", help="Of the tenant, agent, tool, model (provider:model) or queue.")]
Reason = Annotated[str | None, typer.Option("--reason", help="Why; kept, and shown where runs wait for it.")]
Actor = Annotated[str | None, typer.Option("--by", envvar="DEUZ_ACTOR", help="Who does it; kept.")]


@app.command("set")
def set_(
    kind: Kind, name: Name, reason: Reason = None, actor: Actor = None, place: AppOption = None, json: JsonOption = False
) -> None:
    """From a second on nothing begins of it, on any worker; what is under way ends and is saved, and runs wait."""
    on_app(stored(place), lambda deuz: deuz.aio.operator.set_brake(cast("BrakeKind", kind), name, reason=reason, actor=actor))
    output = Output(json)
    output.document({"brake": {"kind": kind, "name": name, "reason": reason, "actor": actor}})
    output.show(f"braked {escape(kind)} [bold]{escape(name)}[/]; runs wait until deuz brake lift {escape(kind)} {escape(name)}")


@app.command()
def lift(
    kind: Kind, name: Name, reason: Reason = None, actor: Actor = None, place: AppOption = None, json: JsonOption = False
) -> None:
    """It is gone, and runs that met it go on at once."""
    lifted = on_app(
        stored(place), lambda deuz: deuz.aio.operator.lift_brake(cast("BrakeKind", kind), name, reason=reason, actor=actor)
    )
    output = Output(json)
    output.document({"lifted": lifted, "kind": kind, "name": name})
    said = "lifted the brake on" if lifted else "there was no brake on"
    output.show(f"{said} {escape(kind)} [bold]{escape(name)}[/]")


@app.command("list")
def list_(
    acts: Annotated[int, typer.Option("--acts", min=0, max=1000, help="Also the newest so many acts: who did what.")] = 0,
    place: AppOption = None,
    json: JsonOption = False,
) -> None:
    """Brakes that are set, with who set them and why."""

    async def read(deuz: Deuz) -> tuple[tuple[Brake, ...], tuple[BrakeAct, ...], int]:
        operator = deuz.aio.operator
        return await operator.brakes(), await operator.brake_acts(acts) if acts else (), await deuz.store.now_ms()

    brakes, done, now_ms = on_app(stored(place), read)
    output = Output(json)
    output.document({"brakes": [asdict(brake) for brake in brakes], "acts": [asdict(act) for act in done]})
    if not brakes:
        output.show("no brake is set")
    else:
        output.show(_table(("kind", "name", "since", "by", "reason"), [(b.kind, *_row(b, now_ms)) for b in brakes]))
    if done:
        output.show(_table(("act", "kind", "name", "when", "by", "reason"), [(a.act, a.kind, *_row(a, now_ms)) for a in done]))


def _row(row: Brake | BrakeAct, now_ms: int) -> tuple[str, str, str, str]:
    return row.name, ago(row.at_ms, now_ms), row.actor or "", row.reason or ""


def _table(columns: tuple[str, ...], rows: list[tuple[str, ...]]) -> Table:
    table = Table(*columns, box=None, pad_edge=False, header_style="bold")
    for row in rows:
        table.add_row(*map(escape, row))
    return table
