"""The pieces of a self-contained HTML page: document, tables, figures, definitions.

A page loads nothing: plots are inlined as SVG images, the style is in the head.
"""

from __future__ import annotations

import base64
from collections.abc import Iterable, Iterator, Mapping
from html import escape
from typing import Final

from scheduling_sim.report.plots.figure import Plot
from scheduling_sim.report.plots.style import svg_bytes
from scheduling_sim.report.tables import Table

_STYLE: Final = """
:root { color-scheme: light; }
body { font: 16px/1.5 system-ui, "Segoe UI", Helvetica, Arial, sans-serif; color: #1c1c1c;
  background: #fff; max-width: 68rem; margin: 2rem auto; padding: 0 1.25rem; }
h1 { font-size: 1.6rem; line-height: 1.25; margin: 0 0 .5rem; }
h2 { font-size: 1.2rem; margin: 2.2rem 0 .6rem; }
p.lead { color: #444; margin: 0 0 1rem; }
.scroll { overflow-x: auto; }
table { border-collapse: collapse; font-size: .86rem; font-variant-numeric: tabular-nums; }
caption { text-align: left; font-weight: 600; padding: 0 0 .35rem; }
th, td { padding: .28rem .7rem; text-align: right; white-space: nowrap; }
th { border-bottom: 2px solid #1c1c1c; font-weight: 600; vertical-align: bottom; }
td { border-bottom: 1px solid #e2e2e2; }
.w { text-align: left; }
td.d { white-space: normal; text-align: left; max-width: 44rem; }
.note { color: #555; font-size: .84rem; margin: .35rem 0 0; }
.warn { border-left: 4px solid #D55E00; padding: .4rem .8rem; background: #fdf3ec; }
figure { margin: 1.6rem 0; break-inside: avoid; }
figure img { max-width: 100%; height: auto; display: block; }
figcaption { color: #444; font-size: .88rem; margin-top: .35rem; }
pre { background: #f5f5f5; padding: .7rem .9rem; overflow-x: auto; font-size: .84rem; }
@media print { body { max-width: none; margin: 0; } h2 { break-after: avoid; } }
"""


def html_document(title: str, parts: Iterable[str]) -> str:
    """Return the page as text; `parts` are pieces of HTML, what is text in them escaped."""
    return "\n".join(
        [
            '<!DOCTYPE html>\n<html lang="en">\n<head>\n<meta charset="utf-8">',
            '<meta name="viewport" content="width=device-width, initial-scale=1">',
            f"<title>{escape(title)}</title>\n<style>{_STYLE}</style>\n</head>\n<body>",
            *parts,
            "</body>\n</html>\n",
        ]
    )


def html_tables(shown: Iterable[Table]) -> Iterator[str]:
    """Yield tables with their notes."""
    for table in shown:
        yield '<div class="scroll"><table>'
        yield f"<caption>{escape(table.title)}</caption>"
        yield f"<thead>{_row('th', table.columns, table.text_columns)}</thead><tbody>"
        for cells in table.rows:
            yield _row("td", cells, table.text_columns)
        yield "</tbody></table></div>"
        yield f'<p class="note">{escape(table.note)}</p>' if table.note else "<p></p>"


def _row(tag: str, cells: Iterable[str], text_columns: int) -> str:
    written = (
        f'<{tag} class="w">{escape(cell)}</{tag}>'
        if place < text_columns
        else f"<{tag}>{escape(cell)}</{tag}>"
        for place, cell in enumerate(cells)
    )
    return f"<tr>{''.join(written)}</tr>"


def html_figure(number: int, plot: Plot) -> str:
    """Return a figure with its caption."""
    # As an image, an SVG keeps its names to itself; inline, equal names of two plots would meet.
    data = base64.b64encode(svg_bytes(plot.figure)).decode("ascii")
    caption = escape(plot.caption)
    return (
        f'<figure><img alt="{caption}" src="data:image/svg+xml;base64,{data}">'
        f"<figcaption>Figure {number}. {caption}</figcaption></figure>"
    )


def html_definitions(name: str, meaning: str, rows: Mapping[str, str]) -> Iterator[str]:
    """Yield a table of words and what they mean."""
    yield '<div class="scroll"><table>'
    yield f'<thead><tr><th class="w">{name}</th><th class="w">{meaning}</th></tr></thead><tbody>'
    for key, value in rows.items():
        yield f'<tr><td class="w">{escape(key)}</td><td class="d">{escape(value)}</td></tr>'
    yield "</tbody></table></div>"
