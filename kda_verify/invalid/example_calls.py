"""Small valid calls of every contract, with every optional argument given."""

from __future__ import annotations

from collections.abc import Mapping
from math import prod

import torch
from torch import Tensor

from kda_kernels.contract import Contract
from kda_kernels.contract.operand import Operand

Arguments = dict[str, object]

# L is the capacity of a request; a drop-in call brings exactly L tokens for each of N requests.
SIZES: dict[str, dict[str, int]] = {
    "mtp": dict(N=3, T=8, H=2, HV=4, K=16, V=32, slots=6, rows=5, max_tokens=4, L=4, R=5),
    "dspark": dict(N=3, T=9, H=2, slots=5, rows=4, L=3, R=4),
    "commit": dict(B=3, H=2, HV=4, K=16, V=32, slots=6, R=4),
    "conv-commit": dict(B=3, C_qk=32, C_v=64, slots=6, rows=5, depth=4),
}
SIZES["commit-spec"] = SIZES["commit"]


def example(contract: Contract, device: torch.device | str = "cpu", **sizes: int) -> Arguments:
    """Return a valid call; `sizes` replace dims of the default one."""
    return _fill(contract, {}, {**SIZES[contract.name], **sizes}, torch.device(device))


def complete(contract: Contract, valid: Mapping[str, object]) -> Arguments:
    """Return a valid call with every optional argument that `valid` leaves out.

    Where gate forms exclude each other the lower-bound form is chosen; a drop-in call keeps to
    rings and leaves out the snapshots that it would ignore.
    """
    call = contract.call(valid)
    meta = call.meta(contract.anchor)
    assert meta is not None, "a valid call has its first operand"
    lengths = call.static.dims
    sizes = {**SIZES[contract.name], **lengths}
    depth = max(lengths.get("max_tokens", 1), lengths.get("L", 1))
    if "R" not in lengths:
        sizes["R"] = depth + 1
    # Where no record is given yet, the rows that a call already names must fit.
    named = valid.get("intermediate_state_indices")
    sizes["rows"] = lengths.get("scratch_rows", sizes.get("N", 1) + 1)
    if "scratch_rows" not in lengths and isinstance(named, Tensor):
        sizes["rows"] = max([sizes["rows"], *(row + 1 for row in named.tolist())])
    sizes["L"] = depth
    return _fill(contract, valid, sizes, meta.device)


def _fill(
    contract: Contract, given: Mapping[str, object], sizes: dict[str, int], device: torch.device
) -> Arguments:
    full: Arguments = {}
    anchor = given.get(contract.anchor)
    activation = anchor.dtype if isinstance(anchor, Tensor) else torch.float32
    for operand in contract.operands:
        value = given.get(operand.name)
        if value is None:
            value = _tensor(operand, sizes, activation, device)
        full[operand.name] = value
    for option in contract.options:
        full[option.name] = given.get(option.name, option.default)
    if contract.name == "dspark":
        full["intermediate_ssm"] = None
    if "mamba_track_indices" in full and given.get("mamba_track_indices") is None:
        full["mamba_track_indices"] = full["mamba_steps_to_track"] = torch.full_like(
            _as_tensor(full["ssm_state_indices"]), -1
        )
    return {**full, **_options(contract, full, sizes)}


def _options(contract: Contract, full: Arguments, sizes: dict[str, int]) -> Arguments:
    """Return values for the options that have no valid default."""
    wanted: Arguments = {
        "max_tokens": sizes.get("max_tokens"),
        "lower_bound": -5.0,
        "scale": 0.25,
        "onorm_eps": 1e-5,
        "null_block_id": -1,
        "max_cache_len": sizes.get("R"),
        "num_k_heads": sizes.get("H"),
    }
    chosen = {name: value for name, value in wanted.items() if name in full and full[name] is None}
    if "gate_form" in full:
        chosen["gate_form"] = "lower_bound"
    return chosen


def _tensor(
    operand: Operand, sizes: dict[str, int], activation: torch.dtype, device: torch.device
) -> Tensor:
    shape = [_size(axis, sizes) for axis in operand.shape]
    if not operand.is_float:
        return torch.tensor(_indices(operand.name, shape[0], sizes), dtype=torch.int32).to(device)
    generator = torch.Generator().manual_seed(len(operand.name))
    dtype = activation if operand.dtypes is None else operand.dtypes[0]
    return torch.randn(shape, generator=generator).to(device, dtype)


def _size(axis: str, sizes: dict[str, int]) -> int:
    if axis == "N+1":
        return sizes["N"] + 1
    factors = axis.removeprefix(">=").split("*")
    return prod(int(factor) if factor.isdecimal() else sizes[factor] for factor in factors)


def _indices(name: str, count: int, sizes: dict[str, int]) -> list[int]:
    if name == "cu_seqlens":
        most, rows = sizes["L"], sizes["T"]
        return [min(n * most, rows) for n in range(count)]
    if name == "accept_lens":
        return [min(1, sizes.get("R", sizes.get("depth", 0)))] * count
    return list(range(count))


def _as_tensor(value: object) -> Tensor:
    assert isinstance(value, Tensor)
    return value
