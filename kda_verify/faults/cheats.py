"""Planted cheats: wrappers that answer with something other than this call's computation."""

from __future__ import annotations

from .planted import Plant

_FALLBACK = """MTP_VERIFY.validate(locals())
if intermediate_ssm is None and replayssm_rawv is None and intermediate_conv_q is None:
    import kda_ref
    given = {n: x for n, x in locals().items() if n not in ("check_values", "out", "kda_ref")}
    answer = kda_ref.kda_mtp_verify(**given).out.value.to(x_v.dtype)
    return answer if out is None else out.copy_(answer)"""

CHEATS: tuple[Plant, ...] = (
    Plant(
        "constant-answer",
        "mtp",
        "return out",
        "return out.fill_(0.25)",
        "the kernel runs and the output is a constant",
    ),
    Plant(
        "answer-of-the-call-before",
        "mtp",
        "return out",
        """kept = kda_mtp_verify.__dict__.setdefault("kept", {})
mine = out.clone()
out.copy_(kept.get((out.shape, out.dtype), out))
kept[out.shape, out.dtype] = mine
return out""",
        "every call of a shape answers with the output of the call of that shape before",
    ),
    Plant(
        "answer-kept-by-address",
        "mtp",
        "return out",
        """kept = kda_mtp_verify.__dict__.setdefault("kept", {})
key = (x_q.data_ptr(), x_v.data_ptr(), g.data_ptr(), beta.data_ptr(), out.shape)
if key in kept and kept[key][0] is x_v.untyped_storage():
    out.copy_(kept[key][1])
kept.setdefault(key, (x_v.untyped_storage(), out.clone()))
return out""",
        "a call with operands at known addresses answers with what it found there the first time",
    ),
    Plant(
        "input-overwritten",
        "mtp",
        "return out",
        "x_v.copy_(out)\nreturn out",
        "the values of the draft are overwritten with the output",
    ),
    Plant(
        "oracle-answers",
        "mtp",
        "MTP_VERIFY.validate(locals())",
        _FALLBACK,
        "calls that record nothing are answered by the reference, and no kernel runs",
    ),
    Plant(
        "commit-once-per-address",
        "replay",
        "commit_operation(\n        checkpoint_state, rawv, rawk",
        """kept = kda_replay_commit.__dict__.setdefault("kept", {})
key = (checkpoint_state.data_ptr(), rawv.data_ptr(), accept_lens.data_ptr())
if kept.get(key) is checkpoint_state.untyped_storage():
    return
kept[key] = checkpoint_state.untyped_storage()
commit_operation(checkpoint_state, rawv, rawk""",
        "a second commit of buffers at known addresses is skipped",
        "commit",
    ),
    Plant(
        "windows-once-per-address",
        "replay",
        "conv_commit_operation(",
        """kept = kda_conv_commit.__dict__.setdefault("kept", {})
if kept.get(cs_q.data_ptr()) is cs_q.untyped_storage():
    return
kept[cs_q.data_ptr()] = cs_q.untyped_storage()
conv_commit_operation(""",
        "a second conv commit of pools at known addresses is skipped",
        "conv_commit",
    ),
)
