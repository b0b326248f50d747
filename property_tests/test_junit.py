"""A run as JUnit XML: what it counts, and that no failure or replay line is lost."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any
from xml.etree.ElementTree import Element, fromstring

import pytest
from hypothesis import given

from kda_verify.judging.verdict import FAILURES
from kda_verify.reporting import junit
from property_tests.any_run import runs
from property_tests.test_page import example


def miscounted(root: Element) -> list[str]:
    """List the counts that are not those of the elements."""
    found = []
    for holder in (root, *root.findall("testsuite")):
        cases = holder.findall(".//testcase")
        told = {
            "tests": len(cases),
            "failures": sum(c.find("failure") is not None for c in cases),
            "skipped": sum(c.find("skipped") is not None for c in cases),
            "errors": 0,
        }
        found += [
            f"{holder.get('name')}: {name} is {holder.get(name)}, not {count}"
            for name, count in told.items()
            if holder.get(name) != str(count)
        ]
    return found


def lost(root: Element, run: dict[str, Any]) -> list[str]:
    """List what the run holds and the XML does not."""
    found = []
    suites = {suite.get("name"): suite for suite in root.findall("testsuite")}
    for subject in run["subjects"]:
        suite = suites.get(subject["kernel"])
        if suite is None:
            found.append(f"no suite for {subject['kernel']}")
            continue
        cases = {case.get("name"): case for case in suite.findall("testcase")}
        found += [f"no case {outcome}" for outcome in map(str, FAILURES) if outcome not in cases]
        failed = {f["outcome"] for f in subject["failures"]}
        for name, case in cases.items():
            if (case.find("failure") is not None) != (name in failed):
                found.append(f"{subject['kernel']}: {name} fails only in one of the two")
        for failure in subject["failures"]:
            text = cases[failure["outcome"]].findtext("failure", "")
            found += [f"lost: {failure[k]}" for k in ("replay", "where") if failure[k] not in text]
    for stage in run.get("stages", ()):
        (case,) = (c for c in suites["checks"] if c.get("name") == stage["name"])
        got = "fail" if case.find("failure") is not None else "not-run"
        if (got if len(case) else "pass") != stage["outcome"]:
            found.append(f"check {stage['name']} must {stage['outcome']}")
    return found


@given(runs())
def test_nothing_is_lost_and_all_is_counted(run: dict[str, Any]) -> None:
    root = fromstring(junit.render(run).encode())
    assert root.tag == "testsuites"
    assert miscounted(root) == []
    assert lost(root, run) == []


def test_a_kernel_that_was_not_judged_is_skipped_with_the_reason() -> None:
    root = fromstring(junit.render(example()))
    skipped = root.findall("testsuite[@name='theirs']/testcase/skipped")
    assert {s.get("message") for s in skipped} == {"not installed"}
    assert len(skipped) == len(FAILURES)
    assert not root.findall("testsuite[@name='kda_mtp_verify']/testcase/skipped")


def test_a_failure_found_twice_is_told_once() -> None:
    run = example()
    assert len(run["subjects"][1]["failures"]) == 2
    text = junit.render(run)
    assert text.count("replay: kda-verify replay --kernel mine") == 1


PLANTS: dict[str, tuple[Callable[..., list[str]], str, str]] = {
    "a count": (miscounted, ' failures="1"', ' failures="0"'),
    "a replay line": (lost, "replay --kernel mine", "replay --kernel yours"),
    "a failure": (lost, r"<failure.*?</failure>", ""),
    "a check": (lost, 'name="wrong-dtype"', 'name="dtype"'),
    "a kernel": (lost, 'testsuite name="mine"', 'testsuite name="yours"'),
}


@pytest.mark.parametrize("plant", PLANTS)
def test_a_planted_loss_is_seen(plant: str) -> None:
    check, anchor, replacement = PLANTS[plant]
    run = example()
    text = junit.render(run)
    asked = (run,) if check is lost else ()
    assert check(fromstring(text), *asked) == []
    spoiled, times = re.subn(anchor, replacement, text, count=1, flags=re.DOTALL)
    assert times == 1, "the plant must fit"
    assert check(fromstring(spoiled), *asked)
