"""What a case is, in words."""

from __future__ import annotations

from collections.abc import Iterator

from ..cases.case import Case
from ..operations import facts

Line = tuple[str, str]

ROWS = {
    "packed": "q, k and v are strided views of one packed row",
    "pitched": "every operand has gaps after every axis, of different widths",
    "separate": "q, k and v are separate dense tensors",
}
POOL = {
    "dense": "pools are dense",
    "pitched": "pools have a free slot pitch and gaps inside the slots",
    "envelope": "all pools are interleaved, slot by slot, in one storage",
}
INITIAL = {
    "none": "every sequence starts from a state of zero",
    "given": "every sequence starts from a state that is given",
    "pool": "states are read from a pool of slots and advanced in place",
}
GATE = {
    "lower_bound": "gate = {bound:g} * sigmoid(exp(A_log) * (g + dt_bias))",
    "softplus": "gate = -exp(A_log) * softplus(g + dt_bias)",
    "given": "gate = g, the log decay as given",
}
BETA = {
    "sigmoid": "strength = sigmoid(beta)",
    "twice_sigmoid": "strength = 2 * sigmoid(beta)",
    "given": "strength = beta as given",
}
KEYS = {
    "random": "random keys",
    "collinear": "keys nearly parallel to one another",
    "one_hot": "one-hot keys",
    "hadamard": "keys of Hadamard rows",
    "tiny": "tiny keys, where the eps of their norm counts",
    "zero": "keys of zero",
}
GATES = {
    "none": "gates that forget nothing or hardly anything",
    "mild": "mild gates, log decay -0.1 to -1 a token",
    "slow": "slow gates, log decay near -0.001 a token",
    "saturated": "saturated gates, which forget all they can",
    "steep_channel": "slow gates but for one steep channel a head",
}
TAPS = {
    "random": "random conv taps",
    "unit": "conv taps that pass one input on",
    "cancelling": "conv taps that cancel",
}
BETAS = {
    "random": "random write strengths",
    "zero": "write strengths of zero",
    "one": "write strengths at their most",
    "extreme": "write strengths near zero and near their most",
}
VALUES = {
    "unit": "values near 1",
    "tiny": "tiny values",
    "spread": "values spread over six powers of ten by column",
    "zero": "values of zero",
}
STATES = {
    "unit": "states near 1",
    "tiny": "tiny states",
    "spread": "states spread over six powers of ten by column",
    "asymmetric": "states that no transposition leaves alike",
    "zero": "states of zero",
}
POISON = {
    "nan": "NaN",
    "huge": "large finite numbers",
    "zeros": "zeros",
}


def describe(case: Case) -> list[Line]:
    """Say what a case is: pairs of a topic and a text, one line each."""
    return [
        ("operation", facts(case.operation).told),
        ("shapes", _shapes(case)),
        ("requests", _requests(case)),
        ("layout", "; ".join(_layout(case))),
        ("dtypes", _dtypes(case)),
        ("options", "; ".join(_options(case))),
        ("values", "; ".join(_values(case))),
        ("around", f"whatever the call must not read or write holds {POISON[case.poison]}"),
        ("seed", f"{case.seed}: it decides all numbers, slots and permutations"),
    ]


def _shapes(case: Case) -> str:
    heads = f"H={case.heads} query and key heads, HV={case.heads_v} value heads"
    return f"{heads}, K={case.size_k}, V={case.size_v}, N={_count(case.requests, 'request')}"


def _requests(case: Case) -> str:
    """Say of every request how many tokens it has, or that it is padding."""
    told = facts(case.operation)
    what = "token" if told.sequences else "accepted token"
    parts = []
    for n, length in enumerate(case.lengths):
        kind = f"padding over {_count(length, 'row')}" if n in case.padding else (
            _count(length, what) if length else "empty"
        )  # fmt: skip
        parts.append(f"{n}: {kind}")
    text = "; ".join(parts)
    if told.bounded:
        text += f"; room for {case.capacity} each"
    if case.slack_rows:
        text += f"; then {_count(case.slack_rows, 'row')} that no request owns"
    return text


def _layout(case: Case) -> Iterator[str]:
    told = facts(case.operation)
    if told.sequences:
        yield ROWS[case.rows]
        if told.takes("initial"):
            yield INITIAL[case.initial]
            yield f"states are [{'V, K' if case.state_layout == 'vk' else 'K, V'}]"
            yield "sequences are batched [N, L]" if case.batched else "sequences are packed [1, T]"
    yield POOL[case.pool]
    if told.takes("conv_pool") and (case.conv or not told.takes("conv")):
        dense = case.conv_pool == "dense"
        yield "conv histories are " + ("dense" if dense else "a transposed view [slots, 3, C]")
    if told.pooled or case.initial == "pool":
        yield f"{_count(case.spare_slots, 'slot')} that no request lists"
    if case.index_stride > 1:
        yield f"index vectors are strided by {case.index_stride} or more"


def _dtypes(case: Case) -> str:
    told = facts(case.operation)
    if not told.stateful:
        return f"{case.dtype} windows and histories"
    states = f"states are {case.state_dtype}"
    if not told.sequences:
        return f"{case.dtype} rings of k and v, fp32 log decay and strength; {states}"
    logits = "gate and strength" + (", output gate" if case.out_norm else "")
    return f"{case.dtype} activations, {case.logit_dtype} {logits}; {states}"


def _options(case: Case) -> Iterator[str]:
    told = facts(case.operation)
    if told.layered:
        layers = (
            f"{_count(case.layers, 'layer')} in one launch" if case.layers else "a single layer"
        )
        yield layers
        yield f"slots up to {case.null_block} are skipped"
    if case.track:
        yield "a state at a prefix boundary is stored in a tracked slot"
    if told.takes("qk_norm"):
        yield "q and k normalized in the call" if case.qk_norm else "q and k as given"
    if not told.sequences:
        if told.takes("beta_form"):
            yield f"in the ring, {BETA[case.beta_form]}"
        return
    if told.takes("conv"):
        yield "conv and SiLU in the call" if case.conv else "conv given"
    yield GATE[case.gate_form].format(bound=case.lower_bound)
    if case.gate_form != "given":
        # A softplus gate of a case always has its rate.
        rate = case.gate_rate or case.gate_form == "softplus"
        forms = (("dt_bias", case.gate_bias), ("A_log", rate))
        lacking = [n for n, on in forms if not on]
        if lacking:
            yield f"without {' and '.join(lacking)}"
    yield BETA[case.beta_form]
    yield "default scale" if case.scale is None else f"scale {case.scale:g}"
    if told.takes("records"):
        yield f"records {', '.join(case.records)}" if case.records else "records nothing"
        if case.out_norm:
            yield "gated output norm in the call"
        if case.out_given:
            yield "the caller owns `out`"


def _values(case: Case) -> Iterator[str]:
    told = facts(case.operation)
    if not told.takes("keys"):
        yield "random windows, copied bit for bit"
        return
    if case.exact:
        yield "numbers for which no algorithm rounds, so that no error is allowed"
        zero = {"keys": case.keys, "values": case.values, "states": case.states}
        yield from (f"{name} of zero" for name, family in zero.items() if family == "zero")
        return
    yield KEYS[case.keys]
    yield GATES[case.gates]
    if case.conv:
        yield TAPS[case.taps]
    yield BETAS[case.betas]
    yield VALUES[case.values]
    yield STATES[case.states]
    if case.spoil != "none":
        kind = "a NaN" if case.spoil == "nan" else "an infinity"
        yield f"{kind} in v, at the last token and first head of the first live request"


def _count(number: int, noun: str) -> str:
    return f"{number} {noun}" + ("" if number == 1 else "s")
