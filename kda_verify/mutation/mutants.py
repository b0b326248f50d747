"""Mutants: every small change cosmic-ray can make to the code that decides right from wrong.

What is left out is left out by rule, see `Rule`; a seeded sample is drawn from the rest, as many
from each group as its share.
"""

from __future__ import annotations

import ast
import hashlib
import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from itertools import islice
from pathlib import Path

from ..faults.planted import Plant

ROOT = Path(__file__).resolve().parents[2]
GROUPS: dict[str, tuple[str, ...]] = {
    "kernels": ("kda_kernels/*.py",),
    "contract": ("kda_kernels/contract/*.py",),
    "budget": ("kda_ref/budget.py", "kda_ref/bounded.py"),
    "comparison": ("kda_verify/judging/answer.py", "kda_verify/judging/compare.py",
                   "kda_verify/judging/judge.py"),
}  # fmt: skip

LEFT_OUT = {
    "kda_kernels/__init__.py": "names only",
    "kda_kernels/targets.py": "constants that change speed, not results",
    "kda_kernels/configurations.py": "what is compiled offline, for the table of resources",
    "kda_kernels/offline.py": "compiles for other machines; `make offline` compares its table",
    "kda_kernels/resources.py": "reads compiled code; `make offline` compares its table",
    "kda_kernels/launch.py": "what differs from a plain launch runs on a GPU only",
    "kda_kernels/contract/__init__.py": "names only",
    "kda_kernels/contract/markdown.py": "writes a document, and a test compares it",
}
"""Modules that are not mutated, and why."""

INVERSES = {
    "Add_Sub", "Sub_Add", "Mul_Div", "Div_Mul", "FloorDiv_Mul", "Mod_FloorDiv", "Pow_Mul",
    "BitAnd_BitOr", "BitOr_BitAnd", "BitXor_BitOr",
}  # fmt: skip
ORDERS = ("Eq", "NotEq", "Lt", "LtE", "Gt", "GtE")


@dataclass(frozen=True)
class Mutant(Plant):
    """One small change, as a planted fault.

    Attributes:
        group: of `GROUPS`.
        path: of the file, from the root of the tree.
        operator, occurrence: cosmic-ray's name of the change, and which place it is made in.
        line: number of the first line that changes.
        before, after: the lines that change, stripped.
    """

    group: str = ""
    path: str = ""
    operator: str = ""
    occurrence: int = 0
    line: int = 0
    before: str = ""
    after: str = ""

    def apply(self, source: str) -> str:
        """Return the changed text of the module.

        Raises:
            ValueError: the change can no longer be made.
        """
        changed = _mutated(source, self.operator, self.occurrence)
        if changed is None or changed == source:
            raise ValueError(f"`mutant` must apply to {self.path}, got no such place: {self}")
        return changed

    def __str__(self) -> str:
        return f"{self.path}:{self.line}: {self.before}  ->  {self.after}"


def wanted(operator: str) -> bool:
    """Whether a change is made at all.

    An operator is exchanged for its inverse alone: most others fail on the spot (a shift of a
    float), and would only make the score look better. Decorators stay, for without theirs the
    kernels are no kernels; and nothing is replaced by a name, which cosmic-ray needs to be told.
    """
    _, _, name = operator.partition("/")
    kind, _, change = name.partition("_")
    if kind == "ReplaceBinaryOperator":
        return change in INVERSES
    if kind == "ReplaceComparisonOperator":
        before, after = change.split("_")
        return (before in ORDERS) == (after in ORDERS)
    return kind not in ("RemoveDecorator", "VariableReplacer", "VariableInserter",
                        "ExceptionReplacer", "ReplaceUnaryOperator")  # fmt: skip


class Rule(ast.NodeVisitor):
    """Collect the places of a module in which a change means nothing.

    Annotations are not evaluated; a bare `*` or `/` in a signature is no operator; decorators and
    `functools` caches decide speed; the second argument of `tl.multiple_of` and `num_warps` are
    hints to the compiler; `strict` of a zip guards against what does not happen; what stands in a
    formatted string or in a `raise` is words.
    """

    def __init__(self) -> None:
        self.spans: list[tuple[tuple[int, int], tuple[int, int]]] = []

    def leave_out(self, node: ast.AST | None) -> None:
        """Leave a node out with all it holds."""
        if isinstance(node, ast.expr | ast.stmt):
            start = (node.lineno, node.col_offset)
            end = (node.end_lineno or node.lineno, node.end_col_offset or 0)
            self.spans.append((start, end))

    def visit_FunctionDef(self, node: ast.FunctionDef) -> None:
        """Leave out decorators and annotations."""
        for part in (*node.decorator_list, node.returns):
            self.leave_out(part)
        every = node.args.posonlyargs + node.args.args + node.args.kwonlyargs
        for argument in (*every, node.args.vararg, node.args.kwarg):
            self.leave_out(argument.annotation if argument else None)
        self._leave_out_markers(node.args)
        self.generic_visit(node)

    def _leave_out_markers(self, arguments: ast.arguments) -> None:
        """Leave out what stands between two arguments where it may hold a bare `*` or `/`."""
        places: list[ast.arg | ast.expr] = [*arguments.posonlyargs, *arguments.args]
        places += [*arguments.kwonlyargs, *arguments.defaults]
        places += [default for default in arguments.kw_defaults if default is not None]
        places.sort(key=lambda place: (place.lineno, place.col_offset))
        for marked in (arguments.args[:1], arguments.kwonlyargs[:1]):
            for after in marked:
                n = places.index(after)
                if n:
                    end = (places[n - 1].end_lineno or 0, places[n - 1].end_col_offset or 0)
                    self.spans.append((end, (after.lineno, after.col_offset)))

    def visit_ClassDef(self, node: ast.ClassDef) -> None:
        """Leave out decorators."""
        for part in node.decorator_list:
            self.leave_out(part)
        self.generic_visit(node)

    def visit_AnnAssign(self, node: ast.AnnAssign) -> None:
        """Leave out the annotation."""
        self.leave_out(node.annotation)
        self.generic_visit(node)

    def visit_Assign(self, node: ast.Assign) -> None:
        """Leave out an alias of a type."""
        names = [t.id for t in node.targets if isinstance(t, ast.Name)]
        if isinstance(node.value, ast.BinOp | ast.Subscript) and names and names[0].istitle():
            self.leave_out(node.value)
        self.generic_visit(node)

    def visit_Call(self, node: ast.Call) -> None:
        """Leave out hints to the compiler."""
        if isinstance(node.func, ast.Attribute) and node.func.attr == "multiple_of":
            self.leave_out(node.args[1])
        for keyword in node.keywords:
            if keyword.arg in ("num_warps", "num_stages", "maxsize", "strict"):
                self.leave_out(keyword.value)
        self.generic_visit(node)

    def visit_JoinedStr(self, node: ast.JoinedStr) -> None:
        """Leave out words."""
        self.leave_out(node)

    def visit_Raise(self, node: ast.Raise) -> None:
        """Leave out words; that something is raised is decided before."""
        self.leave_out(node)

    def holds(self, place: tuple[int, int]) -> bool:
        """Whether a place is left out."""
        return any(start <= place < end for start, end in self.spans)


@cache
def _mutated(source: str, operator: str, occurrence: int) -> str | None:
    from cosmic_ray.mutating import mutate_code
    from cosmic_ray.plugins import get_operator

    changed: str | None = mutate_code(source, get_operator(operator)(), occurrence)
    return changed


@dataclass(frozen=True)
class Site:
    """A place in which a change could be made; see `Mutant`."""

    group: str
    path: str
    operator: str
    occurrence: int

    def mutant(self) -> Mutant | None:
        """Make the change; None where the text then parses to the same tree or not at all."""
        source = (ROOT / self.path).read_text(encoding="utf-8")
        changed = _mutated(source, self.operator, self.occurrence)
        if changed is None or _says_the_same(source, changed):
            return None
        return _mutant(self.path, self.group, self.operator, self.occurrence, source, changed)


def sites_of(path: str, group: str) -> Iterator[Site]:
    """List the places of one file that the rules let stand, operator by operator."""
    from cosmic_ray.ast import ast_nodes, get_ast
    from cosmic_ray.plugins import get_operator, operator_names

    source = (ROOT / path).read_text(encoding="utf-8")
    rule = Rule()
    rule.visit(ast.parse(source))
    nodes = list(ast_nodes(get_ast(source)))
    for operator in sorted(filter(wanted, operator_names())):
        change = get_operator(operator)()
        places = [start for node in nodes for start, _ in change.mutation_positions(node)]
        for occurrence, place in enumerate(places):
            if not rule.holds(place):
                yield Site(group, path, operator, occurrence)


def _says_the_same(source: str, changed: str) -> bool:
    """Whether the change parses to the same tree (or not at all, as a place without meaning)."""
    try:
        return ast.dump(ast.parse(source)) == ast.dump(ast.parse(changed))
    except SyntaxError:
        return True


def _mutant(
    path: str, group: str, operator: str, occurrence: int, source: str, changed: str
) -> Mutant:
    old, new = source.splitlines(), changed.splitlines()
    first = next(i for i, (a, b) in enumerate(zip(old, new, strict=False)) if a != b)
    tail = next(i for i, (a, b) in enumerate(zip(old[::-1], new[::-1], strict=False)) if a != b)
    before, after = (" ".join(x.strip() for x in s[first : len(s) - tail]) for s in (old, new))
    key = hashlib.sha256(f"{path}\0{operator}\0{before}\0{after}\0{occurrence}".encode())
    package, _, module = path.removesuffix(".py").partition("/")
    return Mutant(
        f"mutant-{key.hexdigest()[:10]}", module, "", "", f"{before}  ->  {after}",
        operation=_operation(package, module), group=group, path=path, operator=operator,
        occurrence=occurrence, line=first + 1, before=before, after=after,
    )  # fmt: skip


OPERATIONS = {
    "mtp": "verify",
    "prepare": "verify",
    "stream": "verify",
    "scan": "verify",
    "commit": "commit conv_commit",
    "replay": "commit conv_commit",
    "dspark": "drop-in contract",
    "recurrence": "verify commit",
    "plan": "verify commit conv_commit",
    "registration": "verify commit conv_commit",
}
"""Case operations whose checks are meant for a module of the kernels."""


def _operation(package: str, module: str) -> str:
    if package != "kda_kernels":
        return ""
    return "contract" if module.startswith("contract/") else OPERATIONS[module]


def sites() -> list[Site]:
    """List every place that the rules let stand."""
    found: list[Site] = []
    for group, patterns in GROUPS.items():
        for pattern in patterns:
            for file in sorted(ROOT.glob(pattern)):
                path = file.relative_to(ROOT).as_posix()
                if path not in LEFT_OUT:
                    found += sites_of(path, group)
    return found


def sample(places: Sequence[Site], count: int, seed: int) -> list[Mutant]:
    """Draw mutants, from each group its share, in an order whose every beginning is a sample too.

    Raises:
        ValueError: `count` is not positive.
    """
    if count < 1:
        raise ValueError(f"`count` must be at least 1, got {count}")
    keyed: list[tuple[float, str, Site]] = []
    for group in GROUPS:
        mine = [site for site in places if site.group == group]
        random.Random(f"{seed} {group}").shuffle(mine)
        keyed += [((n + 0.5) / len(mine), group, site) for n, site in enumerate(mine)]
    drawn = (site.mutant() for _, _, site in sorted(keyed, key=lambda k: k[:2]))
    return list(islice(filter(None, drawn), count))
