"""Write docs/contract.md from the clauses, or check that it is what they say.

python -m kda_kernels.contract.markdown --write docs/contract.md
python -m kda_kernels.contract.markdown --check docs/contract.md
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterable, Sequence
from pathlib import Path

from . import CONTRACTS
from .call import Names, dtype_name
from .clause import STAGES, Clause, Contract
from .operand import Operand, Option

HEAD = """\
# Contract

Written by `make contract-docs` from the clauses in `kda_kernels/contract`; do not edit it by hand.

Every bad value of a known argument raises `ValueError` before anything is launched, allocated or
written. Its message is "`argument` must <requirement>, got <observed>", with a hint in parentheses
where one helps. An unknown or a missing keyword is a `TypeError`, as Python has it.

Clauses are checked in the order below, stage by stage, and the first that does not hold is the one
reported. The id of a clause is `<contract>.<argument>.<aspect>`: `mtp.beta.shape`.

**Letters.** N requests (B in a commit), T packed rows, L the rows a drop-in call brings for each
request, H query and key heads, HV value heads (value head hv reads query head hv // (HV / H)), K
and V dimensions, R ring entries. `>= x` is at least x, `layers?` a leading axis where layers are
stacked.

**Values.** Clauses of the stage *value* that are marked "elements" read index vectors. They always
run on CPU tensors; on a GPU they would wait for it, so there they run with `check_values=True`
only. A request is live when its slot is at least 0, in a commit when its slot is above
`null_block_id`; what a request that is not live names is never looked at. Unchecked, nothing
outside the operands is read or written: row ranges are clamped to the packed rows and the capacity,
a slot past the pool acts as padding, a scratch row out of range records nothing, accepted counts
are clamped to the ring.

**Overlap** is decided element by element: pools interleaved in one envelope share byte spans but no
elements, and are accepted. A written operand must not address an element twice.

**Gradients.** No operation is differentiable. An operand that requires a gradient is refused while
gradients are recorded; parameters under `torch.no_grad()` are fine.
"""


class DocumentNames(Names):
    """Names in the documentation stand for themselves."""

    def __missing__(self, key: str) -> str:
        return "layers?, " if key == "layers, " else key


def document(contracts: Sequence[Contract] = CONTRACTS) -> str:
    """Return the whole document."""
    return "\n".join([HEAD, *(section(contract) for contract in contracts)])


def section(contract: Contract) -> str:
    """Return the part of one contract."""
    lines = [f"## {contract.operation}", "", f"Ids start with `{contract.name}.`", ""]
    lines += table(
        ("argument", "shape", "dtype", "layout", "meaning"),
        [operand_row(contract, operand) for operand in contract.operands],
    )
    lines += table(
        ("option", "type", "default", "meaning"),
        [option_row(option) for option in contract.options],
    )
    start = 0
    if contract.released:
        lines += ["The checks of the released function come first, in its order:", ""]
        numbered = []
        for number, count in enumerate(contract.released, 1):
            group = contract.clauses[start : start + count]
            numbered += [(str(number), *row[1:]) for row in clause_rows(contract, group)]
            start += count
        lines += table(("check", "aspect", "arguments", "must"), numbered)
        lines += ["Then, stage by stage:", ""]
    rest = clause_rows(contract, contract.clauses[start:])
    lines += table(("stage", "aspect", "arguments", "must"), rest)
    return "\n".join(lines)


def operand_row(contract: Contract, operand: Operand) -> tuple[str, ...]:
    """Return the row of one tensor argument."""
    if operand.dtypes is None:
        dtype = f"as {contract.anchor}"
    else:
        dtype = ", ".join(map(dtype_name, operand.dtypes))
    layout = "last axis unit stride" if operand.unit_last else "any strides"
    if any(c.argument == operand.name and c.aspect == "inner-dense" for c in contract.clauses):
        layout = "dense blocks, outer pitches free"
    notes = [operand.meaning]
    if operand.written:
        notes.append("**written**")
    if not operand.required:
        notes.append("or None")
    shape = operand.template().format_map(DocumentNames())
    return f"`{operand.name}`", f"`{shape}`", dtype, layout, "; ".join(notes)


def option_row(option: Option) -> tuple[str, ...]:
    """Return the row of one option."""
    kind = option.kind if option.required else f"{option.kind} or None"
    default = "" if option.default is None else f"`{option.default!r}`"
    return f"`{option.name}`", kind, default, option.meaning


def clause_rows(contract: Contract, clauses: Iterable[Clause]) -> list[tuple[str, ...]]:
    """Return one row for all arguments of which the same is required."""
    members: tuple[Operand | Option, ...] = (*contract.operands, *contract.options)
    groups = {member.name: member.group for member in members}
    rows: dict[tuple[str, ...], list[str]] = {}
    for clause in sorted(clauses, key=lambda c: STAGES.index(c.stage)):
        requirement = clause.requirement.format_map(DocumentNames())
        if clause.aspect == "group":
            requirement = f"be given when any other of the {groups[clause.argument]} arguments is"
        if isinstance(clause.hint, str):
            requirement += f" ({clause.hint})"
        if clause.reads == "contents":
            requirement += " (elements)"
        key = (clause.stage, clause.aspect, requirement)
        rows.setdefault(key, []).append(f"`{clause.argument}`")
    return [
        (stage, aspect, ", ".join(arguments), requirement)
        for (stage, aspect, requirement), arguments in rows.items()
    ]


def table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> list[str]:
    """Return the lines of a table and an empty one."""
    lines = ["| " + " | ".join(head) + " |", "|" + " --- |" * len(head)]
    return [*lines, *("| " + " | ".join(row) + " |" for row in rows), ""]


def main(arguments: Sequence[str] | None = None) -> int:
    """Write or check the document; the exit status is 1 when it is not what the clauses say."""
    parser = argparse.ArgumentParser(prog="python -m kda_kernels.contract.markdown")
    action = parser.add_mutually_exclusive_group(required=True)
    action.add_argument("--write", type=Path, metavar="FILE")
    action.add_argument("--check", type=Path, metavar="FILE")
    chosen = parser.parse_args(arguments)
    text = document()
    if chosen.write is not None:
        chosen.write.parent.mkdir(parents=True, exist_ok=True)
        chosen.write.write_text(text, encoding="utf-8")
        return 0
    found = chosen.check.read_text(encoding="utf-8") if chosen.check.exists() else ""
    if found == text:
        return 0
    print(f"{chosen.check} is not what the clauses say; run make contract-docs", file=sys.stderr)
    return 1


if __name__ == "__main__":
    sys.exit(main())
