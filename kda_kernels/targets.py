"""Constants that depend on the target or on the sizes, and on nothing a call can change later.

Every choice is a function of what is compiled in (K, V, capacity, backend), so tuning a constant
never adds a compiled variant.
"""

from __future__ import annotations

import functools

import torch
import triton

INTERPRETED: bool = bool(triton.knobs.runtime.interpret)
"""Whether the kernels of this process were declared for Triton's interpreter."""

DOT_PRECISION = {"cuda": "tf32x3", "hip": "ieee", "interpreter": "ieee"}
"""How the product with the state is computed: always fp32 class; HIP has no tf32x3."""

MIN_BLOCK = 16
"""Smallest side of a block: what a matrix product accepts."""

STREAM_STEP = 32
"""Key channels of the state that the streaming product holds at a time."""

TILE_ELEMENTS = 4096
"""Elements of a state tile in the token-order kernels: 32 registers of each thread at 4 warps."""

TILE_WARPS = 4
COMMIT_REGISTERS: dict[int | str | None, int] = {100: 112}
"""Limit on a commit's registers by CUDA capability: left alone on sm_100, the assembler spills.

None on sm_90, where a limit of 128 costs a fifth of the warps and 12 % to 15 % of the time.
"""

COPY_BLOCK = 1024
COPY_WARPS = 4


def backend() -> str:
    """Name the backend that kernels of this process run on."""
    if INTERPRETED:
        return "interpreter"
    return "hip" if torch.version.hip else "cuda"


@functools.cache
def capability(device: torch.device) -> int | None:
    """CUDA compute capability of a device, 90 for sm_90; None off CUDA."""
    if backend() != "cuda" or device.type != "cuda":
        return None
    major, minor = torch.cuda.get_device_capability(device)
    return 10 * major + minor


def block(size: int) -> int:
    """Smallest power of two that holds `size` and that a matrix product accepts."""
    return max(MIN_BLOCK, 1 << (size - 1).bit_length())


def capacity(max_tokens: int) -> int:
    """Token slots of the prepared operands: the power of two the kernels are compiled for."""
    return 1 << (max_tokens - 1).bit_length()


def tile_rows(key_size: int, value_size: int) -> int:
    """Value rows of a state tile in the token-order kernels."""
    return min(block(value_size), max(MIN_BLOCK, TILE_ELEMENTS // block(key_size)))


def commit_options(architecture: int | str | None) -> dict[str, int]:
    """Compiler options of the commit for a CUDA capability, 90 say; another backend has its own."""
    options = {"num_warps": TILE_WARPS}
    if architecture in COMMIT_REGISTERS:
        options["maxnreg"] = COMMIT_REGISTERS[architecture]
    return options


def prepare_warps(key_size: int, value_size: int) -> int:
    """Warps of the first pass: its operands, [capacity, K] and [capacity, V], stay in registers."""
    return 8 if max(block(key_size), block(value_size)) > 128 else 4


def stream_warps(value_size: int) -> int:
    """Warps of the streaming product: its accumulator spans all value channels."""
    return 8 if block(value_size) > 128 else 4
