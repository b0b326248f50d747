"""Parts of the contract by themselves: overlap by brute force, hints, what is remembered."""

from __future__ import annotations

from itertools import product
from random import Random

import pytest
import torch

from kda_kernels.contract import MTP_VERIFY, clause, overlap
from kda_kernels.contract.call import Call, Meta, Static
from kda_kernels.contract.mtp import MAX_TOKENS
from kda_kernels.contract.operand import FLOATS, FP32, INT32, Operand
from kda_kernels.contract.overlap import Layout, overlaps_itself, share_memory
from kda_kernels.contract.tensors import has_dtype, has_unit_stride, is_on_device, reshaping
from kda_verify.invalid.example_calls import example

CPU = torch.device("cpu")


def elements(layout: Layout) -> list[int]:
    """Offset of every element, in elements."""
    indices = product(*map(range, layout.shape))
    return [sum(i * s for i, s in zip(index, layout.stride, strict=True)) for index in indices]


def memory(layout: Layout, start: int = 0) -> set[int]:
    """Every byte that a view occupies."""
    size = layout.itemsize
    return {start + e * size + byte for e in elements(layout) for byte in range(size)}


def layouts(count: int, seed: int) -> list[Layout]:
    """Small views of up to three axes, most of them with strides that do not nest."""
    draw, found = Random(seed), []
    for _ in range(count):
        rank = draw.randint(1, 3)
        shape = tuple(draw.choice((0, 1, 2, 2, 3, 4)) for _ in range(rank))
        stride = tuple(draw.choice((0, 1, 2, 3, 4, 6, 9, 10, 15)) for _ in range(rank))
        found.append(Layout(shape, stride, draw.choice((1, 2, 4))))
    return found


def test_extent_is_that_of_the_last_byte() -> None:
    assert Layout((3, 2), (5, 1), 4).extent == 4 * (2 * 5 + 1 + 1)
    assert Layout((3, 0), (5, 1), 4).extent == 0
    assert Layout((3, 2), (5, 1), 4).steps() == [(20, 2), (4, 1), (1, 3)]
    assert Layout((3, 1, 2), (0, 5, 1), 1).steps() == [(1, 1), (1, 0)]


def test_views_that_overlap_themselves() -> None:
    answers = set()
    for layout in layouts(1500, 0):
        places = elements(layout)
        expected = len(set(places)) < len(places)
        assert overlaps_itself(layout.shape, layout.stride) == expected, layout
        answers.add(expected)
    assert answers == {False, True}


def test_views_that_share_memory() -> None:
    draw, answers = Random(1), set()
    # The contract asks of views that hold elements.
    views = [layout for layout in layouts(2000, 2) if layout.extent]
    for first, second in zip(views, views[1:], strict=False):
        for distance in (draw.randint(-40, 60), -second.extent, first.extent, 1 - second.extent):
            expected = bool(memory(first) & memory(second, distance))
            assert share_memory(distance, first, second) == expected, (distance, first, second)
            answers.add(expected)
    assert answers == {False, True}


@pytest.mark.parametrize(("limit", "expected"), [(26, True), (27, False)])
def test_views_too_hard_to_decide_count_as_overlapping(
    monkeypatch: pytest.MonkeyPatch, limit: int, expected: bool
) -> None:
    """No sum of these steps is 402, which takes 27 branches to find out."""
    steps = [(26, 3), (35, 3), (37, 6), (38, 5)]
    reached = {
        sum(x * s for x, (s, _) in zip(xs, steps, strict=True))
        for xs in product(*(range(count + 1) for _, count in steps))
    }
    assert 402 not in reached
    monkeypatch.setattr(overlap, "BRANCH_LIMIT", limit)
    assert overlap._reachable(steps, 402) == expected


def hint(
    shape: tuple[int, ...], axes: tuple[str, ...], dims: dict[str, int], name: str = "x"
) -> str | None:
    """What a tensor of that shape is told, where the axes are wanted."""
    meta = Meta(shape, (1,) * len(shape), torch.float32, CPU)
    static = Static({name: meta}, 0, dims, (), (), ())
    return reshaping(Operand(name, axes, FLOATS, ""))(Call({}, {}, static, None))


PACKED = ("1", "T", "H")


@pytest.mark.parametrize(
    ("shape", "axes", "dims", "expected"),
    [
        ((1, 5, 3, 1), PACKED, {"T": 5, "H": 3}, "`.squeeze(-1)`"),
        ((1, 5, 1, 3), PACKED, {"T": 5, "H": 3}, "`.squeeze(2)`"),
        ((5, 1, 3), ("T", "H"), {"T": 5, "H": 3}, "`.squeeze(1)`"),
        ((1, 5, 3), ("T", "H"), {"T": 5, "H": 3}, "`.squeeze(0)`"),
        ((1, 5, 4, 1), PACKED, {"T": 5}, "`.squeeze(-1)`"),
        ((2, 5, 3), ("T", "H"), {"T": 5, "H": 3}, None),
        ((5, 3), PACKED, {"T": 5, "H": 3}, "`.unsqueeze(0)`"),
        ((5, 3), ("2", "T", "H"), {"T": 5, "H": 3}, None),
        ((5, 3), ("0", "T", "H"), {"T": 5, "H": 3}, None),
        ((5, 4), PACKED, {"T": 5, "H": 3}, None),
        ((2, 3), ("N",), {"N": 6}, "`.flatten()`"),
        ((2, 3), ("N",), {"N": 5}, None),
        ((2, 3), ("N",), {"N": 7}, None),
        ((6,), ("N",), {"N": 6}, None),
        ((7,), ("N",), {"N": 6}, None),
        ((1, 6), ("N",), {"N": 6}, "`.squeeze(0)`"),
        ((2, 3), ("N", "M"), {"N": 6, "M": 1}, None),
        ((4, 3), ("H", "4"), {"H": 3}, "`.transpose(-1, -2)`"),
        ((7, 4, 3), (">=N", "H", "4"), {"H": 3, "N": 2}, "`.transpose(-1, -2)`"),
        ((5, 3), ("H", "4"), {"H": 3}, None),
        ((5,), ("H", "4"), {"H": 3}, None),
        ((), ("H",), {"H": 3}, None),
        ((1, 5, 1), PACKED, {"T": 5, "H": 3}, None),
    ],
)
def test_a_view_that_fits_is_named(
    shape: tuple[int, ...], axes: tuple[str, ...], dims: dict[str, int], expected: str | None
) -> None:
    assert hint(shape, axes, dims) == expected


def test_one_strength_for_all_heads_is_told_how_to_be_shared() -> None:
    axes, sizes = ("1", "T", "HV"), {"T": 5, "HV": 4}
    shared = "one strength per value head; to share one: `.expand(-1, -1, 4)`"
    assert hint((1, 5, 1), axes, sizes, "beta") == shared
    assert hint((1, 5, 1), axes, sizes, "alpha") is None
    assert hint((1, 5, 1), axes, sizes, "gamma") is None
    for shape in ((1, 6, 1), (1, 4, 1), (2, 5, 1), (1, 5, 2), (1, 5, 0)):
        assert hint(shape, axes, sizes, "beta") is None
    assert hint((5, 1), ("T", "HV"), sizes, "beta") is None


def test_nothing_is_told_of_what_is_no_tensor() -> None:
    static = Static({}, 0, {}, (), (), ())
    assert reshaping(Operand("x", PACKED, FLOATS, ""))(Call({}, {}, static, None)) is None


@pytest.mark.parametrize(
    ("axes", "dtypes", "expected"),
    [
        (("N",), INT32, "`.to(torch.int32)`"),
        (("N", "L", "K"), INT32, "`.to(torch.int32)`"),
        (("H",), FP32, "`.to(torch.float32)` once, when it is loaded"),
        (("H", "K"), FP32, "`.to(torch.float32)` once, when it is loaded"),
        (("N", "V", "K"), FP32, None),
        (("N", "V", "K", "T"), FP32, None),
        (("H",), FLOATS, None),
        (("N",), (torch.int32, torch.int64), None),
        (("H",), None, None),
    ],
)
def test_a_dtype_is_named_where_a_copy_is_cheap(
    axes: tuple[str, ...], dtypes: tuple[torch.dtype, ...] | None, expected: str | None
) -> None:
    operand = Operand("x", axes, dtypes, "")
    assert has_dtype("c", operand, operand).hint == expected


def test_only_what_is_read_may_be_copied() -> None:
    assert has_unit_stride("c", Operand("x", PACKED, FLOATS, "")).hint == "`.contiguous()`"
    assert has_unit_stride("c", Operand("x", PACKED, FLOATS, "", written=True)).hint is None


def shared_by_hand(operands: list[Operand], tensors: dict[str, torch.Tensor]) -> dict[str, str]:
    """The first other operand, in order, that shares an element with each written one."""
    held = {
        name: memory(Layout(tuple(t.shape), t.stride(), t.itemsize), t.data_ptr())
        for name, t in tensors.items()
    }
    found = {}
    for one in operands:
        others = [o.name for o in operands if o is not one and held[one.name] & held[o.name]]
        if one.written and others:
            found[one.name] = others[0]
    return found


def test_written_operands_that_share_an_element() -> None:
    draw, buffer, seen = Random(3), torch.zeros(64), set()
    for _ in range(600):
        operands, tensors = [], {}
        for name in "abc":
            rows, columns = draw.randint(0, 3), draw.randint(1, 3)
            view = (rows, columns), (draw.choice((3, 4, 5, 6, 8)), draw.choice((1, 2)))
            tensors[name] = buffer.as_strided(*view, draw.randint(0, 24))
            operands.append(Operand(name, ("R", "C"), FP32, "", written=draw.random() < 0.5))
        static = Static.read(operands, lambda *_: None, tensors)
        expected = shared_by_hand(operands, tensors)
        pointers = [tensors[span.name].data_ptr() for span in static.spans]
        for given in (None, pointers):
            assert dict(Call(tensors, {}, static, given).shared()) == expected
        seen.add(tuple(sorted(expected)))
    assert len(seen) == 8


def test_what_was_accepted_is_forgotten_when_there_is_too_much_of_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(clause, "REMEMBERED", 2)
    MTP_VERIFY._accepted.clear()
    sizes = []
    for rows in (8, 9, 10, 9):
        MTP_VERIFY.validate(example(MTP_VERIFY, T=rows))
        sizes.append(len(MTP_VERIFY._accepted))
    assert sizes == [1, 2, 1, 2]


@pytest.mark.parametrize(("device", "refused"), [("cpu", False), ("xpu", False), ("meta", True)])
def test_the_first_operand_may_be_on_any_device_with_memory(device: str, refused: bool) -> None:
    operand = Operand("x", ("N",), FP32, "")
    static = Static({"x": Meta((1,), (1,), torch.float32, torch.device(device))}, 0, {}, (), (), ())
    said = is_on_device("c", operand, operand).predicate(Call({}, {}, static, None))
    assert said == (device if refused else None)


@pytest.mark.parametrize(
    ("capacity", "known"), [(0, None), (1, 1), (MAX_TOKENS, MAX_TOKENS), (MAX_TOKENS + 1, None)]
)
def test_the_capacity_limits_rows_where_it_is_one(capacity: int, known: int | None) -> None:
    call = MTP_VERIFY.call(example(MTP_VERIFY) | {"max_tokens": capacity})
    assert call.dim("max_tokens") == known
