"""Every formula of the error budget against numbers worked out by hand."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn.functional import pad

from kda_ref import UNIT_ROUNDOFF, Bounded, Precision, budget
from kda_ref.bounded import TINY
from kda_ref.recurrence import Prepared, run

# With u = 1 the roundings show their factors, with u = 0 only the inherited errors remain.
NO_ROUNDING = Precision(inputs=0.0, products=0.0)


def row(*values: float) -> Tensor:
    return torch.tensor(values, dtype=torch.float64)


def step(**changes: Any) -> budget.Step:
    """One head and column, K = 4: D s = (0, 0, 4, 3), k = e_2, b = 1/2, v = -4, q = 2 e_3."""
    zero = row(0)
    values: dict[str, Any] = {
        "peak": row(20)[None],
        "decayed": row(0, 0, 4, 3)[None, None],
        "after": row(0, 0, 0, 3)[None, None],
        "a": row(1, 1, 0.25, 0.25)[None],
        "log_decay": Bounded(row(0, 0, -2, -2)[None], row(0, 0, 0, 0)[None]),
        "k": row(0, 0, 1, 0)[None],
        "k_error": zero,
        "q": row(0, 0, 0, 2)[None],
        "q_error": zero,
        "v": Bounded(row(-4)[None], row(0)[None]),
        "b": Bounded(row(0.5), row(0)),
        "predicted": row(4)[None],
        "u": row(-4)[None],
        "cumulative": row(0, 0, -2, -2)[None],
    }
    return budget.Step(**(values | changes))


def state(s: budget.Step, error: float = 0.0, precision: Precision = NO_ROUNDING) -> float:
    return budget.state_error(s, row(error)[None], precision).item()


def output(s: budget.Step, error: float = 0.0, precision: Precision = NO_ROUNDING) -> float:
    return budget.output_error(s, row(error)[None], precision).item()


def test_precision_classes() -> None:
    assert UNIT_ROUNDOFF == {"fp32": 2.0**-24, "tf32": 2.0**-11, "bf16": 2.0**-8}
    plain = Precision(2.0**-24, 2.0**-24, False, 64, False, budget.RoundingPoints(), False)
    assert Precision() == plain
    given = Precision(cumulative_gates=True, chunk=16, naive_softplus=True)
    assert given.inputs == given.products == 2.0**-24
    assert given.at_class("bf16") == dataclasses.replace(given, products=2.0**-8)


def test_state_rounding() -> None:
    # 4 |Ds| + b|k| (sqrt(K) |k o Ds| + 3 (|v| + |k.Ds|)) + 2 |s'|
    expected = 4 * 5 + 0.5 * (2 * 4 + 3 * (4 + 4)) + 2 * 3
    assert state(step(), precision=Precision(inputs=0, products=1)) == expected


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({"v": Bounded(row(-4)[None], row(8)[None])}, 4),  # b |k| v_error
        ({"k_error": row(2)}, (4 + 0.5 * 3 * 5) * 2),  # (|u| + b (|k| + k_error) |Ds|) k_error
        ({"b": Bounded(row(0.5), row(0.25))}, 2),  # |k| |v - k.Ds| b_error
        ({"log_decay": Bounded(row(0, 0, -2, -2)[None], row(9, 9, 0.75, 1)[None])}, math.sqrt(18)),
        ({"q_error": row(100)}, 0),
    ],
    ids=["v", "k", "b", "gate", "q"],
)
def test_state_inherits_input_errors(changes: dict[str, Any], expected: float) -> None:
    assert state(step(**changes)) == pytest.approx(expected, rel=1e-12, abs=1e-30)


def test_state_terms_scale_with_the_key() -> None:
    """|k| = 2 and b|k|^2 = 2: where |k| stands in the formula, and where it does not."""
    longer = {"k": row(0, 0, 2, 0)[None], "predicted": row(8)[None], "u": row(-6)[None]}
    rounding = Precision(inputs=0, products=1)
    assert state(step(**longer), precision=rounding) == 20 + 0.5 * 2 * (2 * 8 + 3 * 12) + 6
    assert state(step(**longer, v=Bounded(row(-4)[None], row(8)[None]))) == 8
    assert state(step(**longer, k_error=row(2))) == (6 + 0.5 * 4 * 5) * 2
    assert state(step(**longer, b=Bounded(row(0.5), row(0.25)))) == 2 * 12 * 0.25


def test_errors_of_key_and_value_multiply_where_both_cancel() -> None:
    """A convolution that cancels leaves k = v = 0 and nothing but the product of the errors."""
    nothing = row(0)[None]
    s = step(
        decayed=row(0, 0, 0, 0)[None, None],
        k=row(0, 0, 0, 0)[None],
        k_error=row(0.5),
        v=Bounded(nothing, row(8)[None]),
        b=Bounded(row(0.5), row(0.25)),
        predicted=nothing,
        u=nothing,
    )
    assert state(s) == 0.75 * 0.5 * 8


def test_gate_argument_rounds_in_proportion() -> None:
    s = step(log_decay=Bounded(row(-9, -9, -0.75, -1)[None], row(0, 0, 0, 0)[None]))
    assert state(s, precision=Precision(inputs=1, products=0)) == pytest.approx(math.sqrt(18))


def test_cumulative_gates_cost_both_sums_per_channel() -> None:
    # log2(16) roundings of c_t and of c_(t-1) = c_t - G_t, against D s = (0, 0, 4, 3)
    s = step(
        log_decay=Bounded(row(-500, 0, 0, -1)[None], row(0, 0, 0, 0)[None]),
        cumulative=row(-500, 0, -3, -5)[None],
    )
    precision = Precision(inputs=1, products=0, cumulative_gates=True, chunk=16)
    channels = (4 * 4 * (3 + 3), 3 * (1 + 4 * (5 + 4)))
    assert state(s, precision=precision) == pytest.approx(math.hypot(*channels))
    plain = dataclasses.replace(precision, cumulative_gates=False)
    assert state(s, precision=plain) == pytest.approx(3)
    assert output(s, precision=precision) == output(s, precision=plain)


@pytest.mark.parametrize(
    ("a", "b", "key", "factor"),
    [
        ((0.5, 0.25, 0.125, 0.125), 1.0, 1.0, 0.5),  # the largest decay
        ((0.5, 0.5, 0.5, 0.5), 2.0, 1.0, 0.5),  # |1 - 2| = 1
        ((1.0, 1.0, 1.0, 1.0), 0.5, 1.0, 1.0),  # never below one: e may be orthogonal to k
        ((0.5, 0.5, 0.5, 0.5), 1.0, 2.0, 1.5),  # |1 - 4| = 3
        ((1.0, 1.0, 1.0, 1.0), 2.0, 2.0, 7.0),
    ],
)
def test_amplification(a: tuple[float, ...], b: float, key: float, factor: float) -> None:
    s = step(a=row(*a)[None], b=Bounded(row(b), row(0)), k=row(0, 0, key, 0)[None])
    assert state(s, error=8.0) - state(s) == pytest.approx(8 * factor)


def test_output() -> None:
    # (|q| + q_error) e + u sqrt(K) |q o s'| + |s'| q_error
    s = step(q_error=row(0.5))
    assert output(s, error=8.0, precision=Precision(inputs=0, products=1)) == 2.5 * 8 + 2 * 6 + 1.5


def test_underflow() -> None:
    # 2^-126 sqrt(K) (1 + peak + |v| + |q|)
    assert state(step()) == output(step()) == TINY * 2 * (1 + 20 + 4 + 2)
    assert TINY == 2.0**-126


def test_roots_of_the_key_size() -> None:
    """Twelve channels that hold nothing: at K = 4 a root is a half, at K = 16 it is not."""
    narrow = step()
    names = ("decayed", "after", "a", "k", "q", "cumulative")
    wide: dict[str, Any] = {name: pad(getattr(narrow, name), (0, 12)) for name in names}
    wide["log_decay"] = Bounded(*(pad(part, (0, 12)) for part in narrow.log_decay))
    s = dataclasses.replace(narrow, **wide)
    rounding = Precision(inputs=0, products=1)
    assert state(s, precision=rounding) == 4 * 5 + 0.5 * (4 * 4 + 3 * (4 + 4)) + 2 * 3
    assert output(s, precision=rounding) == 4 * 6
    assert state(s) == output(s) == TINY * 4 * (1 + 20 + 4 + 2)


def carried(precision: Precision, log_decay: Sequence[float], size: float) -> list[budget.Step]:
    """The steps that `run` hands to the budget: one channel, a state of `size`, b = 0."""
    length, seen = len(log_decay), []
    shape = (length, 1, 1)
    tokens = Prepared(
        q=Bounded(torch.ones(shape).double(), torch.zeros(length, 1)),
        k=Bounded(torch.ones(shape).double(), torch.zeros(length, 1)),
        v=Bounded(torch.zeros(shape).double(), torch.zeros(shape)),
        log_decay=Bounded(row(*log_decay).view(shape), torch.zeros(shape)),
        b=Bounded(torch.zeros(length, 1).double(), torch.zeros(length, 1)),
    )

    def spy(step: budget.Step, *rest: Any) -> Tensor:
        seen.append(step)
        return torch.zeros(1, 1)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(budget, "state_error", spy)
        run(tokens, Bounded(row(size).view(1, 1, 1), torch.zeros(1, 1, 1)), precision)
    return seen


def test_sums_of_gates_start_anew_with_every_chunk() -> None:
    steps = carried(Precision(chunk=2), [-1, -2, -4, -8, -16], 1.0)
    assert [s.cumulative.item() for s in steps] == [-1, -3, -4, -12, -16]


def test_underflow_remembers_the_largest_state() -> None:
    steps = carried(Precision(), [-50, -50, 0], 8.0)
    assert [s.peak.item() for s in steps] == [8, 8, 8]


def test_convolution() -> None:
    window, taps = row(1, -2, 3, 4), row(0.5, 0.25, -1, 2)
    assert budget.conv_error(window, taps, 1.0).item() == 4 * (0.5 + 0.5 + 3 + 8)
    assert budget.conv_error(window, taps, 0.0).item() == TINY


def test_rows_are_apart() -> None:
    """Every sum is over the last axis: three rows have the bounds of three calls."""
    window, taps = torch.stack([row(1, -2, 3, 4), row(1, 0, 0, 0)]), row(0.5, 0.25, -1, 2)
    assert budget.conv_error(window, taps, 1.0).tolist() == [4 * 12, 4 * 0.5]
    for y, error in ((row(3, 4), row(0.06, 0.08)), (row(0, 0), row(0, 0))):
        k = y / torch.sqrt((y * y).sum() + 1e-6)
        one = budget.l2_normalize_error(y, k, error, 1.0)
        rows = [x.expand(3, 2) for x in (y, k, error)]
        three = budget.l2_normalize_error(rows[0], rows[1], rows[2], 1.0)
        assert three.tolist() == [one.item()] * 3
    o, zero = row(2, 2, 2, 2), row(0, 0, 0, 0)
    for error in (row(1, 1, 1, 1), row(0, 0, 0, 0), o):
        given = (zero, row(4, 4, 4, 4), 0.0, o, 1.0)
        one, whether = budget.gated_rms_norm_error(Bounded(o, error), *given)
        many = Bounded(o.expand(3, 4), error.expand(3, 4))
        three, each = budget.gated_rms_norm_error(many, *given)
        assert torch.equal(three, one.expand(3, 4))
        assert torch.equal(each, whether.expand(3, 1))


def test_silu() -> None:
    zero = row(0)[0]
    # At c = 0: y = 0, slope 1/2 growing by 1/2 per unit, at most 1.1.
    assert budget.silu_error(zero, zero, row(0.5)[0], 0.0).item() == (0.5 + 0.25) * 0.5
    assert budget.silu_error(zero, zero, row(4)[0], 0.0).item() == pytest.approx(1.1 * 4)
    # At c = 2 the slope is sigmoid(2) (1 + 2 sigmoid(-2)).
    slope = (1 + 2 / (1 + math.exp(2))) / (1 + math.exp(-2))
    bent = budget.silu_error(row(2)[0], zero, row(1e-3)[0], 0.0).item()
    assert bent == pytest.approx((slope + 0.5e-3) * 1e-3, rel=1e-9, abs=0)
    # Far to the left the slope vanishes, far to the right it is one.
    left = budget.silu_error(row(-40)[0], row(-40 * math.exp(-40))[0], row(1e-6)[0], 0.0)
    assert left.item() == pytest.approx(0.5e-12, rel=1e-6, abs=0)
    right = budget.silu_error(row(40)[0], row(40)[0], row(1e-6)[0], 0.0)
    assert right.item() == pytest.approx(1e-6, rel=1e-5)
    # Roundings at c = 0 against y = 1: sigmoid 1/2 * 4 + 5, and the product.
    assert budget.silu_error(zero, row(1)[0], zero, 1.0).item() == 0.5 * 4 + 5 + 1
    assert budget.silu_error(zero, zero, zero, 0.0).item() == TINY


def test_l2_norm() -> None:
    y = row(3, 4) * 1e6
    k = y / y.norm()
    at = pytest.approx
    assert budget.l2_normalize_error(y, k, row(0, 0), 1.0).item() == at(4)
    # 2 e / (R + (R - e)), with R = 5e6 and e = 1e6
    assert budget.l2_normalize_error(y, k, row(6e5, 8e5), 0.0).item() == at(2 / 9)
    # No further apart than two unit vectors can be, even where y may vanish.
    assert budget.l2_normalize_error(y, k, row(3e9, 4e9), 0.0).item() <= 2 * 1000 / (1 + 2e-10)
    small = budget.l2_normalize_error(row(0, 0), row(0, 0), row(0.6e-3, 0.8e-3), 0.0)
    assert small.item() == at(2 * 1e-3 / (1e-3 + 1e-3))
    underflow = budget.l2_normalize_error(row(0, 0), row(0, 0), row(0, 0), 0.0).item()
    assert underflow == at(TINY * math.sqrt(2) / 1e-3, rel=1e-9, abs=0)


def test_sigmoid() -> None:
    relative = budget.sigmoid_relative_error
    assert relative(row(0)[0], 0.25, 0.0).item() == 0.5 * 0.25
    assert relative(row(0)[0], 0.0, 1.0).item() == 0.5 * 4 + 5
    assert relative(row(-20)[0], 0.0, 1.0).item() == pytest.approx(4 + 20 + 5)
    assert relative(row(40)[0], 1.0, 1.0).item() == pytest.approx(5)
    # A sigmoid that may be flushed may lose everything.
    assert relative(row(-86.3)[0], 0.0, 0.0).item() == 0
    assert relative(row(-86.7)[0], 0.0, 0.0).item() == 1
    assert relative(row(-1000)[0], 0.0, 0.0).item() == 1


def test_lower_bound_gate() -> None:
    error = budget.lower_bound_gate_error
    # z = 2 * 3 with exp(A_log) = 2, G = -5:
    # twice |G| (sigmoid(-z) (z (4 + |A_log|) + 4 + z) + 5 + 1)
    a_log = row(math.log(2))[0]
    tail = 1 / (1 + math.exp(6))
    expected = 2 * 5 * (tail * (6 * (4 + math.log(2)) + 4 + 6) + 5 + 1)
    assert error(row(3)[0], a_log, row(-5)[0], 1.0).item() == pytest.approx(expected)
    assert error(row(3)[0], a_log, row(-5)[0], 0.0).item() == TINY


def test_softplus_gate() -> None:
    def error(x: float, g: float, u: float, *, naive: bool = False) -> float:
        a_log = row(math.log(2))[0]
        return budget.softplus_gate_error(row(x)[0], a_log, row(g)[0], u, naive=naive).item()

    # Twice rate (2u |x| sigmoid(x)) + |G| u (8 + |A_log|)
    assert error(0, -3, 1.0) == pytest.approx(2 * 3 * (8 + math.log(2)))
    assert error(40, 0, 1.0) == pytest.approx(2 * 2 * 2 * 40)
    assert error(-40, 0, 1.0) == pytest.approx(2 * 2 * 2 * 40 * math.exp(-40), rel=1e-3, abs=0)
    assert error(-40, 0, 0.5, naive=True) == pytest.approx(2 * 2 * 2 * 0.5)
    assert error(-40, 0, 2.0, naive=True) == pytest.approx(2 * 2 * 2 * 2.0)
    assert error(40, 0, 0.0) == pytest.approx(2 * TINY, rel=1e-9, abs=0)


def test_write_strength() -> None:
    logits, b = row(0, -20), row(2, 1e-8)
    assert not budget.write_strength_error(logits, b, "given", 1.0).any()
    error = budget.write_strength_error(logits, b, "twice_sigmoid", 1.0)
    assert error.tolist() == pytest.approx([2 * 2 * 7, 2 * 1e-8 * 29], rel=1e-6, abs=0)
    assert budget.write_strength_error(row(0), row(0), "sigmoid", 0.0).item() == TINY


def norm_error(o: Tensor, error: Tensor, **changes: Any) -> tuple[list[float], bool]:
    given: dict[str, Any] = {"gate": row(0, 0, 0, 0), "weight": row(4, 4, 4, 4), "eps": 0.0, "u": 0}
    given |= {"out": row(0, 0, 0, 0)} | changes
    bound, undetermined = budget.gated_rms_norm_error(Bounded(o, error), **given)
    return bound.tolist(), bool(undetermined.item())


def test_output_norm() -> None:
    # o = 2, errors 1: R = 2, R_lo = 1; |w| sigmoid (e / R_lo + |o| (1/R_lo - 1/R)) = 2 (1 + 1)
    o, error = row(2, 2, 2, 2), row(1, 1, 1, 1)
    bound, undetermined = norm_error(o, error)
    assert bound == pytest.approx([4] * 4)
    assert not undetermined
    # The error's root mean square shrinks the root, each element's own error the numerator.
    bound, _ = norm_error(o, row(2, 0, 0, 0))
    assert bound == pytest.approx([6, 2, 2, 2])
    # eps holds the root up: R = 3, R_lo = sqrt(1 + 5)
    bound, _ = norm_error(o, error, eps=5.0)
    low = math.sqrt(6)
    assert bound == pytest.approx([2 * (1 / low + 2 * (1 / low - 1 / 3))] * 4)
    # Roundings, in proportion to the result: 8 and those of the gate's sigmoid.
    bound, _ = norm_error(o, row(0, 0, 0, 0), u=1, out=row(1, 0, 2, 0))
    assert bound == pytest.approx([15, 0, 30, 0])
    bound, _ = norm_error(o, row(0, 0, 0, 0))
    assert bound == [TINY * 2] * 4


def test_roots_of_the_value_size() -> None:
    """V = 9 and a root mean square of 3: a root is no half, and a square no double."""
    o, zero, weight = row(*[3.0] * 9), row(*[0.0] * 9), row(*[4.0] * 9)
    given: dict[str, Any] = {"gate": zero, "weight": weight, "out": zero}
    # R = sqrt(9 + 7), R_lo = sqrt((3 - 1)^2 + 7)
    low = math.sqrt(11)
    one = row(*[1.0] * 9)
    bound, _ = budget.gated_rms_norm_error(Bounded(o, one), eps=7.0, u=0.0, **given)
    assert bound.tolist() == pytest.approx([2 * (1 / low + 3 * (1 / low - 1 / 4))] * 9)
    bound, _ = budget.gated_rms_norm_error(Bounded(o, zero), eps=0.0, u=0.0, **given)
    assert bound.tolist() == [TINY * 3] * 9
    bound, undetermined = budget.gated_rms_norm_error(Bounded(o, o), eps=0.0, u=0.0, **given)
    assert undetermined.item()
    assert bound.tolist() == [1.5 * 2 * 3] * 9


def test_undetermined_output_norm() -> None:
    limit = [1.5 * 4 * 0.5 * 2] * 4
    assert norm_error(row(2, 2, 2, 2), row(2, 2, 2, 2)) == (limit, True)
    assert norm_error(row(2, 2, 2, 2), row(3, 3, 3, 3)) == (limit, True)
    assert norm_error(row(0, 0, 0, 0), row(0, 0, 0, 0)) == (limit, True)
    # Squares below the normal numbers may vanish.
    assert norm_error(row(1, 1, 1, 1) * 2.0**-63, row(0, 0, 0, 0)) == (limit, True)
    assert not norm_error(row(1, 1, 1, 1) * 2.0**-62, row(0, 0, 0, 0))[1]
    assert not norm_error(row(0, 0, 0, 0), row(1, 1, 1, 1), eps=1e-6)[1]
