"""The rows of the benchmark: which operation at which shape, and the bytes each must move."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase

SIZE = 128
"""K and V of every row."""

HEADS, TOKENS, REQUESTS = (12, 32, 96), (1, 4, 8), (1, 8, 32, 128)
LAYERS, LAYERS_HEADS = 69, 12
"""Layers of the commit in one launch, and the heads it runs at (one of eight ranks)."""

OPERATIONS = {
    "ring": "verify of L tokens, norm fused, recording rings and windows",
    "snapshot": "verify of L tokens, norm fused, recording states and windows",
    "commit": "commit of one layer, all L tokens accepted",
    "commit-mixed": "commit of one layer, accepted counts from none to L",
    "commit-layers": f"commit of {LAYERS} layers in one launch, all L tokens accepted",
}
VERIFIES = ("ring", "snapshot")

BF16, FP32, INT32, TAPS, HISTORY = 2, 4, 4, 4, 3
RING_ENTRY = 2 * SIZE * BF16 + SIZE * FP32 + FP32
"""Bytes of a ring entry per head and token: v and k, log decay, write strength."""

STATE = SIZE * SIZE * FP32
"""Bytes of the state of one head."""


@dataclass(frozen=True)
class Row:
    """One line of the table.

    Attributes:
        operation: a key of OPERATIONS.
        heads: H = HV.
        tokens: L, the rows of each request, and the depth R of its rings.
        requests: N; all live.
    """

    operation: str
    heads: int
    tokens: int
    requests: int

    def __post_init__(self) -> None:
        """Refuse what is no row."""
        if self.operation not in OPERATIONS:
            known = ", ".join(OPERATIONS)
            raise ValueError(f"`operation` must be one of {known}, got {self.operation!r}")
        for name, most in (("heads", 1024), ("tokens", 16), ("requests", 65536)):
            value = getattr(self, name)
            if not isinstance(value, int) or isinstance(value, bool) or not 1 <= value <= most:
                raise ValueError(f"`{name}` must be an integer in 1..{most}, got {value!r}")

    @property
    def name(self) -> str:
        """Name the row is listed, selected and recorded under."""
        return f"{self.operation}-H{self.heads}-L{self.tokens}-N{self.requests}"

    @property
    def is_verify(self) -> bool:
        """Whether the row is a verify, not a commit."""
        return self.operation in VERIFIES

    @property
    def layers(self) -> int:
        """Layers that one call handles."""
        return LAYERS if self.operation == "commit-layers" else 1

    @property
    def accepted(self) -> tuple[int, ...]:
        """Tokens that a commit accepts of each request; a verify accepts none."""
        if self.is_verify:
            return (0,) * self.requests
        if self.operation != "commit-mixed":
            return (self.tokens,) * self.requests
        # Starts in the middle, so that a single request is neither rejected nor accepted whole.
        middle, kinds = (self.tokens + 1) // 2, self.tokens + 1
        return tuple((middle + n) % kinds for n in range(self.requests))


def traffic(row: Row) -> dict[str, int]:
    """Count the bytes a call must move, each once: what it reads and what it leaves behind.

    Nothing that a kernel keeps for itself (a workspace, a second read) counts, and neither do
    slots, ring entries and windows that the call does not concern.

    Args:
        row: the shape.

    Returns:
        Bytes by kind of operand; their sum is what the limit is computed from.
    """
    rows, channels = row.requests * row.tokens, row.heads * SIZE
    if not row.is_verify:
        live = sum(count > 0 for count in row.accepted)
        per_layer = {
            "state read": live * row.heads * STATE,
            "state written": live * row.heads * STATE,
            "rings": sum(row.accepted) * row.heads * RING_ENTRY,
        }
        moved = {kind: row.layers * count for kind, count in per_layer.items()}
        return {**moved, "indices": 2 * row.requests * INT32}
    moved = {
        "state read": row.requests * row.heads * STATE,
        # q, k, v, g, output gate and out, and beta.
        "activations": rows * (6 * channels + row.heads) * BF16,
        "weights": (3 * channels * TAPS + channels + row.heads + SIZE) * FP32,
        "history": row.requests * 3 * channels * HISTORY * BF16,
        "windows": rows * 3 * channels * HISTORY * BF16,
        "indices": (3 * row.requests + 1) * INT32,
    }
    if row.operation == "ring":
        return {**moved, "rings": rows * row.heads * RING_ENTRY}
    return {**moved, "snapshots": rows * row.heads * STATE}


def bytes_moved(row: Row) -> int:
    """Return the bytes a call must move."""
    return sum(traffic(row).values())


def default_rows() -> list[Row]:
    """List the rows of the table: every operation at every shape."""
    return [row for operation in OPERATIONS for row in _shapes(operation)]


def quick_rows() -> list[Row]:
    """List the few rows of a first look."""
    quick = [
        Row(operation, 12, 8, requests)
        for operation in ("ring", "snapshot", "commit")
        for requests in (1, 32, 128)
    ]
    return [*quick, Row("commit-layers", 12, 8, 8)]


def _shapes(operation: str) -> Iterator[Row]:
    for heads in (LAYERS_HEADS,) if operation == "commit-layers" else HEADS:
        for tokens in TOKENS:
            for requests in REQUESTS:
                yield Row(operation, heads, tokens, requests)


def select(
    rows: Sequence[Row],
    *,
    names: Collection[str] = (),
    operations: Collection[str] = (),
    heads: Collection[int] = (),
    tokens: Collection[int] = (),
    requests: Collection[int] = (),
) -> list[Row]:
    """Keep the rows that every filter given lets through; an empty filter lets all through.

    Args:
        rows: in the order wanted.
        names: row names, or patterns of the shell's kind ("ring-H12-*").
        operations, heads, tokens, requests: values to keep.

    Raises:
        ValueError: a value that no row has, or filters that leave nothing.
    """
    for argument, wanted, attribute in (
        ("operations", operations, "operation"),
        ("heads", heads, "heads"),
        ("tokens", tokens, "tokens"),
        ("requests", requests, "requests"),
    ):
        known = list(dict.fromkeys(getattr(row, attribute) for row in rows))
        for value in wanted:
            if value not in known:
                listed = ", ".join(map(str, known))
                raise ValueError(f"`{argument}` must be among {listed}, got {value!r}")
    for pattern in names:
        if not any(fnmatchcase(row.name, pattern) for row in rows):
            raise ValueError(f"`rows` must match a row such as {rows[0].name}, got {pattern!r}")
    kept = [
        row
        for row in rows
        if (not names or any(fnmatchcase(row.name, pattern) for pattern in names))
        and (not operations or row.operation in operations)
        and (not heads or row.heads in heads)
        and (not tokens or row.tokens in tokens)
        and (not requests or row.requests in requests)
    ]
    if not kept:
        raise ValueError("`rows` must leave at least one row, got filters that leave none")
    return kept
