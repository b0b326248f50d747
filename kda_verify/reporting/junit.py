"""A run as JUnit XML, which continuous integration shows: a suite per kernel, a case per check."""

from __future__ import annotations

import re
from typing import Any
from xml.etree.ElementTree import Element, SubElement, indent, tostring

from ..judging.verdict import FAILURES
from .stored import distinct

_FORBIDDEN = re.compile(r"[^\t\n\r\x20-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")
"""What XML 1.0 cannot hold, not even escaped; a kernel's message may."""


def render(run: dict[str, Any]) -> str:
    """Return the XML of a run.

    A kernel's test cases are the outcomes that would be failures, by name: the same ones in every
    run, so that a history of them can be kept. One failed where a case ended with that outcome;
    its text holds every such case and the line that replays it. All are skipped where nothing was
    judged. The checks beside the drawn cases are a suite of their own.

    Args:
        run: as `stored.load` returns it.
    """
    root = Element("testsuites", name="kda-verify")
    for subject in run["subjects"]:
        _kernel(root, subject)
    if run.get("stages"):
        _stages(root, run["stages"])
    for suite in root:
        _count(suite)
    for name in ("tests", "failures", "skipped", "errors"):
        root.set(name, str(sum(int(suite.get(name, 0)) for suite in root)))
    indent(root)
    return '<?xml version="1.0" encoding="UTF-8"?>\n' + tostring(root, encoding="unicode") + "\n"


def _kernel(root: Element, subject: dict[str, Any]) -> None:
    kernel = subject["kernel"]
    suite = SubElement(root, "testsuite", name=_clean(kernel))
    suite.set("time", f"{subject.get('seconds', 0):.1f}")
    properties = SubElement(suite, "properties")
    for name in ("distinct_cases", "precision_class"):
        if name in subject:
            SubElement(properties, "property", name=name, value=_clean(str(subject[name])))
    for name, count in subject.get("outcomes", {}).items():
        SubElement(properties, "property", name=f"outcome {_clean(name)}", value=str(count))
    failures = subject.get("failures", [])
    found = [failures[index] for index, _ in distinct(failures)]
    judged = subject.get("worst") is not None or found or subject["verdict"] == "pass"
    # An outcome that this version does not know is shown rather than lost.
    checks = dict.fromkeys([*map(str, FAILURES), *(f.get("outcome", "") for f in found)])
    for check in checks:
        case = SubElement(suite, "testcase", classname=_clean(kernel), name=_clean(check))
        mine = [f for f in found if f.get("outcome", "") == check]
        if mine:
            _fail(case, check, [_told(f) for f in mine])
        elif not judged:
            reasons = "; ".join(subject.get("not_judged", {})) or subject["verdict"]
            SubElement(case, "skipped", message=_clean(reasons))


def _stages(root: Element, stages: list[dict[str, Any]]) -> None:
    suite = SubElement(root, "testsuite", name="checks")
    suite.set("time", f"{sum(s.get('seconds', 0) for s in stages):.1f}")
    for stage in stages:
        case = SubElement(suite, "testcase", classname="checks", name=_clean(stage["name"]))
        case.set("time", f"{stage.get('seconds', 0):.1f}")
        detail = stage.get("detail", "")
        if stage["outcome"] == "fail":
            _fail(case, "fail", [detail])
        elif stage["outcome"] != "pass":
            SubElement(case, "skipped", message=_clean(detail))


def _fail(case: Element, kind: str, told: list[str]) -> None:
    more = f" and {len(told) - 1} more" if len(told) > 1 else ""
    first = told[0].splitlines()[0] if told[0] else kind
    failure = SubElement(case, "failure", type=_clean(kind), message=_clean(first + more))
    failure.text = _clean("\n\n".join(told))


def _told(failure: dict[str, Any]) -> str:
    """Tell a failure as the terminal does."""
    text = f"{failure.get('outcome', '')}"
    if failure.get("where"):
        text += f" at {failure['where']}"
    ratio = failure.get("ratio", 0.0)
    if ratio != 0.0:
        text += f", {'infinitely many' if ratio is None else f'{ratio:.3g}'} times the budget"
    if failure.get("detail"):
        text += f"\n{failure['detail']}"
    return f"{text}\nreplay: {failure.get('replay', 'not stored')}"


def _count(suite: Element) -> None:
    cases = suite.findall("testcase")
    suite.set("tests", str(len(cases)))
    for name, tag in (("failures", "failure"), ("skipped", "skipped")):
        suite.set(name, str(sum(case.find(tag) is not None for case in cases)))
    suite.set("errors", "0")


def _clean(text: str) -> str:
    return _FORBIDDEN.sub("\ufffd", text)
