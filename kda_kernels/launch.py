"""How a kernel is declared and launched: one compiled variant, whatever the sizes and addresses."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any, NamedTuple

import torch
import triton
import triton.language as tl

from . import targets

_compiled: dict[tuple[Any, ...], tuple[Any, tuple[Any, ...]]] = {}


def kernel(function: Callable[..., None]) -> Any:
    """Declare a Triton kernel none of whose run-time arguments is specialized on its value.

    Triton otherwise compiles again for a pitch of 1, for a multiple of 16 and for an unaligned
    pointer. What a kernel may rely on comes from the contract, through `tl.multiple_of`.
    Parameters stand in this order: pointers (not annotated), numbers, constants.
    """
    parameters = inspect.signature(function).parameters.values()
    names = [p.name for p in parameters if p.annotation is not tl.constexpr]
    declared = triton.jit(function, do_not_specialize=names, do_not_specialize_on_alignment=names)
    declared.pointer_count = sum(p.annotation is inspect.Parameter.empty for p in parameters)
    declared.constant_names = [p.name for p in parameters if p.annotation is tl.constexpr]
    return declared


class Launch(NamedTuple):
    """A kernel with everything it is called with, so that it can be run, compiled or keyed.

    Attributes:
        kernel: the declared kernel.
        programs: size of the grid, which has one axis.
        arguments: run-time arguments in order.
        constants: constexpr arguments and compile options by name.
    """

    kernel: Any
    programs: int
    arguments: tuple[Any, ...]
    constants: dict[str, Any]

    def run(self) -> None:
        """Enqueue the kernel on the current stream of the current device.

        Triton's own dispatch inspects every argument at every call, about 25 us for 80 of them.
        Nothing here is specialized on values, so dtypes and constants name the variant.
        """
        if self.programs == 0:
            return
        if targets.INTERPRETED:
            self.kernel[(self.programs,)](*self.arguments, **self.constants)
            return
        pointers = self.arguments[: self.kernel.pointer_count]
        dtypes = [None if p is None else p.dtype for p in pointers]
        device = torch.cuda.current_device()
        key = (self.kernel, device, *dtypes, *self.constants.values())
        found = _compiled.get(key)
        if found is None:
            compiled = self.kernel[(self.programs,)](*self.arguments, **self.constants)
            constants = tuple(self.constants[name] for name in self.kernel.constant_names)
            _compiled[key] = compiled, constants
            return
        compiled, constants = found
        compiled[(self.programs, 1, 1)](*self.arguments, *constants)


def run_all(launches: list[Launch], device: torch.device) -> None:
    """Enqueue launches in order on the current stream of the device that holds the operands."""
    if device.type == "cuda" and device.index != torch.cuda.current_device():
        with torch.cuda.device(device):
            for launch in launches:
                launch.run()
        return
    for launch in launches:
        launch.run()
