"""The contract of the general multi-token verify."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from .call import Call, Meta
from .clause import Clause, Contract, ordered
from .contents import clause, in_range, nonnegative_slots, offset_clauses, slot_clauses, unique
from .operand import FLOATS, FP32, INT32, Operand, Option, products, whole
from .options import holds, needed, option_clauses, unwanted
from .pools import pool_clauses
from .tensors import group_clauses, has_groups, has_size, is_deep, operand_clauses

NAME = "mtp"
MAX_TOKENS = 16
RECORDS = (
    "intermediate_ssm", "intermediate_conv_q", "intermediate_conv_k", "intermediate_conv_v",
)  # fmt: skip

OPERANDS = (
    Operand("x_q", ("1", "T", "H", "K"), FLOATS, "query: conv input, or its result after SiLU",
            required=True, unit_last=True, defines=("T", "H", "K")),
    Operand("x_k", ("1", "T", "H", "K"), None, "key, alike", required=True, unit_last=True),
    Operand("x_v", ("1", "T", "HV", "V"), None, "value, alike", required=True, unit_last=True,
            defines=("HV", "V")),
    Operand("w_q", ("H*K", "4"), FP32, "taps, oldest first", unit_last=True, group="taps"),
    Operand("w_k", ("H*K", "4"), FP32, "taps, oldest first", unit_last=True, group="taps"),
    Operand("w_v", ("HV*V", "4"), FP32, "taps, oldest first", unit_last=True, group="taps"),
    Operand("cs_q", (">=slots", "H*K", "3"), None, "last raw inputs, oldest first", group="taps"),
    Operand("cs_k", (">=slots", "H*K", "3"), None, "last raw inputs, oldest first", group="taps"),
    Operand("cs_v", (">=slots", "HV*V", "3"), None, "last raw inputs, oldest first", group="taps"),
    Operand("g", ("1", "T", "HV", "K"), FLOATS, "gate logits, or natural-log decay",
            required=True, unit_last=True),
    Operand("beta", ("1", "T", "HV"), FLOATS, "write-strength logits, or the strength",
            required=True),
    Operand("A_log", ("HV",), FP32, "log rate of each head"),
    Operand("dt_bias", ("HV*K",), FP32, "gate bias; None is zero"),
    Operand("recurrent_state", ("slots", "HV", "V", "K"), FP32, "state pool", required=True,
            defines=("slots",)),
    Operand("intermediate_ssm", ("rows", ">=max_tokens", "HV", "V", "K"), FP32,
            "state after every token", written=True),
    Operand("intermediate_state_indices", ("N",), INT32, "scratch row of each request"),
    Operand("intermediate_conv_q", ("rows", ">=max_tokens", "H*K", "3"), None,
            "conv window after every token", written=True, group="windows"),
    Operand("intermediate_conv_k", ("rows", ">=max_tokens", "H*K", "3"), None,
            "conv window after every token", written=True, group="windows"),
    Operand("intermediate_conv_v", ("rows", ">=max_tokens", "HV*V", "3"), None,
            "conv window after every token", written=True, group="windows"),
    Operand("ssm_state_indices", ("N",), INT32, "pool slot of each request; negative: padding",
            required=True),
    Operand("cu_seqlens", ("N+1",), INT32, "row offsets", required=True, defines=("N+1",)),
    Operand("replayssm_rawv", (">=slots", "HV", "R", "V"), None, "ring: value after SiLU",
            written=True, unit_last=True, defines=("R",), group="rings"),
    Operand("replayssm_rawk", (">=slots", "H", "R", "K"), None,
            "ring: key after SiLU, before its norm", written=True, unit_last=True, group="rings"),
    Operand("replayssm_g", (">=slots", "HV", "R", "K"), FP32, "ring: natural-log decay",
            written=True, unit_last=True, group="rings"),
    Operand("replayssm_beta", (">=slots", "HV", "R"), FP32, "ring: write strength",
            written=True, group="rings"),
    Operand("onorm_gate", ("1", "T", "HV", "V"), FLOATS, "output gate logits", unit_last=True,
            group="norm"),
    Operand("onorm_weight", ("V",), FP32, "weight of the output norm", group="norm"),
    Operand("out", ("1", "T", "HV", "V"), None, "the result; None allocates it", written=True,
            unit_last=True),
)  # fmt: skip

OPTIONS = (
    Option("max_tokens", "int", "most rows of one request, 1 to 16", required=True),
    Option("gate_form", "str", "how g becomes the log decay", "lower_bound", required=True,
           choices=("lower_bound", "softplus", "given")),
    Option("lower_bound", "float", "gate floor, negative; for its form only"),
    Option("beta_form", "str", "how beta becomes the write strength", "sigmoid", required=True,
           choices=("sigmoid", "twice_sigmoid", "given")),
    Option("use_qk_l2norm_in_kernel", "bool", "normalize q and k", True, required=True),
    Option("scale", "float", "factor of q; None is K ** -0.5"),
    Option("onorm_eps", "float", "eps of the output norm, at least 0", group="norm"),
    Option("check_values", "bool", "check elements; None does so on a CPU only"),
)  # fmt: skip

GROUPS = ("taps", "windows", "rings", "norm")


def derive(
    dims: dict[str, int], metas: Mapping[str, Meta], arguments: Mapping[str, object]
) -> None:
    """Add the products, N, the capacity and the scratch rows every record has."""
    products(dims, "H*K", "HV*V", "HV*K", "V*K")
    if "N+1" in dims:
        dims["N"] = dims["N+1"] - 1
    capacity = whole(arguments, "max_tokens")
    if capacity is not None and 1 <= capacity <= MAX_TOKENS:
        dims["max_tokens"] = capacity
    add_rows(dims, metas)


def add_rows(dims: dict[str, int], metas: Mapping[str, Meta]) -> None:
    """Add the number of scratch rows: those of the shortest record."""
    rows = [metas[name].shape[0] for name in RECORDS if name in metas and metas[name].shape]
    if rows:
        dims["scratch_rows"] = min(rows)


def groups(
    contract: str, operands: tuple[Operand, ...], options: tuple[Option, ...]
) -> list[Clause]:
    """Return the clauses of every group of arguments that come together."""
    members: tuple[Operand | Option, ...] = (*operands, *options)
    found: list[Clause] = []
    for group in GROUPS:
        together = [member for member in members if member.group == group]
        found += group_clauses(contract, together)
    return found


def row_clauses(contract: str) -> list[Clause]:
    """Return the clauses on the elements of the scratch rows."""
    name = "intermediate_state_indices"

    def where_recorded(call: Call) -> list[int]:
        return nonnegative_slots(call) if "scratch_rows" in call.static.dims else []

    inside = in_range(name, "scratch_rows", where_recorded, floor=0)
    return [
        clause(contract, name, "range", "name rows from 0 to below {scratch_rows}", inside),
        clause(contract, name, "unique", "name a live row once", unique(name, where_recorded)),
    ]


def has_requests(contract: str) -> Clause:
    """Return the clause that there is a request: a verify of none would leave rows unwritten."""

    def predicate(call: Call) -> str | None:
        count = call.dim("N")
        return None if count is None or count >= 1 else f"{count + 1} of them"

    wanted = "hold the N + 1 offsets of at least one request"
    return Clause(f"{contract}.cu_seqlens.requests", "cu_seqlens", "shape", wanted, predicate)


def has_heads(contract: str) -> Clause:
    """Return the clause that there are heads."""

    def predicate(call: Call) -> str | None:
        return "H=0" if call.dim("H") == 0 else None

    return Clause(f"{contract}.x_q.heads", "x_q", "shape", "have at least one head", predicate)


def _form(wanted: str, is_it: bool) -> Callable[[Call], str | None]:
    def reason(call: Call) -> str | None:
        form = call.argument("gate_form")
        return f"with gate_form={form!r}" if (form == wanted) is is_it else None

    return reason


def _recorded(call: Call) -> str | None:
    beside = next((name for name in RECORDS if call.given(name)), None)
    return None if beside is None else f"beside `{beside}`"


def _without_taps(call: Call) -> str | None:
    return None if call.given("w_q") else "without taps"


def _clauses() -> tuple[Clause, ...]:
    of = {operand.name: operand for operand in OPERANDS}
    found = [
        has_requests(NAME),
        has_heads(NAME),
        has_size(NAME, "x_q", "K"),
        has_groups(NAME, "x_v", "HV"),
        has_size(NAME, "x_v", "V"),
        is_deep(NAME, "replayssm_rawv", "max_tokens"),
    ]
    found += operand_clauses(NAME, OPERANDS)
    found += option_clauses(NAME, OPTIONS)
    found += groups(NAME, OPERANDS, OPTIONS)
    found.append(
        needed(NAME, "intermediate_state_indices", "needed", "type",
               "be given when snapshots or windows are recorded", _recorded)
    )  # fmt: skip
    found += pool_clauses(NAME, of["recurrent_state"])
    found += pool_clauses(NAME, of["intermediate_ssm"])
    limit = f"be in 1 to {MAX_TOKENS}"
    found += [
        holds(NAME, "max_tokens", "range", limit, lambda x: 1 <= x <= MAX_TOKENS),
        holds(NAME, "lower_bound", "negative", "be negative", lambda x: x < 0),
        holds(NAME, "onorm_eps", "nonnegative", "be at least 0", lambda x: x >= 0),
    ]
    found += offset_clauses(NAME, "max_tokens")
    found += slot_clauses(NAME, nonnegative_slots)
    found += row_clauses(NAME)
    found += [
        needed(NAME, "A_log", "needed", "conflict",
               "be given when gate_form is 'softplus'", _form("softplus", True)),
        unwanted(NAME, "A_log", "unwanted",
                 "be None when gate_form is 'given'", _form("given", True)),
        unwanted(NAME, "dt_bias", "unwanted",
                 "be None when gate_form is 'given'", _form("given", True)),
        needed(NAME, "lower_bound", "needed", "conflict",
               "be given when gate_form is 'lower_bound'", _form("lower_bound", True)),
        unwanted(NAME, "lower_bound", "unwanted",
                 "be None unless gate_form is 'lower_bound'", _form("lower_bound", False)),
    ]  # fmt: skip
    # The three windows come together, so one clause speaks for them.
    found.append(
        unwanted(NAME, RECORDS[1], "unwanted", "be None when no taps are given", _without_taps)
    )
    return ordered(found)


MTP_VERIFY = Contract(NAME, "kda_mtp_verify", OPERANDS, OPTIONS, _clauses(), derive)
