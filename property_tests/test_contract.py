"""Every clause from both sides, and every byte as it was after a refusal."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

import kda_kernels
from kda_kernels.contract import CONTRACTS, DSPARK, MTP_VERIFY, Clause, Contract, markdown
from kda_verify.cases import strategies
from kda_verify.cases.build import build
from kda_verify.cases.case import Case
from kda_verify.invalid.boundaries import boundaries
from kda_verify.invalid.catalogue import Mutation, mutations
from kda_verify.invalid.example_calls import complete, example

FUNCTIONS: dict[str, Callable[..., Any]] = {
    "mtp": kda_kernels.kda_mtp_verify,
    "dspark": kda_kernels.fused_kda_decode_mtp_dspark,
    "commit": kda_kernels.kda_replay_commit,
    "commit-spec": kda_kernels.commit_kda_replayssm_spec,
    "conv-commit": kda_kernels.kda_conv_commit,
}
ROOT = Path(__file__).resolve().parent.parent
BY_NAME = pytest.mark.parametrize("contract", CONTRACTS, ids=lambda c: c.name)


def contents(arguments: Mapping[str, object]) -> dict[str, bytes]:
    """All bytes of the storage behind every tensor argument."""
    found = {}
    for name, value in arguments.items():
        if not isinstance(value, Tensor) or value.layout != torch.strided or value.is_nested:
            continue
        if value.device.type == "meta" or value.is_quantized:
            continue
        memory = torch.empty(0, dtype=torch.uint8).set_(value.untyped_storage())
        found[name] = memory.numpy().tobytes()
    return found


def clause_of(contract: Contract, ident: str) -> Clause:
    return next(c for c in contract.clauses if c.id == ident)


def refusal(contract: Contract, mutation: Mutation, valid: Mapping[str, object]) -> str:
    """Make the mutated call, demand a ValueError and untouched memory, return the message."""
    arguments = mutation(valid)
    with mutation.context():
        before = contents(arguments)
        with pytest.raises(ValueError) as caught:
            FUNCTIONS[contract.name](**arguments)
        assert contents(arguments) == before, f"{mutation.id} wrote before it refused"
    return str(caught.value)


@BY_NAME
@pytest.mark.parametrize("warm", [False, True], ids=["cold", "warm"])
def test_every_mutation_is_refused_by_its_clause(contract: Contract, warm: bool) -> None:
    """Cold and after the valid call was accepted, which the contract may remember."""
    warnings.simplefilter("ignore")
    valid = example(contract)
    wrong = []
    for mutation in mutations(contract):
        contract._accepted.clear()
        if warm:
            contract.validate(mutation.base(dict(valid)))
        message = refusal(contract, mutation, valid)
        argument = clause_of(contract, mutation.clause_id).argument
        if not message.startswith(f"`{argument}` must ") or ", got " not in message:
            wrong.append((mutation.id, message))
    assert not wrong


@BY_NAME
def test_every_clause_has_a_mutation(contract: Contract) -> None:
    tripped = {m.clause_id for m in mutations(contract)}
    assert tripped == {c.id for c in contract.clauses}


@BY_NAME
def test_the_first_violated_clause_is_the_one_meant(contract: Contract) -> None:
    valid = example(contract)
    for mutation in mutations(contract):
        with mutation.context():
            call = contract.call(mutation(valid))
            first = next(c for c in contract.clauses if c.predicate(call) is not None)
        assert first.id == mutation.clause_id, mutation.id


@BY_NAME
def test_every_boundary_is_accepted(contract: Contract) -> None:
    valid = example(contract)
    for boundary in boundaries(contract):
        contract._accepted.clear()
        with boundary.context():
            contract.validate(boundary(valid))


@BY_NAME
def test_accepted_boundaries_run(contract: Contract, device: str) -> None:
    """Interpreted kernels are slow: every sixteenth boundary is carried through."""
    valid = example(contract, device)
    for boundary in boundaries(contract)[::16]:
        with boundary.context(), torch.no_grad():
            FUNCTIONS[contract.name](**boundary(valid))


@BY_NAME
def test_clause_ids_are_unique_and_stages_in_order(contract: Contract) -> None:
    ids = [c.id for c in contract.clauses]
    assert len(set(ids)) == len(ids)
    assert all(i.startswith(f"{contract.name}.") for i in ids)


def test_documentation_is_current() -> None:
    assert (ROOT / "docs" / "contract.md").read_text() == markdown.document()


def beta_refused(shape: tuple[int, ...], contract: Contract) -> str:
    valid = example(contract)
    beta = valid["beta"]
    assert isinstance(beta, Tensor)
    with pytest.raises(ValueError) as caught:
        FUNCTIONS[contract.name](**{**valid, "beta": beta.new_zeros(shape)})
    return str(caught.value)


@pytest.mark.parametrize("contract", [MTP_VERIFY, DSPARK], ids=lambda c: c.name)
def test_beta_of_another_rank_is_refused_with_both_shapes_and_the_way_out(
    contract: Contract,
) -> None:
    beta = example(contract)["beta"]
    assert isinstance(beta, Tensor)
    _, rows, heads = beta.shape
    for shape, way_out in (
        ((1, rows, heads, 1), "squeeze(-1)"),
        ((rows, heads), "unsqueeze(0)"),
        ((1, rows, 1), "head"),
    ):
        message = beta_refused(shape, contract)
        assert message.startswith("`beta` must ")
        assert f"[1, T={rows}, H" in message
        assert f"={heads}]" in message
        assert str(list(shape)) in message.split(", got ")[1]
        assert way_out in message


def test_beta_of_one_head_may_be_written_with_a_last_axis_of_one(device: str) -> None:
    valid = example(DSPARK, device, H=1)
    beta = valid["beta"]
    assert isinstance(beta, Tensor)
    assert beta.shape[-1] == 1
    kda_kernels.fused_kda_decode_mtp_dspark(**valid)  # type: ignore[arg-type]


def test_int64_indices_are_refused_with_the_way_out() -> None:
    valid = example(MTP_VERIFY)
    indices = valid["ssm_state_indices"]
    assert isinstance(indices, Tensor)
    with pytest.raises(ValueError, match=r"int32.*int64.*\.to\(torch\.int32\)"):
        kda_kernels.kda_mtp_verify(**{**valid, "ssm_state_indices": indices.long()})  # type: ignore[arg-type]


@BY_NAME
@pytest.mark.parametrize("change", ["unknown", "missing"])
def test_unknown_and_missing_keywords_are_type_errors(contract: Contract, change: str) -> None:
    arguments = example(contract)
    if change == "unknown":
        arguments["beta_is_raw"] = True
    else:
        del arguments["ssm_state_indices"]
    with pytest.raises(TypeError):
        FUNCTIONS[contract.name](**arguments)


@given(case=strategies.verify_cases(most=3), data=st.data())
def test_single_mutations_of_drawn_calls_are_refused(case: Case, data: st.DataObject) -> None:
    """Any valid call, completed, is one step away from refusal by any clause."""
    lengths = (*case.lengths, 1, max(case.capacity, 1))
    roomy = Case(
        **{
            **vars(case),
            "lengths": lengths if case.capacity > 1 else (*case.lengths, 1, 1),
            "spare_slots": 2,
            "padding": (),
            "capacity": max(case.capacity, 2),
        }
    )
    valid = complete(MTP_VERIFY, build(roomy).arguments)
    mutation = data.draw(st.sampled_from(mutations(MTP_VERIFY)))
    message = refusal(MTP_VERIFY, mutation, valid)
    assert message.startswith(f"`{clause_of(MTP_VERIFY, mutation.clause_id).argument}` must ")
