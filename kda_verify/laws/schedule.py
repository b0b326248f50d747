"""Laws of serving: a draft in two parts, and a verify followed by a commit."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import torch
from torch import Tensor

from kda_ref import Precision

from ..cases.assembly import Built
from ..cases.draw import Draw
from ..operations.facts import HISTORIES, SLOTS, WINDOWS
from ..operations.verify import RINGS
from .calls import Call
from .results import Arguments, Results, bound_verify, lengths, live
from .rows import Pairs, Seat, of, reseat, seats


def recording(arguments: Arguments, *, snapshots: bool, rings: bool) -> Arguments:
    """Build the same verify with scratch of its own: windows where it has a convolution."""
    changed = {k: v for k, v in arguments.items() if k not in ("intermediate_ssm", *WINDOWS)}
    changed = {k: v for k, v in changed.items() if k not in RINGS.values()}
    state, tokens = arguments["recurrent_state"], arguments["max_tokens"]
    count, x_k, x_v = len(lengths(arguments)), arguments["x_k"], arguments["x_v"]
    rows = torch.arange(count, dtype=torch.int32, device=state.device)
    changed["intermediate_state_indices"] = rows
    if snapshots:
        shape = (count, tokens, *state.shape[1:])
        changed["intermediate_ssm"] = state.new_full(shape, torch.nan)
    if arguments.get("cs_q") is not None:
        for pool, window in zip(HISTORIES, WINDOWS, strict=True):
            shape = (count, tokens, *arguments[pool].shape[1:])
            changed[window] = arguments[pool].new_full(shape, torch.nan)
    elif not snapshots:
        del changed["intermediate_state_indices"]
    if rings:
        slots, heads, value_heads = state.shape[0], x_k.shape[2], x_v.shape[2]
        size_k, size_v = x_k.shape[3], x_v.shape[3]
        for name, like, shape in (
            ("replayssm_rawv", x_v, (value_heads, tokens, size_v)),
            ("replayssm_rawk", x_k, (heads, tokens, size_k)),
            ("replayssm_g", state, (value_heads, tokens, size_k)),
            ("replayssm_beta", state, (value_heads, tokens)),
        ):
            changed[name] = like.new_full((slots, *shape), torch.nan)
    return changed


def split_and_resume(built: Built, call: Call, draw: Draw) -> Pairs:
    """A verified prefix, committed, then the rest, give what one verify gives."""
    whole = recording(built.arguments, snapshots=True, rings=True)
    cut = draw.integer("cut", 1, max(max(lengths(whole)), 2))
    first = call("verify", whole)
    head, tail = _parts(whole, cut)
    before = call("verify", head)
    after = call("verify", advance(tail, before, call))
    yield of(first, live(whole)), joined(before, after, live(whole))


def split_sequences(built: Built, call: Call, draw: Draw) -> Pairs:
    """A prefix, then the rest from its final state, give what whole sequences give."""
    arguments = built.arguments
    cut = draw.integer("cut", 1, max(max(lengths(arguments)), 2))
    first = call("recurrent", arguments)
    head, tail = _parts(arguments, cut)
    before = call("recurrent", head)
    everyone = range(len(lengths(arguments)))
    finals = {n: before["state", n][0] for n in live(arguments)}
    if tail["state_layout"] == "kv":
        finals = {n: state.mT for n, state in finals.items()}
    if (slots := arguments.get(SLOTS)) is None:
        tail["initial_state"] = torch.stack(list(finals.values()))
    else:
        tail["initial_state"] = arguments["initial_state"].clone()
        for n, state in finals.items():
            tail["initial_state"][slots[n]] = state
    after = call("recurrent", tail)
    outputs = joined(before, after, everyone, "out")
    yield of(first, everyone), {**outputs, **of(after, everyone, "state")}


def split_commit(built: Built, call: Call, draw: Draw) -> Pairs:
    """Some accepted tokens committed, then the others, leave what one commit leaves."""
    arguments = {k: v for k, v in built.arguments.items() if not k.startswith("mamba_")}
    counts = lengths(arguments)
    cut = draw.integer("cut", 1, max(max(counts), 2))
    first = call("commit", arguments)
    half = call("commit", {**arguments, "accept_lens": _counts(arguments, 0, cut)})
    rest: Arguments = {**arguments, "accept_lens": _counts(arguments, cut, None)}
    for name, axis in (("rawv", -2), ("rawk", -2), ("gk", -2), ("beta", -1)):
        depth = arguments[name].shape[axis]
        rest[name] = arguments[name].narrow(axis, min(cut, depth - 1), max(depth - cut, 1))
    pool = arguments["checkpoint_state"].clone()
    slots = arguments["ssm_state_indices"].tolist()
    for n in live(arguments):
        (pool if built.case.layers else pool[None])[:, slots[n]] = half["state", n]
    yield first, call("commit", {**rest, "checkpoint_state": pool})


def verify_then_commit(built: Built, call: Call, draw: Draw) -> Pairs:
    """A verify, then a commit of a tokens, leaves what a plain decode steps leave, for every a.

    Their outputs agree too, so that a fault which commit and snapshots share does not cancel.
    """
    drafted = recording(built.arguments, snapshots=False, rings=True)
    whole = call("verify", drafted)
    step = dict(drafted)
    for accepted, rows in enumerate(_steps(drafted)):
        taken = slice(max(accepted - 1, 0), accepted)
        drafts = {key: value[taken] for key, value in of(whole, live(drafted), "out").items()}
        outputs = drafts
        if accepted:
            one = recording(reseat(step, rows), snapshots=True, rings=False)
            one["max_tokens"] = 1
            results = call("verify", one)
            outputs = of(results, live(drafted), "out")
            step = {**step, **_pools(advance(one, results, call))}
        committed = _committed(drafted, whole, accepted, call)
        yield {**committed, **drafts}, {**_held(step, drafted), **outputs}


def split_bounds(built: Built, precision: Precision, draw: Draw) -> Iterator[Results]:
    """Twice the budget of one verify for what the state reaches; what is recorded is equal."""
    whole = recording(built.arguments, snapshots=True, rings=True)
    both = _twice(bound_verify(whole, precision))
    yield {k: v if k[0] in ("out", "snapshots") else v * 0.0 for k, v in both.items()}


def verify_then_commit_bounds(
    built: Built, precision: Precision, draw: Draw
) -> Iterator[Results]:  # fmt: skip
    """Add the budget of plain steps to that of states replayed from rings of the dtype of x."""
    drafted = recording(built.arguments, snapshots=True, rings=True)
    dtype = drafted["x_v"].dtype
    narrow = None if dtype == torch.float32 else dtype
    plain = bound_verify(drafted, precision)
    replayed = bound_verify(drafted, precision, through_rings=narrow)
    counts = lengths(drafted)
    for accepted in range(max(counts) + 1):
        found: Results = {}
        for n in live(drafted):
            taken = min(accepted, counts[n])
            found["out", n] = 2 * plain["out", n][max(accepted - 1, 0) : accepted]
            both = plain["snapshots", n] + replayed["snapshots", n]
            state = drafted["recurrent_state"]
            none = torch.zeros(1, *state.shape[1:], dtype=torch.float64, device=state.device)
            found["state", n] = both[taken - 1 : taken] if taken else none
            for pool in [p for p in HISTORIES if p in drafted]:
                found[pool, n] = torch.zeros(1, *drafted[pool].shape[1:], dtype=torch.float64)
        yield found


def advance(after: Arguments, results: Results, call: Call) -> Arguments:
    """Return the call with what the calls before it left in the pools of its requests."""
    slots, state = after["ssm_state_indices"].tolist(), after["recurrent_state"].clone()
    accepted = [0] * len(slots)
    for n in live(after):
        snapshots = results["snapshots", n]
        accepted[n] = len(snapshots)
        if len(snapshots):
            state[slots[n]] = snapshots[-1]
    changed: Arguments = {**after, "recurrent_state": state}
    if after.get("cs_q") is not None:
        changed.update(_conv_commit(after, results, accepted, call))
    return changed


def joined(before: Results, after: Results, requests: Sequence[int], *records: str) -> Results:
    """Put the tokens of two calls one after the other."""
    first = of(before, requests, *records)
    return {key: torch.cat([value, after[key]]) for key, value in first.items()}


def _parts(arguments: Arguments, cut: int) -> tuple[Arguments, Arguments]:
    given = seats(arguments)
    return (
        reseat(arguments, [Seat(s.source, s.rows[:cut]) for s in given]),
        reseat(arguments, [Seat(s.source, s.rows[cut:]) for s in given]),
    )


def _steps(arguments: Arguments) -> Iterator[list[Seat]]:
    """The seats of every single-token call, after none for no step at all."""
    given = seats(arguments)
    for taken in range(max(lengths(arguments)) + 1):
        yield [Seat(s.source, s.rows[taken - 1 : taken] if taken else []) for s in given]


def _pools(arguments: Arguments) -> Arguments:
    return {n: arguments[n] for n in ("recurrent_state", *HISTORIES) if n in arguments}


def _committed(drafted: Arguments, whole: Results, accepted: int, call: Call) -> Results:
    """Commit some of a draft from its rings and windows."""
    rings = {
        name: torch.full_like(drafted[operand], torch.nan) for name, operand in RINGS.items()
    }  # fmt: skip
    slots, counts = drafted["ssm_state_indices"].tolist(), lengths(drafted)
    for n in live(drafted):
        for name, ring in rings.items():
            entries = whole[name, n]
            ring[slots[n], :, : len(entries)] = entries.transpose(0, 1)
    taken = [min(accepted, count) for count in counts]
    index = drafted["ssm_state_indices"]
    results = call(
        "commit",
        {
            "checkpoint_state": drafted["recurrent_state"],
            "rawv": rings["ring_v"],
            "rawk": rings["ring_k"],
            "gk": rings["ring_g"],
            "beta": rings["ring_beta"],
            "ssm_state_indices": index,
            "accept_lens": torch.tensor(taken, dtype=torch.int32, device=index.device),
            "null_block_id": -1,
            "use_qk_l2norm_in_kernel": drafted["use_qk_l2norm_in_kernel"],
        },
    )
    if drafted.get("cs_q") is not None:
        pools = _conv_commit(drafted, whole, taken, call)
        results.update(_slots_of(pools, drafted))
    return results


def _conv_commit(arguments: Arguments, results: Results, taken: list[int], call: Call) -> Arguments:
    """Return the conv pools after a commit of the windows that some results hold."""
    slots = arguments["ssm_state_indices"]
    depth = max(*taken, 1)
    count = len(taken)
    given: Arguments = {p: arguments[p] for p in HISTORIES}
    for pool, window in zip(HISTORIES, WINDOWS, strict=True):
        shape = (count, depth, *given[pool].shape[1:])
        given[window] = given[pool].new_full(shape, torch.nan)
        for n in live(arguments):
            recorded = results[f"window_{window[-1]}", n].flatten(1, 2)[:depth]
            given[window][n, : len(recorded)] = recorded
    rows = torch.arange(count, dtype=torch.int32, device=slots.device)
    given.update(
        intermediate_state_indices=rows,
        ssm_state_indices=slots,
        accept_lens=torch.tensor(taken, dtype=torch.int32, device=slots.device),
        null_block_id=-1,
    )
    left = call("conv_commit", given)
    pools = {p: given[p].clone() for p in HISTORIES}
    for n, slot in enumerate(slots.tolist()):
        for pool in HISTORIES if slot >= 0 else ():
            pools[pool][slot] = left[pool, n][0]
    return pools


def _held(step: Arguments, drafted: Arguments) -> Results:
    """What the pools of the plain steps hold for every live request."""
    slots = drafted["ssm_state_indices"].tolist()
    states = {("state", n): step["recurrent_state"][slots[n]][None] for n in live(drafted)}
    return {**states, **_slots_of({p: step[p] for p in HISTORIES if p in step}, drafted)}


def _slots_of(pools: dict[str, Tensor], arguments: Arguments) -> Results:
    slots = arguments["ssm_state_indices"].tolist()
    return {(p, n): pool[slots[n]][None] for p, pool in pools.items() for n in live(arguments)}


def _counts(arguments: Arguments, first: int, last: int | None) -> Tensor:
    counts = [len(range(c)[first:last]) for c in lengths(arguments)]
    return torch.tensor(counts, dtype=torch.int32, device=arguments["accept_lens"].device)


def _twice(results: Results) -> Results:
    return {key: value * 2 for key, value in results.items()}
