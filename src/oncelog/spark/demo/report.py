"""What a run of the demo proved: a table on the terminal, a picture and a page."""

from __future__ import annotations

from html import escape
from pathlib import Path

from rich.console import Console
from rich.table import Table

from oncelog.spark.demo.pipeline import GUARANTEES
from oncelog.spark.demo.run import DemoResult
from oncelog.spark.demo.timeline import draw

HEADINGS = ("guarantee", "orders", "once", "doubled", "lost", "dead letters")


def rows(result: DemoResult) -> list[list[str]]:
    table = []
    for guarantee in GUARANTEES:
        orders, dead = result.orders[guarantee], result.dead_letters[guarantee]
        numbers = (orders.expected, orders.once, orders.doubled, orders.lost)
        letters = f"{dead.expected - dead.lost + dead.doubled:,} of {dead.expected:,}"
        table.append([guarantee, *(f"{number:,}" for number in numbers), letters])
    return table


def statements(result: DemoResult) -> list[tuple[bool, str]]:
    """What was to be proven of the exactly-once pipeline, and whether it holds."""
    orders, found = result.orders["exactly-once"], result.audit
    ends = f"{found.committed} committed, {found.aborted} aborted, {found.torn} torn, {found.open} left open"
    hidden = f"{found.hidden_records:,} records of aborted transactions are in the logs, and no reader sees them"
    return [
        (orders.exact, f"every one of {orders.expected:,} orders is in the output once, with its customer's region"),
        (result.dead_letters["exactly-once"].exact, "every broken order is in the dead letters once, byte for byte"),
        (not result.wrong_windows, f"revenue of all {result.windows} windows and regions is right to the cent"),
        (result.committed, "the group's committed offsets are the end of the input"),
        (not found.torn and not found.open, f"every transaction is whole: {ends}"),
        (found.visible_records == found.committed_records, f"nothing aborted is visible: {hidden}"),
    ]


def notes(result: DemoResult) -> dict[str, str]:
    """The result of each query in a few words, for the picture."""
    found = {guarantee: deviations(result, guarantee) for guarantee in GUARANTEES}
    found["revenue"] = f"{result.wrong_windows:,} wrong" if result.wrong_windows else "right to the cent"
    return found


def deviations(result: DemoResult, guarantee: str) -> str:
    orders, dead = result.orders[guarantee], result.dead_letters[guarantee]
    numbers = {
        "doubled": orders.doubled + dead.doubled,
        "lost": orders.lost + dead.lost,
        "foreign": orders.foreign + dead.foreign,
    }
    return ", ".join(f"{number:,} {what}" for what, number in numbers.items() if number) or "each one once"


def print_report(result: DemoResult, console: Console) -> None:
    kills = ", ".join(result.kills) or "nothing"
    table = Table(title=f"{result.records:,} orders, killed with -9: {kills} ({result.seconds:.0f} s)")
    for i, heading in enumerate(HEADINGS):
        table.add_column(heading, justify="left" if i == 0 else "right", no_wrap=True)
    for row in rows(result):
        table.add_row(*row, style="bold" if row[0] == "exactly-once" else "")
    console.print(table)
    for holds, text in statements(result):
        console.print(f"[green]proven[/green]  {text}" if holds else f"[red]FAILED[/red]  {text}")
    for guarantee in GUARANTEES[1:]:
        console.print(f"[yellow]compare[/yellow] {guarantee}: {deviations(result, guarantee)}, dead letters included")


def write_report(result: DemoResult, folder: Path) -> tuple[Path, Path]:
    """The picture and the page around it."""
    folder.mkdir(parents=True, exist_ok=True)
    picture, page = folder / "timeline.svg", folder / "index.html"
    svg = draw(result.events, notes(result))
    picture.write_text(svg)
    page.write_text(_page(result, svg))
    return picture, page


def _page(result: DemoResult, svg: str) -> str:
    head = "".join(f"<th>{escape(heading)}</th>" for heading in HEADINGS)
    body = "".join("<tr>" + "".join(f"<td>{escape(cell)}</td>" for cell in row) + "</tr>" for row in rows(result))
    items = "".join(
        f'<li class="{"yes" if holds else "no"}">{"proven" if holds else "FAILED"}: {escape(text)}</li>'
        for holds, text in statements(result)
    )
    kills = escape(", ".join(result.kills) or "nothing")
    return f"""<!doctype html>
<html lang="en"><head><meta charset="utf-8"><title>Oncelog demo</title><style>
body {{ font: 16px/1.5 system-ui, sans-serif; margin: 2rem auto; max-width: 70rem; padding: 0 1rem; color: #222 }}
table {{ border-collapse: collapse; margin: 1rem 0 }} th, td {{ padding: .3rem .8rem; text-align: right }}
th:first-child, td:first-child {{ text-align: left }} tbody tr:first-child {{ font-weight: 600 }}
th {{ border-bottom: 2px solid #ccc }} td {{ border-bottom: 1px solid #eee }} svg {{ max-width: 100%; height: auto }}
li.yes {{ color: #23704a }} li.no {{ color: #c9483f; font-weight: 600 }}
</style></head><body>
<h1>{result.records:,} orders, three guarantees, one set of kills</h1>
<p>The same pipeline wrote the same input three times, side by side in one Spark application: parse, enrich from a
table, route broken orders to dead letters. Killed with -9 while batches were being written, and started again: {kills}.
The run took {result.seconds:.0f} seconds.</p>
{svg}
<table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>
<p>Of the exactly-once pipeline:</p><ul>{items}</ul>
<p>At-least-once, which is what Spark's own Kafka sink offers, writes again what a run wrote and could not note as done.
At-most-once notes first, and never writes what a run did not get to. Exactly-once commits both in one transaction.</p>
</body></html>
"""
