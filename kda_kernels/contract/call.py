"""What a predicate sees: the arguments of one call, their metadata and dims, read once."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

import torch
from torch import Tensor

from .overlap import Layout, share_memory

if TYPE_CHECKING:
    from .operand import Operand


class Meta(NamedTuple):
    """Metadata of a strided tensor; strides are in elements."""

    shape: tuple[int, ...]
    stride: tuple[int, ...]
    dtype: torch.dtype
    device: torch.device


# Adds dims that follow from those the operands define, from metadata or from options.
Derive = Callable[[dict[str, int], Mapping[str, Meta], Mapping[str, object]], None]
NOTHING_SHARED: Mapping[str, str] = {}


class Span(NamedTuple):
    """A tensor that holds elements: layout, bytes from first to last, whether it is written."""

    name: str
    layout: Layout
    extent: int
    written: bool


class Names(dict):
    """Text of each name that a requirement may hold; a name without text stands for itself."""

    def __missing__(self, key: str) -> str:
        return key


@dataclass(frozen=True)
class Static:
    """What metadata alone decides, shared by every call with the same metadata.

    Attributes:
        metas: of each operand given as a strided tensor.
        lead: leading layer dims: 1 for stacked layers, otherwise 0.
        dims: sizes by name: "T", "H*K", "N+1", ...; a size no operand tells is missing.
        spans: operands that hold elements, in the contract's order; extents and written of
            each once more, for the quick look.
    """

    metas: Mapping[str, Meta]
    lead: int
    dims: Mapping[str, int]
    spans: tuple[Span, ...]
    extents: tuple[int, ...]
    written: tuple[bool, ...]

    @classmethod
    def read(
        cls,
        operands: Sequence[Operand],
        derive: Derive,
        arguments: Mapping[str, object],
    ) -> Static:
        """Read what can be read; whatever is malformed stays out, for its clause to refuse."""
        metas = {}
        for operand in operands:
            meta = read_meta(arguments.get(operand.name))
            if meta is not None:
                metas[operand.name] = meta
        anchor = metas.get(operands[0].name)
        lead = int(
            operands[0].stacks
            and anchor is not None
            and len(anchor.shape) == len(operands[0].shape) + 1
        )
        dims: dict[str, int] = {}
        for operand in operands:
            meta = metas.get(operand.name)
            if meta is not None and len(meta.shape) == operand.rank(lead):
                own = meta.shape[len(meta.shape) - len(operand.shape) :]
                sizes = zip(operand.shape, own, strict=True)
                dims.update((name, size) for name, size in sizes if name in operand.defines)
        if lead and anchor is not None:
            dims["layers"] = anchor.shape[0]
        derive(dims, metas, arguments)
        spans = []
        for operand in operands:
            meta = metas.get(operand.name)
            if meta is not None and 0 not in meta.shape:
                layout = Layout(tuple(meta.shape), tuple(meta.stride), meta.dtype.itemsize)
                spans.append(Span(operand.name, layout, layout.extent, operand.written))
        extents, written = [s.extent for s in spans], [s.written for s in spans]
        return cls(metas, lead, dims, tuple(spans), tuple(extents), tuple(written))


class Call:
    """The arguments of one call, prepared for the predicates."""

    __slots__ = ("_arguments", "_defaults", "_lists", "_pointers", "_shared", "static")

    def __init__(
        self,
        arguments: Mapping[str, object],
        defaults: Mapping[str, object],
        static: Static,
        pointers: Sequence[int] | None,
    ) -> None:
        self._arguments = arguments
        self._defaults = defaults
        self._pointers = pointers
        self._shared: Mapping[str, str] | None = None
        self._lists: dict[str, list[int]] = {}
        self.static = static

    def argument(self, name: str) -> object:
        """Return an argument as it was given, or its default."""
        if name in self._arguments:
            return self._arguments[name]
        return self._defaults.get(name)

    def given(self, name: str) -> bool:
        """Tell whether an argument is anything but None."""
        return self.argument(name) is not None

    def meta(self, name: str) -> Meta | None:
        """Return the metadata of an operand given as a strided tensor."""
        return self.static.metas.get(name)

    def dim(self, name: str) -> int | None:
        """Return a size by name, a number by itself; None where no operand tells."""
        return int(name) if name.isdecimal() else self.static.dims.get(name)

    def tensor(self, name: str) -> Tensor | None:
        """Return a strided tensor, for what its metadata does not tell."""
        value = self.argument(name) if name in self.static.metas else None
        return value if isinstance(value, Tensor) else None

    def values(self, name: str) -> list[int]:
        """Return the elements of an index vector; reading them from a GPU waits for it."""
        if name not in self._lists:
            tensor = self.tensor(name)
            self._lists[name] = [] if tensor is None else tensor.tolist()
        return self._lists[name]

    def names(self, anchor: str) -> Names:
        """Return the texts that requirements of this call may hold."""
        texts = Names({name: f"{name}={size}" for name, size in self.static.dims.items()})
        layers = self.static.dims.get("layers")
        texts["layers, "] = "" if layers is None else f"layers={layers}, "
        meta = self.meta(anchor)
        if meta is not None:
            texts[f"dtype of {anchor}"] = f"dtype of `{anchor}` ({dtype_name(meta.dtype)})"
            texts[f"device of {anchor}"] = f"device of `{anchor}` ({meta.device})"
        return texts

    def shared(self) -> Mapping[str, str]:
        """Return, for each written operand that shares an element, the first one it shares with."""
        if self._shared is None:
            self._shared = self._find_shared()
        return self._shared

    def _find_shared(self) -> Mapping[str, str]:
        spans, pointers = self.static.spans, self._pointers
        if pointers is None:
            tensors = [self.tensor(span.name) for span in spans]
            pointers = [0 if tensor is None else tensor.data_ptr() for tensor in tensors]
        # In order of address, a span is clear of all before it once it starts past their ends.
        end, written_end = 0, 0
        static = self.static
        for start, extent, is_written in sorted(
            zip(pointers, static.extents, static.written, strict=True)
        ):
            if start < (end if is_written else written_end):
                return _share_elements(spans, pointers)
            start += extent
            if start > end:
                end = start
            if is_written and start > written_end:
                written_end = start
        return NOTHING_SHARED


def _share_elements(spans: Sequence[Span], pointers: Sequence[int]) -> dict[str, str]:
    found: dict[str, str] = {}
    for one, start in zip(spans, pointers, strict=True):
        if not one.written:
            continue
        for other, at in zip(spans, pointers, strict=True):
            apart = at >= start + one.extent or start >= at + other.extent
            if other is one or apart:
                continue
            if share_memory(at - start, one.layout, other.layout):
                found[one.name] = other.name
                break
    return found


def read_meta(value: object) -> Meta | None:
    """Return the metadata of a strided tensor, None for anything else."""
    if not isinstance(value, Tensor) or value.layout is not torch.strided or value.is_nested:
        return None
    return Meta(value.shape, value.stride(), value.dtype, value.device)


def dtype_name(dtype: torch.dtype) -> str:
    """Return "float32" for torch.float32."""
    return str(dtype).removeprefix("torch.")


def join(words: Iterable[str], last: str) -> str:
    """Return "a, b or c" for the last word "or"."""
    *head, tail = words
    return f"{', '.join(head)} {last} {tail}" if head else tail


def described(value: object) -> str:
    """Return an argument of a wrong type in a few words."""
    if value is None:
        return "None"
    if isinstance(value, Tensor):
        if value.is_nested:
            return "a nested tensor"
        if value.layout is not torch.strided:
            return f"a {str(value.layout).removeprefix('torch.').lstrip('_')} tensor"
        return f"a tensor of {dtype_name(value.dtype)}"
    if isinstance(value, bool | int | float | str):
        return f"{type(value).__name__} {value!r}"
    return f"a {type(value).__name__}"
