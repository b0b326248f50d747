"""Device functions shared by the kernels: every formula of the recurrence, written once."""

import triton
import triton.language as tl


@triton.jit
def sum_of_products(a, b, AXIS: tl.constexpr):
    """Sum of a * b along an axis, with the same bits in every lane that ends up holding it."""
    # A product added to what another lane sent would become one fused multiply-add, and each lane
    # would round a different one of the two: lanes that share an element would disagree on it,
    # and which of them reaches shared memory last would be a race. Adding zero rounds it first.
    return tl.sum(tl.fma(a, b, 0.0), axis=AXIS)


@triton.jit
def sigmoid(x):
    """1 / (1 + exp(-x)), exponentiating only non-positive numbers so that nothing overflows."""
    decayed = tl.exp(-tl.abs(x))
    numerator = tl.where(x >= 0.0, 1.0, decayed)
    return tl.div_rn(numerator, 1.0 + decayed)


@triton.jit
def softplus(x):
    """max(x, 0) + log(1 + exp(-|x|)), accurate in the relative sense for very negative x."""
    decayed = tl.exp(-tl.abs(x))
    # 1 + e rounds; log(w) * e / (w - 1) undoes that rounding where log(w) alone loses e.
    rounded = 1.0 + decayed
    vanished = rounded == 1.0
    divisor = tl.where(vanished, 1.0, rounded - 1.0)
    corrected = tl.div_rn(tl.log(rounded) * decayed, divisor)
    tail = tl.where(vanished, decayed, corrected)
    return tl.maximum(x, 0.0) + tail


@triton.jit
def log_decay_of(logits, bias, rate, floor, GATE_FORM: tl.constexpr):
    """Natural-log decay of raw gate logits; rate is exp(A_log), floor the lower bound."""
    if GATE_FORM == "given":
        result = logits
    elif GATE_FORM == "softplus":
        result = -rate * softplus(logits + bias)
    else:
        result = floor * sigmoid(rate * (logits + bias))
    return result


@triton.jit
def strength_of(logit, BETA_FORM: tl.constexpr):
    """Write strength of a raw logit."""
    if BETA_FORM == "given":
        result = logit
    elif BETA_FORM == "twice_sigmoid":
        result = 2.0 * sigmoid(logit)
    else:
        result = sigmoid(logit)
    return result


@triton.jit
def unit_vector(x, NORMALISE: tl.constexpr):
    """x / sqrt(sum x^2 + 1e-6), or x itself."""
    # Correctly rounded root and quotient: a vector of one power of two becomes exactly one-hot.
    if NORMALISE:
        length = tl.sqrt_rn(sum_of_products(x, x, 0) + 1e-6)
        result = tl.div_rn(x, length)
    else:
        result = x
    return result


@triton.jit
def short_conv(oldest, older, old, newest, tap_0, tap_1, tap_2, tap_3):
    """SiLU of the four-tap causal convolution over one window."""
    mixed = tap_0 * oldest
    mixed += tap_1 * older
    mixed += tap_2 * old
    mixed += tap_3 * newest
    return mixed * sigmoid(mixed)


@triton.jit
def token_update(state, key, value, decay, strength):
    """One step S <- S diag(a) + b (v - S diag(a) k) k^T on a [V, K] tile of rows."""
    decayed = state * decay[None, :]
    predicted = sum_of_products(decayed, key[None, :], 1)
    correction = strength * (value - predicted)
    return decayed + correction[:, None] * key[None, :]


@triton.jit
def request_rows(cu_seqlens, stride, request, total_rows, max_tokens):
    """[start, end) of a request, inside the packed rows and its capacity whatever the offsets."""
    raw_start = tl.load(cu_seqlens + request * stride).to(tl.int64)
    raw_end = tl.load(cu_seqlens + (request + 1) * stride).to(tl.int64)
    start = tl.minimum(tl.maximum(raw_start, 0), total_rows)
    limit = tl.minimum(start + max_tokens, total_rows)
    end = tl.minimum(tl.maximum(raw_end, start), limit)
    return start, end
