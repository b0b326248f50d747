"""The budget fits correct kernels of its class, and no looser one; the whole is `calibrate`."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from kda_ref import budget, kda_mtp_verify
from kda_verify.emulation.arithmetic import Arithmetic, cut_to_tf32, three_products, to_tf32
from kda_verify.emulation.calibrate import HIGHEST, LOWEST, Row, measure, ratios
from kda_verify.emulation.classes import FORMS, Emulation
from kda_verify.emulation.regimes import REGIMES, draw
from kda_verify.emulation.report import BEGIN, END, write_tables

QUICK = ("serving", "saturated", "softplus", "channel -500", "doubled", "near repeated", "spread")
FORMS_HERE = ("token", "one-pass", "chunk-16")


def short(name: str) -> Any:
    return replace(REGIMES[name], lengths=(24, 16))


@pytest.mark.parametrize("name", QUICK)
def test_correct_emulations_lie_in_the_band_of_their_class(name: str) -> None:
    rows = measure(name, forms=FORMS_HERE, regime=short(name))
    assert len(rows) == 12
    found = [f"{row.form}, {row.kind}: {p}" for row in rows for p in row.problems()]
    assert found == []


@pytest.mark.parametrize("site", ["keys", "state", "update", "output"])
def test_one_product_in_tf32_leaves_the_fp32_budget(site: str) -> None:
    regime = replace(short("plain output"), conv=False)
    arguments = draw(regime)
    one: dict[str, Any] = {site: "tf32"}
    for form in ("one-pass", "chunk-16"):
        emulation = Emulation(form, Arithmetic(**one))
        out = emulation(**arguments)
        oracle = kda_mtp_verify(**arguments, precision=emulation.precision.at_class("fp32"))
        found = ratios(arguments, out, oracle, 0)
        assert max(found.values()) > 1, f"{form} {found}"


def test_a_loose_budget_shows(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(budget, "C_DECAY", 100 * budget.C_DECAY)
    rows = measure("spread", forms=["token"], regime=short("spread"))
    assert any(f"at least {LOWEST}" in problem for row in rows for problem in row.problems())


def test_a_tight_budget_shows(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("C_DECAY", "C_RESIDUAL", "C_UPDATE"):
        monkeypatch.setattr(budget, name, 0.0)
    rows = measure("spread", forms=["token"], kinds=["fp32"], regime=short("spread"))
    assert any(f"at most {HIGHEST}" in problem for row in rows for problem in row.problems())


def test_a_row_names_what_is_outside() -> None:
    fine = Row("r", "f", "tf32", {"out": 0.1, "state": 0.1, "rings": 0.0}, {"fp32": {"out": 11.0}})
    assert list(fine.problems()) == []
    for change in (
        {"own": {"out": 0.6}}, {"own": {"state": 0.001}}, {"own": {"rings": 0.6}},
        {"over": {"fp32": {"state": 9.0}}},
    ):  # fmt: skip
        assert len(list(replace(fine, **change).problems())) == 1


@pytest.mark.parametrize("kind", ["fp32", "tf32x3", "tf32", "tf32-cut", "bf16"])
@pytest.mark.parametrize("form", FORMS)
def test_emulations_do_not_round_where_nothing_rounds(form: str, kind: str) -> None:
    """One-hot keys, small integers, b in {0, 1}, no decay: the oracle's bits, in every class."""
    length, k, v = 20, 16, 8
    random = torch.Generator().manual_seed(3)

    def integers(*shape: int) -> torch.Tensor:
        return torch.randint(-4, 5, shape, generator=random).float()

    def one_hot() -> torch.Tensor:
        which = torch.randint(0, 6, (1, length, 1), generator=random)
        return torch.nn.functional.one_hot(which, k).float()

    snapshots = torch.full((2, length, 2, v, k), torch.nan)
    arguments: dict[str, Any] = {
        "x_q": one_hot(), "x_k": one_hot(), "x_v": integers(1, length, 2, v),
        "g": torch.zeros(1, length, 2, k),
        "beta": torch.randint(0, 2, (1, length, 2), generator=random).float(),
        "recurrent_state": integers(3, 2, v, k), "intermediate_ssm": snapshots,
        "intermediate_state_indices": torch.tensor([1, 0, 0]),
        "ssm_state_indices": torch.tensor([2, -1, 0]), "cu_seqlens": torch.tensor([0, 9, 12, 18]),
        "max_tokens": length, "gate_form": "given", "beta_form": "given", "scale": 0.5,
        "use_qk_l2norm_in_kernel": False,
    }  # fmt: skip
    out = Emulation(form, kind)(**arguments)
    oracle = kda_mtp_verify(**arguments)
    assert torch.equal(out.double(), oracle.out.value)
    for row, n, count in ((1, 0, 9), (0, 2, 6)):
        trace = oracle.requests[n]
        assert trace is not None
        assert trace.snapshots is not None
        assert torch.equal(snapshots[row, :count].double(), trace.snapshots.value)
        assert snapshots[row, count:].isnan().all()


def test_tf32_rounding() -> None:
    one = torch.tensor([1 + 2.0**-11, 1 + 1.01 * 2.0**-11, 1 + 0.99 * 2.0**-11, -1 - 2.0**-11])
    assert (to_tf32(one) - one.sign()).tolist() == [2.0**-10, 2.0**-10, 0, -(2.0**-10)]
    assert torch.equal(cut_to_tf32(one), one.sign())
    special = torch.tensor([torch.inf, -torch.inf, torch.nan, 0.0])
    assert torch.equal(to_tf32(special)[:2], special[:2])
    assert to_tf32(special)[2].isnan()
    x, y = (torch.randn(8, 8, generator=torch.Generator().manual_seed(n)) for n in (0, 1))
    wide = x.double() @ y.double()
    assert (three_products(x, y) - wide).abs().max() < 1e-5 < (to_tf32(x) @ y - wide).abs().max()


def test_tables_replace_what_stands_between_the_markers(tmp_path: Path) -> None:
    document = tmp_path / "tolerance.md"
    document.write_text(f"before\n{BEGIN}\nold\n{END}\nafter\n", encoding="utf-8")
    rows = measure("mild", forms=["token"], regime=short("mild"))
    write_tables(document, rows)
    text = document.read_text(encoding="utf-8")
    assert text.startswith(f"before\n{BEGIN}\n")
    assert text.endswith(f"{END}\nafter\n")
    assert "old" not in text
    assert text.count("| mild |") == 2
    document.write_text("no markers", encoding="utf-8")
    with pytest.raises(ValueError, match="must hold the markers"):
        write_tables(document, rows)
