"""The import rule: each package sees only what lies below it; and no module is over 400 lines."""

from __future__ import annotations

import ast
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
MAX_LINES = 400

# What each package may import besides the standard library and itself.
ALLOWED = {
    "kda_ref": {"torch"},
    "kda_kernels": {"torch", "triton"},
    "kda_verify": {"kda_ref", "kda_kernels", "torch", "triton", "numpy", "hypothesis", "rich"},
}
# Optional packages: the one file that may import each, and only inside a function.
LAZY = {
    "fla": "kda_verify/subjects/fla.py",
    "cosmic_ray": "kda_verify/mutation/mutants.py",
    "pytest": "kda_verify/mutation/suite.py",
    "jinja2": "kda_verify/reporting/page.py",
    "matplotlib": "kda_verify/reporting/figures.py",
}
TESTS = "property_tests"
IMPORTERS = {"import_module", "__import__"}


def sources(root: Path) -> Iterator[Path]:
    """Yield every Python file of the tree, leaving out hidden and build directories."""
    for path in sorted(root.rglob("*.py")):
        parents = path.relative_to(root).parts[:-1]
        if not any(part.startswith(".") or part in {"build", "dist"} for part in parents):
            yield path


def imports(tree: ast.Module, package: tuple[str, ...]) -> Iterator[tuple[int, str, bool]]:
    """Yield (line, dotted module, lazy) of every import, `import_module("...")` included.

    `package` names the package the module lies in, to resolve relative imports; one that climbs out
    of it comes out as "..". Lazy means inside the body of a function.
    """

    def walk(node: ast.AST, lazy: bool) -> Iterator[tuple[int, str, bool]]:
        if isinstance(node, ast.Import):
            for alias in node.names:
                yield node.lineno, alias.name, lazy
        elif isinstance(node, ast.ImportFrom):
            base = package[: len(package) - node.level + 1] if node.level else ()
            climbs = node.level > len(package)
            yield node.lineno, ".." if climbs else ".".join((*base, node.module or "")), lazy
        elif isinstance(node, ast.Call) and node.args:
            called = getattr(node.func, "attr", getattr(node.func, "id", None))
            name = getattr(node.args[0], "value", None)
            if called in IMPORTERS and isinstance(name, str) and not name.startswith("."):
                yield node.lineno, name, lazy
        body = node.body if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)) else []
        for child in ast.iter_child_nodes(node):
            yield from walk(child, lazy or child in body)

    yield from walk(tree, False)


def violations(root: Path) -> list[str]:
    """Return one line for every breach of the import rule or of the length limit under `root`."""
    found = []
    for path in sources(root):
        relative = path.relative_to(root)
        owner = relative.parts[0]
        text = path.read_text(encoding="utf-8")
        length = len(text.splitlines())
        if length > MAX_LINES:
            found.append(f"{relative}: {length} lines, the limit is {MAX_LINES}")
        for line, module, lazy in imports(ast.parse(text, str(relative)), relative.parts[:-1]):
            top = module.split(".")[0]
            where = f"{relative}:{line}: imports {module}"
            if top == TESTS and owner != TESTS:
                found.append(f"{where}, which nothing outside {TESTS} may")
            elif owner not in ALLOWED or top in {owner, *sys.stdlib_module_names, *ALLOWED[owner]}:
                continue
            elif LAZY.get(top) != relative.as_posix():
                found.append(f"{where}, which {owner} may not")
            elif not lazy:
                found.append(f"{where} at module level; import it inside a function")
    return found


def plant(root: Path, relative: str, source: str) -> None:
    path = root / relative
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(source, encoding="utf-8")


def test_the_tree_obeys() -> None:
    seen = {path.relative_to(ROOT).parts[0] for path in sources(ROOT)}
    assert {*ALLOWED, TESTS} <= seen, f"found sources in {sorted(seen)} only"
    assert violations(ROOT) == []


CLEAN = {
    "kda_ref/a.py": "import math, torch.nn\nfrom . import b\nfrom .b import c\n",
    "kda_kernels/contract/a.py": "import triton.language as tl\nfrom ..scan import kernel\n",
    "kda_verify/a.py": "import numpy, hypothesis, rich.table, kda_ref.gates\nimport kda_kernels\n",
    "kda_verify/subjects/fla.py": "def load():\n    if True:\n        from fla.ops import kda\n",
    "property_tests/meta/a.py": "import pytest, fla, kda_verify\nfrom property_tests import b\n",
    "benchmarks/a.py": "import fla, kda_kernels\n",
    "kda_ref/long.py": "\n" * MAX_LINES,
    ".venv/kda_ref/a.py": "import triton\n",
}


@pytest.mark.parametrize("relative", CLEAN)
def test_a_clean_source_passes(tmp_path: Path, relative: str) -> None:
    plant(tmp_path, relative, CLEAN[relative])
    assert violations(tmp_path) == []


PLANTED = [
    ("kda_ref/a.py", "import triton\n", "imports triton, which kda_ref may not"),
    ("kda_ref/a.py", "import os, numpy as np\n", "imports numpy, which kda_ref may not"),
    ("kda_ref/a.py", "from kda_kernels.scan import x\n", "imports kda_kernels.scan"),
    ("kda_ref/a.py", "def f():\n    import kda_verify\n", "kda_ref/a.py:2: imports kda_verify"),
    ("kda_ref/a.py", "from .. import kda_kernels\n", "imports .., which kda_ref may not"),
    ("kda_ref/a.py", "import_module('rich')\n", "imports rich"),
    ("kda_ref/a.py", "x = __import__('triton.language')\n", "imports triton.language"),
    ("kda_kernels/a.py", "import kda_ref\n", "imports kda_ref, which kda_kernels may not"),
    ("kda_kernels/contract/a.py", "from kda_verify import b\n", "imports kda_verify"),
    ("kda_kernels/a.py", "if TYPE_CHECKING:\n    import hypothesis\n", "imports hypothesis"),
    ("kda_verify/a.py", "import pytest\n", "imports pytest, which kda_verify may not"),
    ("kda_verify/a.py", "def f():\n    import fla\n", "imports fla, which kda_verify may not"),
    ("kda_verify/subjects/a.py", "import property_tests.strategies\n", "nothing outside"),
    ("kda_verify/subjects/fla.py", "import fla\n", "imports fla at module level"),
    ("kda_verify/subjects/fla.py", "class A:\n    import fla.ops\n", "fla.ops at module level"),
    (
        "kda_verify/subjects/fla.py",
        "def f(a=import_module('fla')):\n    pass\n",
        "imports fla at module level",
    ),
    ("kda_verify/subjects/fla.py", "def f():\n    import einops\n", "imports einops"),
    ("benchmarks/a.py", "from property_tests import strategies\n", "nothing outside"),
    ("kda_verify/a.py", "\n" * (MAX_LINES + 1), "kda_verify/a.py: 401 lines"),
    ("property_tests/meta/a.py", "\n" * (MAX_LINES + 1), "401 lines, the limit is 400"),
]


@pytest.mark.parametrize(("relative", "source", "expected"), PLANTED)
def test_a_planted_breach_is_named(
    tmp_path: Path, relative: str, source: str, expected: str
) -> None:
    plant(tmp_path, relative, source)
    found = violations(tmp_path)
    assert len(found) == 1
    assert expected in found[0]
