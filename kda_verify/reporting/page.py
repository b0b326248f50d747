"""One page of HTML about one run: everything in it comes from the run's JSON and lies inside it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from importlib.resources import files
from importlib.util import find_spec
from typing import Any, NamedTuple

from . import figures
from .stored import GOOD, NEITHER, distinct, overall, pointer

Run = dict[str, Any]
Key = str | int

NEEDS = ("jinja2", "matplotlib")


class Cell(NamedTuple):
    """One value of a table.

    Attributes:
        text: as shown.
        at: JSON pointer to the value shown; "" for words that are none.
        order: what a click on the column sorts by.
        style: class of the element.
    """

    text: str
    at: str = ""
    order: str | float = ""
    style: str = ""


@dataclass(frozen=True)
class Table:
    """Rows of cells under a heading each.

    Attributes:
        columns: headings.
        rows: as many cells each.
        missing: what the run's JSON lacks to fill it; "" where it lacks nothing.
    """

    columns: Sequence[str]
    rows: Sequence[Sequence[Cell]]
    missing: str = ""


def refuse_without_packages(argument: str) -> None:
    """Refuse early what cannot be drawn.

    Raises:
        ValueError: a package of the extra `report` is not installed.
    """
    if gone := [name for name in NEEDS if find_spec(name) is None]:
        raise ValueError(
            f"`{argument}` must find {' and '.join(NEEDS)}, got no {' and no '.join(gone)}: "
            "pip install 'kda-verify[report]'"
        )


def render(run: Run, title: str) -> str:
    """Return the page of a run.

    Args:
        run: as `stored.load` returns it.
        title: names the run, for example by its file.
    """
    import jinja2

    environment = jinja2.Environment(
        autoescape=True, undefined=jinja2.StrictUndefined, trim_blocks=True, lstrip_blocks=True
    )
    template = environment.from_string(
        files(__package__).joinpath("page.html.j2").read_text(encoding="utf-8")
    )
    pictures = [_pictures(run, n) for n in range(len(run["subjects"]))]
    return template.render(
        title=title,
        verdict=overall(run),
        date=str(run.get("environment", {}).get("date", "")),
        device=str(run.get("environment", {}).get("device", "")),
        verdicts=verdicts(run),
        unjudged=unjudged(run),
        stages=stages(run) if run.get("stages") else None,
        failures=failures(run),
        outputs=outputs(run),
        classes=classes(run),
        pictures=[p for p in pictures if p["drawn"]],
        faults=faults(run),
        regions=[regions(run, n) for n in range(len(run["subjects"]))],
        surroundings=surroundings(run),
    )


def verdicts(run: Run) -> Table:
    """Tabulate the verdict on every kernel."""
    rows = []
    for n, subject in enumerate(run["subjects"]):
        at = ("subjects", n)
        judged = subject.get("worst") is not None
        rows.append([
            _value(run, *at, "kernel"),
            _word(run, *at, "verdict"),
            _ratio(run, *at, "worst", "ratio") if judged else Cell("-", order=-1),
            _value(run, *at, "distinct_cases"),
            _value(run, *at, "precision_class"),
            _value(run, *at, "worst", "where") if judged else Cell("-"),
            _value(run, *at, "seconds"),
        ])  # fmt: skip
    columns = ("kernel", "verdict", "worst ratio", "cases", "class", "at", "s")
    return Table(columns, rows)


def unjudged(run: Run) -> Table:
    """Tabulate what was not judged, and why."""
    rows = [
        [_value(run, "subjects", n, "kernel"), Cell(reason, order=reason),
         _value(run, "subjects", n, "not_judged", reason)]
        for n, subject in enumerate(run["subjects"]) for reason in subject.get("not_judged", ())
    ]  # fmt: skip
    return Table(("kernel", "not judged because", "cases"), rows)


def stages(run: Run) -> Table:
    """Tabulate the checks beside the drawn cases."""
    rows = [
        [_value(run, "stages", n, "name"), _word(run, "stages", n, "outcome"),
         _value(run, "stages", n, "detail"), _value(run, "stages", n, "seconds", show="{:.0f}")]
        for n in range(len(run["stages"]))
    ]  # fmt: skip
    return Table(("check", "result", "detail", "s"), rows)


def failures(run: Run) -> list[dict[str, Any]]:
    """List the failing cases with the way back to each."""
    found = []
    for n, subject in enumerate(run["subjects"]):
        for m, times in distinct(subject.get("failures", ())):
            failure = subject["failures"][m]
            at = ("subjects", n, "failures", m)
            shown = {name: _value(run, *at, name) for name in
                     ("outcome", "subject", "where", "detail", "case", "replay")}  # fmt: skip
            compared = failure.get("ratio") != 0.0
            ratio = _ratio(run, *at, "ratio") if compared else Cell("")
            found.append({**shown, "ratio": ratio, "times": times})
    return found


def outputs(run: Run) -> Table:
    """Tabulate the ratios of every output."""
    rows = [
        [_value(run, "subjects", n, "kernel"), _value(run, *at, "operand"),
         _value(run, *at, "cases"), _ratio(run, *at, "worst"), _ratio(run, *at, "median"),
         _value(run, *at, "exact"), _value(run, *at, "unbounded")]
        for n, subject in enumerate(run["subjects"])
        for m in range(len(subject.get("outputs", ())))
        for at in [("subjects", n, "outputs", m)]
    ]  # fmt: skip
    columns = ("kernel", "output", "cases", "worst ratio", "median", "no error", "not exact")
    return Table(columns, rows, _missing(run, "outputs"))


def classes(run: Run) -> Table:
    """Tabulate in how many cases each precision class was found."""
    rows = [
        [_value(run, "subjects", n, "kernel"), Cell(name, order=name),
         _value(run, "subjects", n, "precision_classes", name)]
        for n, subject in enumerate(run["subjects"])
        for name in subject.get("precision_classes", ())
    ]  # fmt: skip
    return Table(("kernel", "class", "cases"), rows, _missing(run, "precision_classes"))


def faults(run: Run) -> Table:
    """Tabulate the smallest faults that 95 % of the cases show, a column for every kind."""
    kinds = dict.fromkeys(
        entry["fault"] for s in run["subjects"] for entry in s.get("smallest_fault", ())
    )
    rows = []
    for n, subject in enumerate(run["subjects"]):
        found: dict[str, dict[str, int]] = {}
        for m, entry in enumerate(subject.get("smallest_fault", ())):
            found.setdefault(entry["operand"], {})[entry["fault"]] = m
        for by_kind in found.values():
            at = ("subjects", n, "smallest_fault")
            most = max(by_kind.values(), key=lambda m: subject["smallest_fault"][m]["cases"])
            sizes = [
                _fault(run, *at, by_kind[kind], "found_in_95_percent") if kind in by_kind
                else Cell("", order=-1)
                for kind in kinds
            ]  # fmt: skip
            told = [_value(run, *at, most, name) for name in ("operand", "cases")]
            rows.append([_value(run, "subjects", n, "kernel"), *told, *sizes])
    return Table(("kernel", "output", "cases", *kinds), rows, _missing(run, "smallest_fault"))


def _fault(run: Run, *keys: Key) -> Cell:
    return _number(run, keys, "{:.0e}", "> 1")


def regions(run: Run, n: int) -> dict[str, Any]:
    """Tabulate the regions a kernel's cases reached, and name those they did not."""
    subject = run["subjects"][n]
    rows = [
        [Cell(name, order=name), _value(run, "subjects", n, "regions", name)]
        for name in subject.get("regions", ())
    ]
    missed = [
        _value(run, "subjects", n, "regions_missed", m)
        for m in range(len(subject.get("regions_missed", ())))
    ]
    return {
        "kernel": subject["kernel"],
        "reached": Table(("region", "cases"), rows, _missing(run, "regions", n)),
        "missed": missed,
        "unknown": _missing(run, "regions_missed", n),
    }


def surroundings(run: Run) -> Table:
    """Tabulate where the run took place, and from which seed."""
    rows = [
        [Cell(name, order=name), _value(run, "environment", name)]
        for name in run.get("environment", ())
    ]
    if "seed" in run:
        rows.append([Cell("seed", order="seed"), _value(run, "seed", absent="drawn anew")])
    return Table(("what", "value"), rows, "" if rows else "`environment`")


def _pictures(run: Run, n: int) -> dict[str, Any]:
    """Draw a kernel's ratios, with the numbers of every figure in a table beside it."""
    given = run["subjects"][n].get("outputs", [])
    kinds: tuple[tuple[str, Callable[[Sequence[figures.Output]], Any], str, str], ...] = (
        ("How the worst ratios of the cases are spread", figures.histogram, "bins", "from"),
        ("Error against token position", figures.by_position, "by_position", "token"),
        ("Error of states by length", figures.by_longest, "by_longest_request", "tokens"),
    )
    drawn = []
    for kind, (title, draw, key, label) in enumerate(kinds):
        figure = draw(given)
        if figure is None:
            continue
        rows = []
        for m, output in enumerate(given):
            # The states' figure leaves out what the one by position shows.
            if key == "by_longest_request" and output.get("by_position"):
                continue
            entries = output.get(key, ())
            for place in entries if isinstance(entries, dict) else range(len(entries)):
                at = ("subjects", n, "outputs", m, key, place)
                shown, order = str(place), float(place)
                if key == "bins":
                    order = 10 ** (int(place) / output["bins_per_decade"])
                    shown = f"{order:.2g}"
                number = _value(run, *at) if key == "bins" else _ratio(run, *at)
                operand = _value(run, *at[:4], "operand")
                rows.append([operand, Cell(shown, order=order, style="key"), number])
        last = "cases" if key == "bins" else "worst ratio"
        drawn.append({
            "title": title,
            "svg": figures.svg(figure, f"figure-{n}-{kind}"),
            "numbers": Table(("output", label, last), rows),
        })  # fmt: skip
    return {"kernel": run["subjects"][n]["kernel"], "drawn": drawn}


def _missing(run: Run, key: str, n: int | None = None) -> str:
    """Name a key that the subjects, or one of them, lack."""
    asked = run["subjects"] if n is None else [run["subjects"][n]]
    return f"`{key}`" if any(key not in s for s in asked) else ""


def _look_up(run: Run, keys: Sequence[Key]) -> Any:
    value: Any = run
    for key in keys:
        try:
            value = value[key]
        except (KeyError, IndexError):
            return KeyError
    return value


def _value(run: Run, *keys: Key, show: str = "{}", absent: str = "-") -> Cell:
    """Show a value as it stands; what is not there, or null, as absent."""
    value = _look_up(run, keys)
    if value is KeyError or value is None:
        return Cell(absent, order=-1)
    number = isinstance(value, int | float) and not isinstance(value, bool)
    text = show.format(value) if number else str(value)
    return Cell(text, pointer(*keys), value if number else text, "number" if number else "")


def _number(run: Run, keys: Sequence[Key], show: str, unbounded: str) -> Cell:
    """Show a number to a few digits; null stands for infinity."""
    if _look_up(run, keys) is None:
        return Cell(unbounded, pointer(*keys), 1e308, "number")
    return _value(run, *keys, show=show)


def _ratio(run: Run, *keys: Key) -> Cell:
    """Show a ratio, marked where it is over the budget."""
    cell = _number(run, keys, "{:.3g}", "infinite")
    over = isinstance(cell.order, int | float) and cell.order > 1
    return cell._replace(style="number bad") if over else cell


def _word(run: Run, *keys: Key) -> Cell:
    """Show an outcome in the colour of what it means."""
    cell = _value(run, *keys)
    style = "good" if cell.text == GOOD else "none" if cell.text in NEITHER else "bad"
    return cell._replace(style=style)
