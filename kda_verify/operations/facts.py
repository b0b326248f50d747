"""The data of an operation's record: what it is called with, what it owns, what may be asked of it.

Nothing of the project is imported here, so that a case can be checked, and its tensors laid out,
by what its operation is.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

SLOTS = "ssm_state_indices"
"""Operand that lists the slot of every request."""
HISTORIES = ("cs_q", "cs_k", "cs_v")
"""Conv histories, one pool per stream."""
WINDOWS = ("intermediate_conv_q", "intermediate_conv_k", "intermediate_conv_v")
"""Scratch of the windows that a verify records and a conv commit copies into the histories."""

DIMS = ("heads", "group", "size_k", "size_v")
REQUESTS = ("lengths", "capacity", "padding", "index_stride", "poison", "seed", "dtype")
POOLS = ("pool", "spare_slots")
ROWS = ("rows", "slack_rows", "logit_dtype", "scale", "spoil")
GATES = ("gate_form", "beta_form", "gate_bias", "gate_rate", "lower_bound")
NUMBERS = ("exact", "qk_norm", "keys", "gates", "betas", "values", "states", "state_dtype")
LAYERS = ("layers", "null_block")


@dataclass(frozen=True)
class Facts:
    """Say what one operation is, apart from the functions that make and judge its calls.

    Attributes:
        name: of the operation, as cases carry it.
        told: what a call does, in words.
        kernel: name of the subject, ours, that takes every case of it; None where we have none.
        family: order in which the kernels judged here do its arithmetic, "one-pass" or
            "token-order"; a kernel of another family says so where a law is asked of it.
        fields: fields of `Case` that mean something for it.
        fixed: values that other fields then have, where these are not the defaults of `Case`.
        bounded: every length is at most the case's capacity.
        queries, keys, values: operands of q, k and v, or None where it has none.
        axes: letters of the axes of its inputs. One letter per axis: 1 the batch, t tokens, s
            slots, h query heads, H value heads, k and v channels, C conv channels, w taps; (hk)
            is one axis of h*k channels. A leading axis of layers is left out.
        written: operands that a call writes in place, where it has them; see `writes`.
        carried: pools that carry something from one call to the next.
        states: of these, the pools of states.
        aligned: pools of states whose pitches our contract wants in multiples of 4 elements.
        slot_pools: every pool that is indexed by `ssm_state_indices`.
        row_pools: scratch that is indexed by `intermediate_state_indices`.
    """

    name: str
    told: str
    kernel: str | None
    family: str
    fields: frozenset[str]
    fixed: Mapping[str, Any] = field(default_factory=dict)
    bounded: bool = True
    queries: str | None = None
    keys: str | None = None
    values: str | None = None
    axes: Mapping[str, str] = field(default_factory=dict)
    written: tuple[str, ...] = ()
    carried: tuple[str, ...] = ()
    states: tuple[str, ...] = ()
    aligned: tuple[str, ...] = ()
    slot_pools: tuple[str, ...] = ()
    row_pools: tuple[str, ...] = ()

    def takes(self, name: str) -> bool:
        """Whether a field of `Case` means something for the operation."""
        return name in self.fields

    def writes(self, arguments: Mapping[str, Any]) -> tuple[str, ...]:
        """Name what a call writes in place: of what is carried, pools of listed slots alone."""
        listed = arguments.get(SLOTS) is not None
        present = [name for name in self.written if arguments.get(name) is not None]
        return tuple(name for name in present if listed or name not in self.carried)

    @property
    def sequences(self) -> bool:
        """Whether it computes outputs over rows of tokens."""
        return self.takes("rows")

    @property
    def rows(self) -> tuple[str, ...]:
        """Operands with one entry per row of tokens."""
        return tuple(name for name, axes in self.axes.items() if axes.startswith("1 t "))

    @property
    def stateful(self) -> bool:
        """Whether it starts from states."""
        return bool(self.states)

    @property
    def pooled(self) -> bool:
        """Whether requests always list slots, so that padding lists one to be skipped."""
        return bool(self.slot_pools) and not self.takes("initial")

    @property
    def layered(self) -> bool:
        """Whether one call may do several layers, stacked in each operand."""
        return self.takes("layers")
