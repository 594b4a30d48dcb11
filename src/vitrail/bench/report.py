"""report.html: one page that needs nothing else, with what was found, charts, tables, what ran."""

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from html import escape
from pathlib import Path
from string import Template
from typing import Any

import yaml

from vitrail.bench.bands import is_end
from vitrail.bench.charts import styles, svg
from vitrail.bench.measurement import Chart, Row, Value
from vitrail.bench.results import flat
from vitrail.bench.values import has_figures, heading, is_number, written, written_band
from vitrail.tracking.atomic import write_text

TEMPLATE = Path(__file__).with_name("report.html")


@dataclass(frozen=True)
class Table:
    """Rows that a person may sort.

    keys: the columns that say what a row is of; they come first, and one whose value is the same
    everywhere is said once, above. columns: the others. A row with a reason under `refused` and no
    figures shows the reason in their place. folded: whether it is shown only when asked for.
    """

    title: str
    rows: Sequence[Row]
    keys: Sequence[str]
    columns: Sequence[str]
    folded: bool = False


@dataclass(frozen=True)
class Page:
    """What a page shows, in this order.

    subtitle: when, and on what. command: as a person would type it. details: nested containers by
    title, such as the environment: shown as they are when asked for.
    """

    title: str
    subtitle: str
    command: str
    sentences: Sequence[str]
    charts: Sequence[Chart]
    tables: Sequence[Table]
    details: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)


def write(path: Path, page: Page) -> None:
    """Write the page, whole or not at all; raises OSError when it cannot be written."""
    parts = [
        _section("Findings", _list(page.sentences)) if page.sentences else "",
        _section("Charts", _charts(page.charts)) if page.charts else "",
        *(_table(table) for table in page.tables),
        _section("What ran", f"<p><code>{escape(page.command)}</code></p>" + _facts(page.details)),
    ]
    template = Template(TEMPLATE.read_text(encoding="utf-8"))
    text = template.substitute(
        title=escape(page.title),
        subtitle=escape(page.subtitle),
        body="\n".join(filter(None, parts)),
    )
    write_text(path, text)


def _section(title: str, content: str) -> str:
    return f"<section>\n<h2>{escape(title)}</h2>\n{content}\n</section>"


def _list(sentences: Iterable[str]) -> str:
    items = "".join(f"<li>{escape(sentence)}</li>\n" for sentence in sentences)
    return f'<ul class="findings">\n{items}</ul>'


def _charts(charts: Sequence[Chart]) -> str:
    looks = styles(charts)
    return (
        '<div class="charts">\n' + "\n".join(_figure(chart, looks) for chart in charts) + "</div>"
    )


def _figure(chart: Chart, looks: Mapping[str, Mapping[str, str]]) -> str:
    picture = svg(chart, looks).replace(
        "<svg", f'<svg role="img" aria-label="{escape(chart.title)}"', 1
    )
    note = f"<p>{escape(chart.note)}</p>" if chart.note else ""
    return f"<figure>\n{picture}\n<figcaption>{note}</figcaption>\n</figure>"


def _table(table: Table) -> str:
    if not table.rows:
        return ""
    same = {
        key: table.rows[0][key]
        for key in table.keys
        if len(table.rows) > 1 and len({row[key] for row in table.rows}) == 1
    }
    keys = [key for key in table.keys if key not in same]
    columns = [*keys, *(name for name in table.columns if name not in (*table.keys, "refused"))]
    columns = [name for name in columns if not is_end(name, columns)]
    numbers = {name for name in columns if is_number(row[name] for row in table.rows)}
    heads = "".join(
        f'<th scope="col" aria-sort="none"{_kind(name in numbers)}>'
        f'<button type="button">{escape(heading(name))}</button></th>'
        for name in columns
    )
    lines = "\n".join(f"<tr>{_row(row, keys, columns, numbers)}</tr>" for row in table.rows)
    everywhere = ", ".join(
        f"{heading(key)} {written(value)}" for key, value in same.items() if value not in ("", None)
    )
    count = f"{len(table.rows)} row{'s' * (len(table.rows) > 1)}"
    caption = f"{count}; all of {everywhere}" if everywhere else count
    content = (
        f'<div class="scroll" tabindex="0" role="region" aria-label="{escape(table.title)}">\n'
        f"<table>\n<caption>{escape(caption)}</caption>\n"
        f"<thead><tr>{heads}</tr></thead>\n<tbody>\n{lines}\n</tbody>\n</table>\n</div>"
    )
    if table.folded:
        return f"<details>\n<summary>{escape(table.title)}</summary>\n{content}\n</details>"
    return _section(table.title, content)


def _row(row: Row, keys: Sequence[str], columns: Sequence[str], numbers: Collection[str]) -> str:
    """The cells of a row; of one without figures its keys, and then the reason across the rest."""
    reason = row.get("refused")
    blank = reason and not has_figures({name: row[name] for name in columns}, keys)
    cells = [_cell(row, name, name in numbers) for name in (keys if blank else columns)]
    if blank:
        cells.append(f'<td class="why" colspan="{len(columns) - len(keys)}">{escape(reason)}</td>')
    elif reason:
        cells[-1] = cells[-1].replace("</td>", f'<small class="why">{escape(reason)}</small></td>')
    return "".join(cells)


def _cell(row: Row, name: str, number: bool) -> str:
    value: Value = row[name]
    sorts = "" if value is None else f' data-value="{escape(str(value))}"'
    band = written_band(row, name)
    small = f"<small>{escape(band)}</small>" if band else ""
    return f"<td{_kind(number)}{sorts}>{escape(written(value))}{small}</td>"


def _kind(number: bool) -> str:
    return ' class="number"' if number else ""


def _facts(details: Mapping[str, Mapping[str, Any]]) -> str:
    return "\n".join(
        f"<details>\n<summary>{escape(title)}</summary>\n<pre>{escape(_yaml(content))}</pre>\n"
        "</details>"
        for title, content in details.items()
    )


def _yaml(content: Mapping[str, Any]) -> str:
    return yaml.safe_dump(dict(content), sort_keys=False, allow_unicode=True)


def machine(environment: Mapping[str, Any]) -> str:
    """A machine and its libraries in a few words, of what `environment.describe` gave."""
    cpu, gpu = environment["cpu"], environment["gpu"]
    name = (
        f"{cpu['name']}, {cpu['threads']} of {cpu['cores']} cores"
        if gpu is None
        else " + ".join(card["name"] for card in gpu["cards"])
    )
    return f"{name}, torch {environment['packages']['torch']}, vitrail {environment['vitrail']}"


def differing(trees: Mapping[str, Mapping[str, Any]]) -> list[Row]:
    """One row for each dotted key whose leaves differ between the named trees: a column a tree."""
    leaves = {name: dict(flat(tree)) for name, tree in trees.items()}
    keys = dict.fromkeys(key for tree in leaves.values() for key in tree)
    return [
        {"key": key, **{name: _leaf(tree, key) for name, tree in leaves.items()}}
        for key in keys
        if len({str(tree.get(key)) for tree in leaves.values()}) > 1
    ]


def _leaf(tree: Mapping[str, Any], key: str) -> Value:
    value = tree.get(key)
    return value if value is None or isinstance(value, str | int | float) else str(value)
