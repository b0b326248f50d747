"""The page of a run: it stands alone, is well formed, and says what the run's JSON says."""

from __future__ import annotations

import re
from collections.abc import Callable
from functools import cache
from html.parser import HTMLParser
from typing import Any

import pytest
from hypothesis import given, settings

from kda_verify.cases.case import Case
from kda_verify.judging.verdict import Outcome, Verdict
from kda_verify.reporting import figures, page, stored
from property_tests.any_run import read, run_of, runs

VOID = {"meta", "link", "br", "wbr"}
EXTERNAL = re.compile(
    r"https?:|url\((?!#)|@import|\bsrc(set)?\s*=|<(iframe|object|embed|base)\b|//\w"
)
FEW = settings(max_examples=5)


class Element:
    """One element, with the text of all that it holds."""

    def __init__(self, tag: str, attributes: dict[str, str | None]) -> None:
        self.tag, self.attributes, self.text = tag, attributes, ""

    def of(self, name: str) -> str:
        return self.attributes.get(name) or ""


class Page(HTMLParser):
    """Read a page and note what is wrong with its structure."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.elements: list[Element] = []
        self.faults: list[str] = []
        self.open: list[Element] = []
        self.rows: list[int] = []
        self.feed(text)
        self.close()
        self.faults += [f"<{e.tag}> is never closed" for e in self.open]

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        if len(dict(attrs)) < len(attrs):
            self.faults.append(f"<{tag}> repeats an attribute")
        element = Element(tag, dict(attrs))
        self.elements.append(element)
        if tag == "table":
            self.rows = []
        elif tag == "tr":
            self.rows.append(0)
        elif tag in ("td", "th"):
            self.rows[-1] += 1
        if tag not in VOID:
            self.open.append(element)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append(Element(tag, dict(attrs)))

    def handle_endtag(self, tag: str) -> None:
        if not self.open or self.open.pop().tag != tag:
            self.faults.append(f"</{tag}> closes another element")
        if tag == "table" and len(set(self.rows)) > 1:
            self.faults.append(f"a table has rows of {sorted(set(self.rows))} cells")

    def handle_data(self, data: str) -> None:
        for element in self.open:
            element.text += data

    def all(self, tag: str) -> list[Element]:
        return [e for e in self.elements if e.tag == tag]


def external(text: str) -> list[str]:
    """List what a page would fetch."""
    found = [match.group() for match in EXTERNAL.finditer(_without_data(text))]
    links = [e.of("href") for e in Page(text).elements if e.of("href")]
    return found + [link for link in links if not link.startswith(("#", "data:"))]


def _without_data(text: str) -> str:
    """Leave out the texts of the run: an address among them is shown, not fetched."""
    told = re.compile(r' (data-order|data-at|aria-label)="[^"]*"')
    parts = re.findall(r"<style>.*?</style>|<script>.*?</script>|<[^>]*>", text, re.DOTALL)
    return told.sub("", "".join(parts))


def malformed(text: str) -> list[str]:
    """List what is wrong with the structure of a page."""
    read = Page(text)
    found = list(read.faults)
    names = [e.of("id") for e in read.elements if e.of("id")]
    found += [f"id {name} occurs twice" for name in set(names) if names.count(name) > 1]
    used = re.findall(r'(?:url\(|href=")#([\w-]+)', text)
    found += [f"#{name} leads nowhere" for name in used if name not in names]
    for tag, times in {"html": 1, "title": 1, "h1": 1, "main": 1, "script": 1}.items():
        if len(read.all(tag)) != times:
            found.append(f"{len(read.all(tag))} <{tag}>, not {times}")
    if not any(e.of("name") == "viewport" for e in read.all("meta")):
        found.append("no viewport: a phone would show it small")
    return found


def untrue(text: str, run: dict[str, Any]) -> list[str]:
    """List the values on a page that are not those of the run."""
    found = []
    for element in Page(text).elements:
        at, shown = element.of("data-at"), element.text
        if not at:
            number = element.tag == "td" and re.fullmatch(r"[<>]? ?-?[\d.]+(e[+-]?\d+)?", shown)
            if number and element.of("class") != "key":
                found.append(f"{shown} stands in a cell that says not where it is from")
            continue
        value: Any = run
        for key in at.split("/")[1:]:
            key = key.replace("~1", "/").replace("~0", "~")
            value = value[int(key)] if isinstance(value, list) else value[key]
        if not _same(shown, value, at):
            found.append(f"{at} is {value!r}, the page says {shown!r}")
    return found


def _same(shown: str, value: Any, at: str) -> bool:
    if value is None:
        return shown in ("infinite", "> 1")
    if isinstance(value, str):
        # A parser of HTML reads line ends and zero bytes as it must.
        return shown == re.sub("\r\n?", "\n", value).replace("\0", "\ufffd") or shown == value
    if isinstance(value, int):
        return shown == str(value)
    if at.endswith("/seconds"):
        return float(shown) == pytest.approx(value, abs=0.5)
    # One digit of a smallest fault, three of a ratio.
    return float(shown) == pytest.approx(value, rel=1e-9 if "smallest_fault" in at else 5.1e-3)


def unshown(text: str, run: dict[str, Any]) -> list[str]:
    """List what a reader needs and the page lacks."""
    shown = {e.of("data-at") for e in Page(text).elements}
    needed = []
    for n, subject in enumerate(run["subjects"]):
        at = f"/subjects/{n}"
        needed += [f"{at}/{key}" for key in ("kernel", "verdict", "distinct_cases")]
        for m, _ in stored.distinct(subject["failures"]):
            needed += [f"{at}/failures/{m}/{key}" for key in ("outcome", "replay", "case")]
        for m, output in enumerate(subject.get("outputs", ())):
            needed += [f"{at}/outputs/{m}/worst", f"{at}/outputs/{m}/operand"]
            needed += [f"{at}/outputs/{m}/bins/{b}" for b in output["bins"]]
        needed += [
            f"{at}/smallest_fault/{m}/found_in_95_percent"
            for m in range(len(subject.get("smallest_fault", ())))
        ]
        needed += [at + stored.pointer("regions", r) for r in subject.get("regions", ())]
    needed += [stored.pointer("environment", k) for k, v in run["environment"].items() if v]
    return [pointer for pointer in needed if pointer not in shown]


@FEW
@given(runs())
def test_a_page_stands_alone_and_is_true_to_its_run(run: dict[str, Any]) -> None:
    text = page.render(run, "run.json")
    assert external(text) == []
    assert malformed(text) == []
    assert untrue(text, run) == []
    assert unshown(text, run) == []


def example() -> dict[str, Any]:
    """Return a run with one of everything."""
    case = Case(lengths=(2,), capacity=2, dtype="bfloat16")
    ratios = {"out": 0.25, "final_state": 0.5}
    faults = {"out float32": {"gain": 1e-5, "row": float("inf")}}
    good = Verdict(
        Outcome.PASS, "kda_mtp_verify", case, "out[0, 1]", 0.5, ratios, {"out": (0.125, 0.25)},
        precision_class="fp32", sensitivity=faults,
    )  # fmt: skip
    bad = Verdict(
        Outcome.INCORRECT, "mine", case, "out[0, 1]", 4096.0, {"out": 4096.0},
        {"out": (2.0, 4096.0)}, "expected 1, got <b>2</b>", "none",
    )  # fmt: skip
    idle = Verdict(Outcome.NOT_RUN, "theirs", case, detail="not installed")
    return read({**run_of([good, bad, bad, idle]), "seed": 7})


@cache
def example_page() -> str:
    return page.render(example(), "run.json")


PLANTS: dict[str, tuple[Callable[..., list[str]], str, str, str]] = {
    "a script": (external, "<body>", '<body><script src="a.js"></script>', "src="),
    "an address": (external, "<head>", '<head><link href="https://a.b/c">', "https"),
    "a font": (external, "<style>", "<style>@import 'a.css';", "@import"),
    "an image of a style": (external, "<style>", "<style>p{background:url(a.png)}", "url("),
    "a relative link": (external, '<a href="#failures"', '<a href="more.html"', "more.html"),
    "a tag left open": (malformed, "</thead>", "", "closes another"),
    "an id twice": (malformed, 'id="failures"', 'id="outputs"', "twice"),
    "a link to nothing": (malformed, 'href="#regions"', 'href="#region"', "nowhere"),
    "a cell too few": (malformed, "<tr><td", "<tr></tr><tr><td", "cells"),
    "a text that is markup": (malformed, ">expected 1, got &lt;b&gt;", "><b>", "closes another"),
    "no viewport": (malformed, 'name="viewport"', 'name="view"', "viewport"),
    "another number": (untrue, ">0.25<", ">0.26<", "is 0.25, the page says '0.26'"),
    "another count": (untrue, '/1/distinct_cases">1<', '/1/distinct_cases">2<', "is 1"),
    "a number from nowhere": (untrue, ' data-at="/subjects/0/outputs/0/worst"', "", "not where"),
    "a word that is not the run's": (untrue, ">not-run<", ">pass<", "is 'not-run'"),
    "infinity made finite": (untrue, ">&gt; 1<", ">1e-03<", "is None"),
    "a replay left out": (unshown, 'data-at="/subjects/1/failures/0/replay"', "", "replay"),
    "a region left out": (unshown, "/regions/verify: bf16", "/", "bf16"),
}


@pytest.mark.parametrize("plant", PLANTS)
def test_a_planted_fault_is_seen(plant: str) -> None:
    check, anchor, replacement, says = PLANTS[plant]
    run, text = example(), example_page()
    asked = (text, run) if check in (untrue, unshown) else (text,)
    assert check(*asked) == []
    assert anchor in text, "the plant must fit"
    spoiled = text.replace(anchor, replacement, 1)
    found = check(spoiled, *asked[1:])
    assert any(says in line for line in found), found


def drawn(figure: Any) -> dict[str, list[tuple[float, float]]]:
    """Return the points and bars of a figure, by output."""
    (axes,) = figure.axes
    points = {
        str(line.get_label()): [(float(x), float(y)) for x, y in line.get_xydata()]
        for line in axes.lines
        if not str(line.get_label()).startswith("_")
    }
    bars = {
        str(bars.get_label()): [(bar.get_x(), bar.get_height()) for bar in bars]
        for bars in axes.containers
    }
    return {**points, **bars}


def test_figures_draw_the_numbers_of_the_run() -> None:
    bad = example()["subjects"][1]["outputs"]
    assert drawn(figures.by_position(bad)) == {"out": [(0, 2.0), (1, 4096.0)]}
    (bins,) = drawn(figures.histogram(bad)).values()
    assert bins == [(pytest.approx(10**3.5), 2)]
    good = example()["subjects"][0]["outputs"]
    assert drawn(figures.by_longest(good)) == {"final_state": [(2, 0.5)]}
    spoiled = [{**good[0], "by_position": [0.125, 0.3]}]
    assert drawn(figures.by_position(spoiled)) != drawn(figures.by_position(good))
    assert figures.histogram([{**good[0], "bins": {}}]) is None


def test_what_has_no_finite_ratio_lies_above_the_rest() -> None:
    output = {"operand": "out", "by_position": [0.5, None, 20.0]}
    (points,) = drawn(figures.by_position([output])).values()
    assert points[1][1] > points[2][1] == 20.0


OLD = ("outputs", "precision_classes", "regions_missed", "regions", "smallest_fault")


@pytest.mark.parametrize("key", OLD)
def test_an_older_run_says_what_is_missing(key: str) -> None:
    run = example()
    assert "Missing:" not in example_page()
    for subject in run["subjects"]:
        subject.pop(key)
    text = page.render(run, "run.json")
    assert malformed(text) == []
    assert f"Missing: this run's JSON holds no `{key}`" in text


def test_the_word_for_a_run() -> None:
    run = example()
    assert stored.overall(run) == "fail"
    run["subjects"] = run["subjects"][::2]
    assert stored.overall(run) == "pass"
    assert stored.overall({**run, "stages": [{"name": "x", "outcome": "fail"}]}) == "fail"
    assert stored.overall({"subjects": run["subjects"][1:]}) == "not judged"
