"""The contract of the drop-in verify: the released checks in their order, then ours."""

from __future__ import annotations

from collections.abc import Mapping

from .call import Call, Meta
from .clause import Clause, Contract, ordered
from .contents import nonnegative_slots, offset_clauses, slot_clauses
from .mtp import (
    MAX_TOKENS,
    add_rows,
    groups,
    has_heads,
    has_requests,
    row_clauses,
)
from .operand import BF16, FP32, INT32, Operand, Option, products
from .options import holds, needed, option_clauses
from .pools import pool_clauses
from .tensors import is_deep, operand_clauses

NAME = "dspark"

OPERANDS = (
    Operand("x_q", ("1", "T", "H", "128"), BF16, "conv input of the query", required=True,
            unit_last=True, defines=("T", "H"), ranked=False),
    Operand("x_k", ("1", "T", "H", "128"), BF16, "conv input of the key", required=True,
            unit_last=True, ranked=False),
    Operand("x_v", ("1", "T", "H", "128"), BF16, "conv input of the value", required=True,
            unit_last=True, ranked=False),
    Operand("w_q", ("H*128", "4"), FP32, "taps, oldest first", required=True, unit_last=True),
    Operand("w_k", ("H*128", "4"), FP32, "taps, oldest first", required=True, unit_last=True),
    Operand("w_v", ("H*128", "4"), FP32, "taps, oldest first", required=True, unit_last=True),
    Operand("cs_q", (">=slots", "H*128", "3"), BF16, "last raw inputs, oldest first",
            required=True),
    Operand("cs_k", (">=slots", "H*128", "3"), BF16, "last raw inputs, oldest first",
            required=True),
    Operand("cs_v", (">=slots", "H*128", "3"), BF16, "last raw inputs, oldest first",
            required=True),
    Operand("g", ("1", "T", "H", "128"), BF16, "gate logits", required=True, unit_last=True,
            ranked=False),
    Operand("beta", ("1", "T", "H"), BF16, "write-strength logits", required=True, ranked=False),
    Operand("A_log", ("H",), FP32, "log rate of each head", required=True),
    Operand("dt_bias", ("H*128",), FP32, "gate bias", required=True),
    Operand("recurrent_state", ("slots", "H", "128", "128"), FP32, "state pool", required=True,
            defines=("slots",), ranked=False),
    Operand("intermediate_ssm", ("rows", ">=L", "H", "128", "128"), FP32,
            "state after every token; ignored beside rings", written=True, ranked=False),
    Operand("intermediate_state_indices", ("N",), INT32, "scratch row of each request",
            required=True),
    Operand("intermediate_conv_q", ("rows", ">=L", "H*128", "3"), BF16,
            "conv window after every token", required=True, written=True),
    Operand("intermediate_conv_k", ("rows", ">=L", "H*128", "3"), BF16,
            "conv window after every token", required=True, written=True),
    Operand("intermediate_conv_v", ("rows", ">=L", "H*128", "3"), BF16,
            "conv window after every token", required=True, written=True),
    Operand("ssm_state_indices", ("N",), INT32, "pool slot of each request; negative: padding",
            required=True),
    Operand("cu_seqlens", ("N+1",), INT32, "row offsets", required=True, defines=("N+1",)),
    Operand("replayssm_rawv", (">=slots", "H", "R", "128"), BF16, "ring: value after SiLU",
            written=True, unit_last=True, defines=("R",), group="rings"),
    Operand("replayssm_rawk", (">=slots", "H", "R", "128"), BF16,
            "ring: key after SiLU, before its norm", written=True, unit_last=True, group="rings"),
    Operand("replayssm_g", (">=slots", "H", "R", "128"), FP32, "ring: natural-log decay",
            written=True, unit_last=True, group="rings"),
    Operand("replayssm_beta", (">=slots", "H", "R"), FP32, "ring: write strength",
            written=True, group="rings"),
    Operand("onorm_gate", ("1", "T", "H", "128"), BF16, "output gate logits", unit_last=True,
            ranked=False, group="norm"),
    Operand("onorm_weight", ("128",), FP32, "weight of the output norm", ranked=False,
            group="norm"),
    Operand("out", ("1", "T", "H", "128"), BF16, "the result; None allocates it", written=True,
            unit_last=True),
)  # fmt: skip

OPTIONS = (
    Option("lower_bound", "float", "gate floor, negative", required=True),
    Option("scale", "float", "factor of q; None is 128 ** -0.5"),
    Option("onorm_eps", "float", "eps of the output norm, at least 0", group="norm"),
    Option("check_values", "bool", "check elements; None does so on a CPU only"),
)

RINGS = tuple(operand.name for operand in OPERANDS if operand.group == "rings")
NORM = ("onorm_gate", "onorm_weight", "onorm_eps")

# The order of the released function, one line for each of its checks.
RELEASED = (
    ("x_q.shape", "x_k.shape"),
    ("x_v.shape", "g.shape"),
    ("beta.shape",),
    ("cu_seqlens.requests", "x_q.tokens"),
    ("recurrent_state.shape",),
    tuple(f"recurrent_state.{aspect}" for aspect in ("dtype", "inner-dense", "pitch", "offset")),
    tuple(f"{name}.group" for name in RINGS),
    ("replayssm_rawv.depth", *(f"{name}.shape" for name in RINGS)),
    tuple(f"{name}.dtype" for name in RINGS),
    ("intermediate_ssm.shape", "intermediate_ssm.depth"),
    tuple(f"{name}.group" for name in NORM),
    ("onorm_gate.shape",),
    ("onorm_weight.shape",),
    ("onorm_gate.dtype", "onorm_weight.dtype"),
)


def derive(
    dims: dict[str, int], metas: Mapping[str, Meta], arguments: Mapping[str, object]
) -> None:
    """Add the products, N, the tokens L of each request and the scratch rows."""
    products(dims, "H*128", "128*128")
    if "N+1" in dims:
        dims["N"] = dims["N+1"] - 1
    if "T" in dims and dims.get("N", 0) > 0:
        dims["L"] = dims["T"] // dims["N"]
    add_rows(dims, metas)


def effective(arguments: Mapping[str, object]) -> Mapping[str, object]:
    """Return the arguments without the snapshot buffer where rings are given."""
    if arguments.get("replayssm_rawv") is None or arguments.get("intermediate_ssm") is None:
        return arguments
    return {**arguments, "intermediate_ssm": None}


def _has_tokens() -> Clause:
    def predicate(call: Call) -> str | None:
        rows, requests = call.dim("T"), call.dim("N")
        if rows is None or requests is None or requests < 1:
            return None
        return None if rows > 0 and rows % requests == 0 else f"T={rows}, N={requests}"

    wanted = "bring a fixed 1 + num_spec dense tokens per request, T a positive multiple of N"
    return Clause(f"{NAME}.x_q.tokens", "x_q", "shape", wanted, predicate)


def _has_capacity() -> Clause:
    def predicate(call: Call) -> str | None:
        tokens = call.dim("L")
        return f"{tokens}" if tokens is not None and tokens > MAX_TOKENS else None

    wanted = f"bring at most {MAX_TOKENS} tokens per request"
    return Clause(f"{NAME}.x_q.capacity", "x_q", "shape", wanted, predicate)


def _clauses() -> tuple[Clause, ...]:
    of = {operand.name: operand for operand in OPERANDS}
    found = [has_requests(NAME), has_heads(NAME), _has_tokens(), _has_capacity()]
    found += operand_clauses(NAME, OPERANDS)
    found.append(is_deep(NAME, "replayssm_rawv", "L"))
    found += option_clauses(NAME, OPTIONS)
    found += groups(NAME, OPERANDS, OPTIONS)
    found += pool_clauses(NAME, of["recurrent_state"])
    found += pool_clauses(NAME, of["intermediate_ssm"])
    found += [
        needed(NAME, "intermediate_ssm", "needed", "type",
               "be given when no rings are", _without_rings),
        holds(NAME, "lower_bound", "negative", "be negative", lambda x: x < 0),
        holds(NAME, "onorm_eps", "nonnegative", "be at least 0", lambda x: x >= 0),
    ]  # fmt: skip
    found += offset_clauses(NAME, "L")
    found += slot_clauses(NAME, nonnegative_slots)
    found += row_clauses(NAME)
    by_id = {clause.id: clause for clause in found}
    released = [by_id.pop(f"{NAME}.{name}") for check in RELEASED for name in check]
    return (*released, *ordered(by_id.values()))


def _without_rings(call: Call) -> str | None:
    return None if any(call.given(name) for name in RINGS) else "without rings"


DSPARK = Contract(
    NAME,
    "fused_kda_decode_mtp_dspark",
    OPERANDS,
    OPTIONS,
    _clauses(),
    derive,
    effective,
    released=tuple(map(len, RELEASED)),
)
