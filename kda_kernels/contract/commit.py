"""The contracts of the commits: general, drop-in, and of the conv pools."""

from __future__ import annotations

from collections.abc import Mapping

from .call import Call, Meta
from .clause import Clause, Contract, ordered
from .contents import clause, in_range, repeated, slot_clauses, slots_past_null
from .operand import FLOATS, FP32, INT32, Operand, Option, products
from .options import equals_dim, holds, option_clauses
from .pools import pool_clauses
from .tensors import group_clauses, has_groups, has_size, operand_clauses

RECORDS = ("intermediate_conv_q", "intermediate_conv_k", "intermediate_conv_v")
TRACK_SLOTS, TRACK_STEPS = "mamba_track_indices", "mamba_steps_to_track"

_SLOTS = Operand("ssm_state_indices", ("B",), INT32, "pool slot of each request", required=True,
                 defines=("B",))  # fmt: skip
_ACCEPTED = Operand("accept_lens", ("B",), INT32, "accepted tokens, the bonus token counted",
                    required=True)  # fmt: skip

OPERANDS = (
    Operand("checkpoint_state", ("slots", "HV", "V", "K"), FP32, "state pool", required=True,
            written=True, stacks=True, defines=("slots", "HV", "V", "K")),
    Operand("rawv", (">=slots", "HV", "R", "V"), FLOATS, "ring: value after SiLU", required=True,
            unit_last=True, stacks=True, defines=("R",)),
    Operand("rawk", (">=slots", "H", "R", "K"), FLOATS, "ring: key after SiLU, before its norm",
            required=True, unit_last=True, stacks=True, defines=("H",)),
    Operand("gk", (">=slots", "HV", "R", "K"), FP32, "ring: natural-log decay", required=True,
            unit_last=True, stacks=True),
    Operand("beta", (">=slots", "HV", "R"), FP32, "ring: write strength", required=True,
            stacks=True),
    _SLOTS,
    _ACCEPTED,
    Operand(TRACK_SLOTS, ("B",), INT32, "slot for the state after the track step; -1: none",
            group="track"),
    Operand(TRACK_STEPS, ("B",), INT32, "track step, counted from 0; -1: none", group="track"),
)  # fmt: skip

_NULL = Option("null_block_id", "int", "requests with a slot up to this are skipped", required=True)
_CHECK = Option("check_values", "bool", "check elements; None does so on a CPU only")
OPTIONS = (
    _NULL,
    Option("use_qk_l2norm_in_kernel", "bool", "normalize k", True, required=True),
    _CHECK,
)
SPEC_OPTIONS = (
    Option("max_cache_len", "int", "R, the entries of a ring", required=True),
    Option("num_k_heads", "int", "H, the key heads", required=True),
    OPTIONS[1],
    Option("null_block_id", "int", _NULL.meaning, 0, required=True),
    _CHECK,
)

CONV_OPERANDS = (
    Operand("cs_q", ("slots", "C_qk", "3"), FLOATS, "conv pool", required=True, written=True,
            stacks=True, defines=("slots", "C_qk")),
    Operand("cs_k", (">=slots", "C_qk", "3"), None, "conv pool", required=True, written=True,
            stacks=True),
    Operand("cs_v", (">=slots", "C_v", "3"), None, "conv pool", required=True, written=True,
            stacks=True, defines=("C_v",)),
    Operand("intermediate_conv_q", ("rows", "depth", "C_qk", "3"), None,
            "conv window after every token", required=True, stacks=True),
    Operand("intermediate_conv_k", ("rows", "depth", "C_qk", "3"), None,
            "conv window after every token", required=True, stacks=True),
    Operand("intermediate_conv_v", ("rows", "depth", "C_v", "3"), None,
            "conv window after every token", required=True, stacks=True),
    Operand("intermediate_state_indices", ("B",), INT32, "scratch row of each request",
            required=True),
    _SLOTS,
    _ACCEPTED,
)  # fmt: skip


def derive(
    dims: dict[str, int], metas: Mapping[str, Meta], arguments: Mapping[str, object]
) -> None:
    """Add the products."""
    products(dims, "V*K")


def derive_conv(
    dims: dict[str, int], metas: Mapping[str, Meta], arguments: Mapping[str, object]
) -> None:
    """Add the rows and the tokens that all three records have."""
    shapes = [metas[name].shape for name in RECORDS if name in metas]
    if len(shapes) == len(RECORDS) and all(
        len(shape) == 4 + ("layers" in dims) for shape in shapes
    ):
        dims["scratch_rows"] = min(shape[-4] for shape in shapes)
        dims["capacity"] = min(shape[-3] for shape in shapes)


def accepted_clause(contract: str, limit: str) -> Clause:
    """Return the clause on accepted counts of live requests."""

    def predicate(call: Call) -> str | None:
        counts, most = call.values("accept_lens"), call.dim(limit)
        for n in slots_past_null(call):
            if most is not None and not 0 <= counts[n] <= most:
                return f"{counts[n]} for request {n}"
        return None

    wanted = f"count 0 to {{{limit}}} tokens"
    return clause(contract, "accept_lens", "range", wanted, predicate)


def storing(call: Call) -> list[int]:
    """Return the requests that store a tracked state: an accepted step, and a slot for it."""
    if not call.given(TRACK_SLOTS) or not call.given(TRACK_STEPS):
        return []
    slots, steps = call.values(TRACK_SLOTS), call.values(TRACK_STEPS)
    counts = call.values("accept_lens")
    live = slots_past_null(call)
    return [n for n in live if slots[n] >= 0 and 0 <= steps[n] < counts[n]]


def track_clauses(contract: str) -> list[Clause]:
    """Return the clauses on the slots of tracked states."""

    def once(call: Call) -> str | None:
        return repeated(call.values(TRACK_SLOTS), storing(call))

    def apart(call: Call) -> str | None:
        slots, tracked = call.values("ssm_state_indices"), call.values(TRACK_SLOTS)
        owners = {slots[n]: n for n in slots_past_null(call)}
        for n in storing(call):
            if tracked[n] in owners:
                return f"{tracked[n]} for request {n}, the slot of request {owners[tracked[n]]}"
        return None

    inside = in_range(TRACK_SLOTS, "slots", storing)
    return [
        clause(contract, TRACK_SLOTS, "range", "name slots below {slots}", inside),
        clause(contract, TRACK_SLOTS, "unique", "name a slot once", once),
        clause(contract, TRACK_SLOTS, "live", "name no slot of a live request", apart),
    ]


def null_clause(contract: str) -> Clause:
    """Return the clause that keeps negative slots skipped."""
    return holds(contract, "null_block_id", "range", "be at least -1", lambda x: x >= -1)


def _clauses(name: str, options: tuple[Option, ...]) -> tuple[Clause, ...]:
    found = [
        has_size(name, "checkpoint_state", "K"),
        has_size(name, "checkpoint_state", "V"),
        has_groups(name, "rawk", "H"),
    ]
    found += operand_clauses(name, OPERANDS)
    found += option_clauses(name, options)
    found += group_clauses(name, [o for o in OPERANDS if o.group])
    found += pool_clauses(name, OPERANDS[0])
    found.append(null_clause(name))
    found += slot_clauses(name, slots_past_null)
    found.append(accepted_clause(name, "R"))
    found += track_clauses(name)
    if options is SPEC_OPTIONS:
        found += [equals_dim(name, "max_cache_len", "R"), equals_dim(name, "num_k_heads", "H")]
    return ordered(found)


def _conv_clauses(name: str) -> tuple[Clause, ...]:
    rows = "intermediate_state_indices"
    found = operand_clauses(name, CONV_OPERANDS)
    found += option_clauses(name, (_NULL, _CHECK))
    found.append(null_clause(name))
    found += slot_clauses(name, slots_past_null)
    inside = in_range(rows, "scratch_rows", slots_past_null, floor=0)
    found.append(clause(name, rows, "range", "name rows from 0 to below {scratch_rows}", inside))
    found.append(accepted_clause(name, "capacity"))
    return ordered(found)


COMMIT = Contract(
    "commit", "kda_replay_commit", OPERANDS, OPTIONS, _clauses("commit", OPTIONS), derive
)
COMMIT_SPEC = Contract(
    "commit-spec",
    "commit_kda_replayssm_spec",
    OPERANDS,
    SPEC_OPTIONS,
    _clauses("commit-spec", SPEC_OPTIONS),
    derive,
)
CONV_COMMIT = Contract(
    "conv-commit",
    "kda_conv_commit",
    CONV_OPERANDS,
    (_NULL, _CHECK),
    _conv_clauses("conv-commit"),
    derive_conv,
)
