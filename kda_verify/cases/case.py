"""A case: the small frozen recipe from which one judged call is built."""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from dataclasses import asdict, dataclass, fields, replace
from typing import Any

from ..operations import facts

DTYPES = ("float32", "bfloat16", "float16")
KEYS = ("random", "collinear", "one_hot", "hadamard", "tiny", "zero")
GATES = ("none", "mild", "slow", "saturated", "steep_channel")
TAPS = ("random", "unit", "cancelling")
BETAS = ("random", "zero", "one", "extreme")
VALUES = ("unit", "tiny", "spread", "zero")
STATES = ("unit", "tiny", "spread", "asymmetric", "zero")
GATE_FORMS = ("lower_bound", "softplus", "given")
BETA_FORMS = ("sigmoid", "twice_sigmoid", "given")
RECORDS = ("rings", "snapshots", "windows")
INITIALS = ("given", "none", "pool")
POISONS = ("nan", "huge")  # Drawn; "zeros" is for measuring what poison finds.
SPOILS = ("none", "nan", "inf")

_CHOICES: dict[str, tuple[str, ...]] = {
    "dtype": DTYPES,
    "logit_dtype": DTYPES,
    "state_dtype": DTYPES[:2],
    "keys": KEYS,
    "gates": GATES,
    "taps": TAPS,
    "betas": BETAS,
    "values": VALUES,
    "states": STATES,
    "gate_form": GATE_FORMS,
    "beta_form": BETA_FORMS,
    "rows": ("packed", "pitched", "separate"),
    "pool": ("dense", "pitched", "envelope"),
    "conv_pool": ("transposed", "dense"),
    "state_layout": ("vk", "kv"),
    "initial": INITIALS,
    "poison": (*POISONS, "zeros"),
    "spoil": SPOILS,
}


@dataclass(frozen=True)
class Case:
    """Describe one call: dims, lengths, layout, dtypes, value families and a seed.

    The defaults are the simplest case; a failing case shrinks toward them.

    Attributes:
        operation: which one is called; its facts say which other fields mean something for it.
        heads, group: H query/key heads; HV = group * heads value heads.
        size_k, size_v: K and V.
        lengths: tokens of each request; for commits the accepted counts.
        capacity: max_tokens of a verify, ring depth R of a commit; every length fits.
        padding: positions of padding requests; they own their rows and nothing else.
        slack_rows: rows of `out` after the last request, owned by nobody.
        dtype: of activations, conv history and raw rings; logit_dtype: of g, beta, output gate.
        state_dtype: of states in pools; narrow ones are rounded once, when they are stored.
        rows: q, k, v as strided views of one packed row, or separate tensors, dense or (pitched)
            with gaps of different widths after every axis.
        pool: state pool dense, with a free pitch (and gaps in the other pools), or interleaved
            with the rings and the conv history in one envelope per slot.
        conv_pool: conv history as a transposed view of [slots, 3, C], or dense [slots, C, 3].
        state_layout: layout of the recurrent operation's states.
        initial: where sequences start: from "given" states, one each, from zeros ("none"), or from
            the slots of a "pool", written in place, which alone may have padding.
        batched: the recurrent operation gets [N, L, ...] (equal lengths), not packed rows.
        spare_slots: pool slots (and scratch rows) that no request lists.
        index_stride: least element stride of index vectors and of vectors of weights, over 1 all
            different; the channels of taps lie as much further apart.
        conv, qk_norm, gate_form, beta_form: stages computed in the call, or given.
        gate_bias, gate_rate: dt_bias and A_log are passed.
        lower_bound: floor of the lower-bound gate.
        out_norm: gated RMSNorm fused. out_given: caller-owned `out`.
        records: what a verify records: any of "rings", "snapshots", "windows".
        scale: multiplies q; None for K**-0.5.
        layers: 0 for a single layer, else an all-layers commit of that many.
        track: a commit also stores a prefix boundary in a tracked slot.
        null_block: commits skip slots up to this one.
        exact: inputs for which no algorithm rounds; judged with zero tolerance.
        keys, gates, taps, betas, values, states: value families.
        poison: what surrounds every operand and fills every output beforehand.
        spoil: a NaN or infinity in v, in one token and head of the first live request.
        seed: of permutations and values.
    """

    operation: str = "verify"
    heads: int = 1
    group: int = 1
    size_k: int = 16
    size_v: int = 16
    lengths: tuple[int, ...] = (1,)
    capacity: int = 1
    padding: tuple[int, ...] = ()
    slack_rows: int = 0
    dtype: str = "float32"
    logit_dtype: str = "float32"
    state_dtype: str = "float32"
    rows: str = "separate"
    pool: str = "dense"
    conv_pool: str = "dense"
    state_layout: str = "vk"
    initial: str = "given"
    batched: bool = False
    spare_slots: int = 1
    index_stride: int = 1
    conv: bool = True
    qk_norm: bool = True
    gate_form: str = "lower_bound"
    beta_form: str = "sigmoid"
    gate_bias: bool = True
    gate_rate: bool = True
    lower_bound: float = -5.0
    out_norm: bool = False
    out_given: bool = False
    records: tuple[str, ...] = ()
    scale: float | None = None
    layers: int = 0
    track: bool = False
    null_block: int = -1
    exact: bool = False
    keys: str = "random"
    gates: str = "mild"
    taps: str = "random"
    betas: str = "random"
    values: str = "unit"
    states: str = "unit"
    poison: str = "nan"
    spoil: str = "none"
    seed: int = 0

    def __post_init__(self) -> None:
        """Refuse a recipe that describes no call."""
        mine = facts(self.operation)
        for name, allowed in _CHOICES.items():
            value = getattr(self, name)
            if value not in allowed:
                raise ValueError(f"`{name}` must be one of {', '.join(allowed)}, got {value!r}")
        for name in ("heads", "group", "size_k", "size_v", "capacity"):
            _require(name, "a positive integer", getattr(self, name), lambda x: x >= 1)
        for name in ("slack_rows", "spare_slots", "layers", "seed"):
            _require(name, "an integer of at least 0", getattr(self, name), lambda x: x >= 0)
        _require("index_stride", "a positive integer", self.index_stride, lambda x: x >= 1)
        _require("null_block", "an integer of at least -1", self.null_block, lambda x: x >= -1)
        for name in ("size_k", "size_v"):
            if not 16 <= getattr(self, name) <= 256:
                raise ValueError(f"`{name}` must be in 16..256, got {getattr(self, name)}")
        if not math.isfinite(self.lower_bound) or self.lower_bound >= 0:
            raise ValueError(f"`lower_bound` must be finite and negative, got {self.lower_bound}")
        if self.spoil != "none" and (self.exact or not mine.takes("spoil")):
            raise ValueError(
                f"`spoil` must be 'none' but for rows of tokens that round, got {self.spoil!r}"
            )
        if not self.lengths or any(not _whole(x) or x < 0 for x in self.lengths):
            raise ValueError(f"`lengths` must be integers of at least 0, got {self.lengths}")
        if mine.bounded and max(self.lengths) > self.capacity:
            raise ValueError(
                f"`lengths` must be at most capacity {self.capacity}, got {max(self.lengths)}"
            )
        if self.batched and len(set(self.lengths)) > 1:
            raise ValueError(f"`lengths` must be equal when batched, got {self.lengths}")
        if sorted(set(self.padding)) != list(self.padding) or any(
            not _whole(n) or not 0 <= n < len(self.lengths) for n in self.padding
        ):
            raise ValueError(
                f"`padding` must be increasing positions below {len(self.lengths)}, "
                f"got {self.padding}"
            )
        if self.padding and mine.takes("initial") and self.initial != "pool":
            raise ValueError(
                f"`padding` must be empty where no request lists a slot, got {self.padding}"
            )
        if mine.takes("initial") and self.initial != "pool" and self.state_dtype != "float32":
            raise ValueError(
                f"`state_dtype` must be float32 where there is no pool, got {self.state_dtype!r}"
            )
        if any(r not in RECORDS for r in self.records) or len(set(self.records)) != len(
            self.records
        ):
            raise ValueError(
                f"`records` must be distinct names of {', '.join(RECORDS)}, got {self.records}"
            )
        if "windows" in self.records and not self.conv:
            raise ValueError("`records` must leave out windows where conv is given, got windows")

    @property
    def heads_v(self) -> int:
        """HV, the number of value heads."""
        return self.heads * self.group

    @property
    def requests(self) -> int:
        """N, the number of requests, padding included."""
        return len(self.lengths)

    @property
    def tokens(self) -> int:
        """T, the number of packed rows, slack included."""
        return sum(self.lengths) + self.slack_rows

    @property
    def busy(self) -> tuple[int, ...]:
        """Positions of the requests that have tokens and are not padding."""
        return tuple(n for n, size in enumerate(self.lengths) if size and n not in self.padding)

    def meant(self) -> Case:
        """Return the case with every field that means nothing for its operation at rest."""
        mine = facts(self.operation)
        rest = {
            f.name: mine.fixed.get(f.name, f.default)
            for f in fields(self)
            if f.name != "operation" and not mine.takes(f.name)
        }
        return replace(self, **rest)

    def to_json(self) -> str:
        """Return one line of JSON that holds every field that is not a default."""
        default = Case()
        given = {k: v for k, v in asdict(self).items() if v != getattr(default, k)}
        return json.dumps(given or {"operation": self.operation})

    @classmethod
    def from_json(cls, text: str) -> Case:
        """Read a case, refusing what is not exactly one.

        Raises:
            ValueError: not JSON, not an object, an unknown field, a wrong type or value.
        """
        try:
            data = json.loads(text)
        except json.JSONDecodeError as problem:
            raise ValueError(f"`case` must be JSON, got {problem}") from None
        return cls.from_dict(data)

    @classmethod
    def from_dict(cls, data: object) -> Case:
        """Build a case from plain JSON values; see `from_json`."""
        if not isinstance(data, dict):
            raise ValueError(f"`case` must be a JSON object, got {type(data).__name__}")
        known = {f.name: getattr(_DEFAULT, f.name) for f in fields(cls)}
        values: dict[str, Any] = {}
        for name, value in data.items():
            if name not in known:
                raise ValueError(f"`case` must have only known fields, got {name!r}")
            values[name] = _plain(name, value, known[name])
        return cls(**values)


def _whole(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def _require(name: str, requirement: str, value: Any, holds: Callable[[Any], bool]) -> None:
    if not _whole(value) or not holds(value):
        raise ValueError(f"`{name}` must be {requirement}, got {value!r}")


def _plain(name: str, value: object, default: object) -> object:
    """Check a JSON value against the type of the field's default."""
    if name == "scale":
        number = isinstance(value, int | float) and not isinstance(value, bool)
        if value is None or (number and math.isfinite(float(value))):  # type: ignore[arg-type]
            return value
        raise ValueError(f"`scale` must be a finite number or null, got {value!r}")
    if isinstance(default, float) and isinstance(value, int) and not isinstance(value, bool):
        return float(value)
    if isinstance(default, tuple):
        if not isinstance(value, list):
            raise ValueError(f"`{name}` must be a list, got {value!r}")
        return tuple(value)
    if type(value) is not type(default):
        raise ValueError(f"`{name}` must be a {type(default).__name__}, got {value!r}")
    return value


_DEFAULT = Case()
