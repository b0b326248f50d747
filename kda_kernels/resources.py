"""What a compiled kernel costs: registers, spills and shared memory, without a GPU."""

from __future__ import annotations

import re
import subprocess
import tempfile
from pathlib import Path
from typing import Any

import triton
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource, make_backend
from triton.runtime.jit import create_function_from_signature

from . import targets
from .commit import commit_kernel
from .launch import Launch

TARGETS = {
    "sm_80": GPUTarget("cuda", 80, 32),
    "sm_90": GPUTarget("cuda", 90, 32),
    "sm_100": GPUTarget("cuda", 100, 32),
    "gfx942": GPUTarget("hip", "gfx942", 64),
    "gfx950": GPUTarget("hip", "gfx950", 64),
}

_PTX_LINE = re.compile(r"^\s*((?:shfl|mov|mul|fma|add)\.[\w.]+)\s+(%\w+)(?:\|%\w+)?,([^;]*);", re.M)
_COPY = re.compile(r"\bcp\.async\.c[ag]\.shared\.global\s*\[[^]]*\],\s*\[[^]]*\],\s*(\w+)")


def _bind(launch: Launch, target: GPUTarget) -> tuple[Any, dict[str, str], Any, Any]:
    """Specialize a launch as Triton would on `target`: options, signature, constants, hints."""
    constants = dict(launch.constants)
    if "PRECISION" in constants:
        constants["PRECISION"] = targets.DOT_PRECISION[target.backend]
    if launch.kernel is commit_kernel:
        constants.update(targets.commit_options(target.arch))
    function, backend = launch.kernel, make_backend(target)
    binder = create_function_from_signature(function.signature, function.params, backend)
    bound, specialization, options = binder(*launch.arguments, **constants)
    return function._pack_args(backend, constants, bound, specialization, options)


def variant_key(launch: Launch, target: str = "sm_90") -> str:
    """Name the compiled variant a launch would use: equal keys share one compilation.

    The process must not have declared its kernels for the interpreter.
    """
    options, signature, constants, attributes = _bind(launch, TARGETS[target])
    name = launch.kernel.__name__
    return repr((name, signature, constants, {k: v for k, v in attributes.items() if v}, options))


def measure(launch: Launch, target: str) -> dict[str, int]:
    """Compile a launch for `target` and read what it takes.

    Returns:
        registers per thread, spills (local loads and stores on CUDA, spilled vector registers on
        HIP), shared memory in bytes, and on CUDA how many sums across lanes are contracted and
        how many copies into shared memory are narrow.
    """
    options, signature, constants, attributes = _bind(launch, TARGETS[target])
    source = ASTSource(launch.kernel, signature, constants, attributes)
    compiled = triton.compile(source, target=TARGETS[target], options=options.__dict__)
    if TARGETS[target].backend == "cuda":
        registers, spills = _cubin_usage(compiled.asm["cubin"])
        ptx = compiled.asm["ptx"]
        seen = {"contracted": contracted_sums(ptx), "narrow": narrow_copies(ptx)}
    else:
        registers, spills = _amdgcn_usage(compiled.asm["amdgcn"])
        seen = {}
    shared = compiled.metadata.shared
    return {"registers": registers, "spills": spills, "shared": shared, **seen}


def contracted_sums(ptx: str) -> int:
    """Count additions of a value from another lane that are, or may become, fused multiply-adds.

    Both lanes of an exchange hold their sum. An addition rounds alike in both; a fused
    multiply-add rounds the other lane's product and not its own, so the two come to differ.
    """
    from_lanes: set[str] = set()
    products: set[str] = set()
    count = 0
    for operation, result, operands in _PTX_LINE.findall(ptx):
        sources = set(re.findall(r"%\w+", operands))
        # A register may be written again: what was known of it no longer holds.
        received = bool(sources & from_lanes)
        multiplied = bool(sources & products)
        from_lanes.discard(result)
        products.discard(result)
        if operation.startswith("shfl."):
            from_lanes.add(result)
        elif operation.startswith("mov."):
            from_lanes.update({result} if received else ())
            products.update({result} if multiplied else ())
        elif operation.startswith("mul.") and operation.endswith("f32"):
            products.add(result)
        elif operation.startswith("fma."):
            count += received
        elif operation.startswith("add.") and operation.endswith("f32"):
            count += received and multiplied
    return count


def narrow_copies(ptx: str) -> int:
    """Count the asynchronous copies into shared memory that move 4 bytes a thread.

    That is what is left when the compiler cannot see how an address is aligned. A small tile
    spread over many threads may be copied 8 bytes at a time, which is counted as wide.
    """
    return sum(int(size, 0) < 8 for size in _COPY.findall(ptx))


def _cubin_usage(cubin: bytes) -> tuple[int, int]:
    tools = Path(triton.__file__).parent / "backends" / "nvidia" / "bin"
    with tempfile.NamedTemporaryFile(suffix=".cubin") as file:
        file.write(cubin)
        file.flush()
        usage = _output(tools / "cuobjdump", "--dump-resource-usage", file.name)
        assembly = _output(tools / "nvdisasm", file.name)
    registers = max(map(int, re.findall(r"REG:(\d+)", usage)))
    return registers, len(re.findall(r"\b(?:STL|LDL)\b", assembly))


def _amdgcn_usage(text: str) -> tuple[int, int]:
    registers = max(map(int, re.findall(r"\.vgpr_count:\s*(\d+)", text)))
    # Scalar registers spill into lanes of vector registers, not into memory: not counted.
    return registers, sum(map(int, re.findall(r"\.vgpr_spill_count:\s*(\d+)", text)))


def _output(tool: Path, *arguments: str) -> str:
    return subprocess.run([tool, *arguments], check=True, capture_output=True, text=True).stdout
