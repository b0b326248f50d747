"""The record as text: one table, and below it what the figures rest on."""

from __future__ import annotations

from rich.table import Table
from rich.text import Text

from .record import NOT_TIMED, Entry, Record, Result


def line(result: Result) -> Text:
    """Render a row as one line, printed as soon as it is measured."""
    ours, peer = result.ours, result.best()
    text = Text(f"{result.row.name:<24} ")
    if ours.timing is None:
        text.append(f"{ours.status}: {ours.reason}", "red")
        return text
    text.append(f"{ours.timing.median:9.1f} us, limit {result.limit:.1f} us")
    text.append(f" ({result.fraction:.0%})")
    if peer is not None and result.ratio is not None and peer.timing is not None:
        text.append(f"; best peer {peer.timing.median:.1f} us ({result.ratio:.2f}x ours)")
    return text


def table(record: Record) -> Table:
    """Render every row: times in microseconds, medians with quartiles."""
    run = record.run
    title = (
        f"{run['device']}, torch {run['torch']}, triton {run['triton']}, commit {run['commit']}, "
        f"{run['date']}, run {run['id'][:8]}"
    )
    rendered = Table(title=title, title_justify="left")
    for name, justify in (
        ("row", "left"), ("verdict", "left"), ("ours us", "right"), ("quartiles", "right"),
        ("limit us", "right"), ("of limit", "right"), ("best peer us", "right"),
        ("peer/ours", "right"), ("which peer", "left"), ("our kernels", "left"),
    ):  # fmt: skip
        rendered.add_column(name, justify=justify, overflow="fold")  # type: ignore[arg-type]
    for result in record.results:
        rendered.add_row(*_cells(result))
    return rendered


def _cells(result: Result) -> list[str | Text]:
    ours, peer = result.ours, result.best()
    verdict = ours.verdict
    if verdict is None:
        judged = Text("not judged", "yellow")
    elif verdict.passed:
        judged = Text(f"pass {verdict.ratio:.3f}", "green")
    else:
        judged = Text(verdict.outcome, "red")
    limit = f"{result.limit:.1f}"
    if ours.timing is None:
        status = Text(ours.status, "red")
        return [result.row.name, judged, status, "", limit, "", "", "", "", _kernels(ours)]
    timing = ours.timing
    cells: list[str | Text] = [
        result.row.name,
        judged,
        f"{timing.median:.1f}",
        f"{timing.low:.1f}-{timing.high:.1f}",
        limit,
        f"{result.fraction:.0%}",
    ]
    if peer is None or peer.timing is None:
        return [*cells, "", "", _absent(result), _kernels(ours)]
    assert peer.verdict is not None
    which = f"{peer.contender}; pass {peer.verdict.ratio:.3f} on {peer.verdict.judged}"
    return [*cells, f"{peer.timing.median:.1f}", f"{result.ratio:.2f}", which, _kernels(ours)]


def _absent(result: Result) -> str:
    """Say why no peer is compared: the reason of each that could have been."""
    peers = [e for e in result.entries if e.peer != "ours" and not e.partial]
    reasons = [f"{e.contender}: {e.status}, {e.reason}" for e in peers if e.verdict is not None]
    return "; ".join(reasons) or "none"


def _kernels(entry: Entry) -> str:
    """Names of the kernels that ran, with warps where they are known."""
    launches = entry.verdict.launches if entry.verdict is not None else ()
    names = []
    for launch in launches:
        warps = launch.get("constants", {}).get("num_warps")
        name = launch["kernel"].removesuffix("_kernel")
        names.append(f"{name} ({warps} warps)" if warps else name)
    return ", ".join(names)


def footer(record: Record) -> list[str]:
    """Say what the figures rest on, and what is missing."""
    lines = []
    if record.limits:
        rate = record.limits["bandwidth_bytes_per_second"] / 1e12
        small = record.limits["smallest_kernel"]["median"]
        text = f"limit: bytes that must move at {rate:.2f} TB/s read and written in place"
        after = record.limits.get("after")
        if after:
            text += f" ({after['bandwidth_bytes_per_second'] / 1e12:.2f} at the end)"
        lines.append(f"{text}; smallest kernel in a graph {small:.2f} us")
    judged = {e.verdict.judged for r in record.results if (e := r.ours).verdict is not None}
    if any(not _is_whole(text) for text in judged):
        lines.append("judged: every request, but for rows of many layers, where a few of each")
    for result in record.results:
        partial = result.best(partial=True)
        if partial is not None and partial.timing is not None:
            lines.append(
                f"{result.row.name}: {partial.contender}, {partial.note}: "
                f"{partial.timing.median:.1f} us (less work, not compared)"
            )
        lines += [
            f"{result.row.name}: {e.contender} {e.status}: {e.reason}"
            for e in result.entries
            if e.status == NOT_TIMED
        ]
    lines += [f"{peer}: not run: {reason}" for peer, reason in record.not_run.items()]
    for name, cost in record.host.items():
        lines.append(f"host, {name}: {cost:.0f} us")
    if record.not_reached:
        lines.append(f"not reached in the time given: {', '.join(record.not_reached)}")
    return lines


def _is_whole(judged: str) -> bool:
    words = judged.split()
    return len(words) == 4 and words[0] == words[2]
