"""Acceptance rules of published suites, put to the answers that ours are judged on.

Each is written from what the suite's tests state, applied to the tensors it looks at. They judge
whole tensors of live requests against the oracle's values rounded to the stored dtype, which is
kinder to a rule than the references of the suites themselves.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

import torch
from torch import Tensor

from ..judging.answer import Answer

Rule = Callable[[Tensor, Tensor], bool]
"""(got, want) of one operand, flat and in the stored dtype -> accepted."""

OUT, STATE, RING, WINDOW = "out", "state", "ring", "window"


def role(operand: str) -> str:
    """Return what kind of tensor an operand is: an output, a state, a ring or a conv window."""
    if operand == "out":
        return OUT
    if operand.startswith(("cs_", "intermediate_conv")):
        return WINDOW
    return RING if operand.startswith("replayssm") else STATE


def rms_ratio(limit: float, floor: float = 0.0) -> Rule:
    """RMS(error) / RMS(reference) over the whole tensor, or a largest error up to `floor`."""

    def accepts(got: Tensor, want: Tensor) -> bool:
        error = (got.double() - want.double()).abs()
        if not bool(error.isfinite().all()):
            return False
        if float(error.max()) <= floor:
            return True
        reference = want.double().square().mean().sqrt()
        return bool(error.square().mean().sqrt() <= limit * (reference + 1e-8))

    return accepts


def close(atol: float, rtol: float) -> Rule:
    """|error| <= atol + rtol |reference| in every element, as `torch.allclose`."""
    return lambda got, want: torch.allclose(got.double(), want.double(), rtol=rtol, atol=atol)


def relative_to_largest(limit: float) -> Rule:
    """Largest error over largest reference."""

    def accepts(got: Tensor, want: Tensor) -> bool:
        error = (got.double() - want.double()).abs().max()
        return bool(error <= limit * want.double().abs().max())

    return accepts


def same_bits(got: Tensor, want: Tensor) -> bool:
    """Equality of every element."""
    return torch.equal(got, want)


def torch_defaults(got: Tensor, want: Tensor) -> bool:
    """Defaults of `torch.testing.assert_close` for the dtype."""
    try:
        torch.testing.assert_close(got, want)
    except AssertionError:
        return False
    return True


def kernelbench(got: Tensor, want: Tensor) -> bool:
    """1e-4 for fp32 and 1e-2 for narrower types, absolute and relative alike."""
    limit = 1e-4 if got.dtype == torch.float32 else 1e-2
    return close(limit, limit)(got, want)


@dataclass(frozen=True)
class Criterion:
    """State what a suite accepts.

    Attributes:
        name: of the suite.
        says: the rule in words.
        rules: by role; tensors of other roles are not looked at.
    """

    name: str
    says: str
    rules: Mapping[str, Rule] = field(default_factory=dict)

    def accepts(self, operands: Mapping[str, Tensor], answer: Answer) -> bool:
        """Whether the suite would pass what a call left behind."""
        for operand in dict.fromkeys(e.operand for e in answer.expectations):
            rule = self.rules.get(role(operand))
            if rule is None:
                continue
            tensor, parts = operands[operand], []
            wanted = [e for e in answer.expectations if e.operand == operand]
            for expectation in wanted:
                got = tensor[expectation.index].cpu()
                parts.append((got.flatten(), expectation.want.value.to(tensor.dtype).flatten()))
            got, want = (torch.cat(side) for side in zip(*parts, strict=True))
            if got.numel() and not rule(got, want):
                return False
        return True


CRITERIA = (
    Criterion("FLA", "RMS ratio 0.005 of output and state, or largest error 1e-6",
              dict.fromkeys((OUT, STATE), rms_ratio(0.005, 1e-6))),
    Criterion("FLA in CI", "the same, but a largest error up to 0.3 or a ratio below 0.01 warns",
              dict.fromkeys((OUT, STATE), rms_ratio(0.01, 0.3))),
    Criterion("SGLang", "output 3e-3 + 1e-2 x, state 1e-3 of its largest, windows equal, "
              "rings 1e-2",
              {OUT: close(3e-3, 1e-2), STATE: relative_to_largest(1e-3), WINDOW: same_bits,
               RING: close(1e-8, 2**-7)}),
    Criterion("vLLM", "RMS ratio 3e-3 of output and state, windows equal",
              {**dict.fromkeys((OUT, STATE), rms_ratio(3e-3)), WINDOW: same_bits}),
    Criterion("FlashInfer", "output 3e-2 + 2e-2 x, state 3e-2 + 2e-3 x, windows equal",
              {OUT: close(3e-2, 2e-2), STATE: close(3e-2, 2e-3), WINDOW: same_bits}),
    Criterion("cuLA", "output and state 3e-2 + 2e-2 x",
              dict.fromkeys((OUT, STATE), close(3e-2, 2e-2))),
    Criterion("aiter", "output and state 5e-2 + 2e-2 x, windows equal",
              {**dict.fromkeys((OUT, STATE), close(5e-2, 2e-2)), WINDOW: same_bits}),
    Criterion("KernelBench", "everything 1e-2 + 1e-2 x, 1e-4 for fp32",
              dict.fromkeys((OUT, STATE, RING, WINDOW), kernelbench)),
    Criterion("torch.testing", "assert_close defaults of the dtype, everything",
              dict.fromkeys((OUT, STATE, RING, WINDOW), torch_defaults)),
)  # fmt: skip
