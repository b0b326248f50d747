"""Long horizons: thousands of rounds on one pool, and how far the states drift.

    python -m kda_verify.serving.horizon --tokens 10000

Two requests share a batch: one has its whole draft accepted, the other a random part of it. What
the verifies leave in the rings is kept, and at tenfold lengths the oracle folds all of it from an
empty state: a budget that is a bound must add up over thousands of tokens, so it may hold the
arithmetic of the commits alone, not the rounding of the rings (which every single case judges).
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

import torch
from torch import Tensor

import kda_ref
from kda_ref import Bounded
from kda_ref.bounded import exact

from ..cases.draw import Draw
from ..judging.answer import Answer
from ..judging.compare import compare
from ..judging.verdict import Outcome
from .engine import RINGS, Kernels
from .inputs import STREAMS
from .play import Failure, Player, exactly
from .schedule import Schedule, Seat, Step

FIRST_MARK = 10


@dataclass(frozen=True)
class Mark:
    """What the pool holds after a number of tokens.

    Attributes:
        tokens: committed by the request that accepts everything.
        rounds: played so far.
        worst: largest error over its budget, of both requests' states and conv histories.
        error: root mean square of the first state's error over that of the state.
        budget: root mean square of its error bound over that of the state.
    """

    tokens: int
    rounds: int
    worst: float
    error: float
    budget: float


@dataclass
class History:
    """What one request has committed.

    Attributes:
        rings: by ring, its accepted entries, [layers, heads, tokens, ...] of every round.
        rows: by stream, the last raw inputs of every layer, [layers, 3, channels].
    """

    rings: dict[str, list[Tensor]] = field(default_factory=lambda: {r: [] for r in RINGS})
    rows: dict[str, Tensor] = field(default_factory=dict)

    def state(self, player: Player) -> list[Bounded]:
        """Fold all entries from an empty state, layer by layer."""
        v, k, decay, strength = (torch.cat(self.rings[r], 2)[:, None] for r in RINGS)
        s = player.schedule
        heads = s.heads * s.group
        empty = torch.zeros(s.layers, 1, heads, s.size_v, s.size_k)
        folded = kda_ref.kda_replay_commit(
            checkpoint_state=empty, rawv=v, rawk=k, gk=decay, beta=strength[..., 0],
            ssm_state_indices=torch.tensor([0]), accept_lens=torch.tensor([v.shape[3]]),
            null_block_id=-1, precision=player.precision,
        )  # fmt: skip
        zero = exact(empty[0, 0])
        return [layer.get(0, zero) for layer in folded.layers]


def drift(
    dims: Schedule,
    kernels: Kernels,
    tokens: int,
    device: str = "cpu",
    progress: Callable[[int], None] | None = None,
) -> Iterator[Mark]:
    """Play rounds until a request has so many tokens; yield a mark at 10, 100, ... and at the end.

    Args:
        dims: a schedule without steps, of 2 slots or more.
        kernels: whose calls are made.
        tokens: of the request that accepts everything, at least 1.
        device: where the pool lives.
        progress: called with the tokens committed after every round.

    Raises:
        ValueError: too few slots or tokens.
        Failure: the pool does not hold what the oracle says; its schedule has no steps.
    """
    if dims.slots < 2:
        raise ValueError(f"`dims` must have 2 slots or more, got {dims.slots}")
    if tokens < 1:
        raise ValueError(f"`tokens` must be at least 1, got {tokens}")
    player, draw = Player(dims, kernels, device), Draw(dims.seed, "horizon")
    slots = draw.permutation("slots", dims.slots)[:2].tolist()
    for slot in slots:
        player.engine.take(slot)
    kept = {slot: History() for slot in slots}
    parts = draw.integers("accepted", 0, dims.max_tokens + 1, tokens).tolist()
    done, rounds, mark = 0, 0, min(FIRST_MARK, tokens)
    while done < tokens:
        count, some = min(dims.max_tokens, mark - done), parts[rounds]
        rounds, done = rounds + 1, done + count
        seats = (Seat(slots[0], count, count), Seat(slots[1], dims.max_tokens, some))
        _round(player, Step("round", seats=seats[:: 1 if rounds % 2 else -1]), rounds, kept)
        if progress is not None:
            progress(done)
        if done == mark:
            yield _marked(player, kept, slots[0], done, rounds)
            mark = min(10 * mark, tokens)


def _round(player: Player, step: Step, number: int, kept: dict[int, History]) -> None:
    """Verify, keep what will be accepted, and commit."""
    engine, layers = player.engine, range(player.schedule.layers)
    drafts = [player.model.drafts(number, seat.slot, seat.tokens) for seat in step.seats]
    batch = engine.batch(number, step.seats, [[d[layer] for d in drafts] for layer in layers])
    for layer in layers:
        engine.verify(layer, batch)
    for seat, rows in zip(step.seats, drafts, strict=True):
        history = kept[seat.slot]
        for ring in RINGS:
            entries = engine.pools[f"replayssm_{ring}"][:, seat.slot, :, : seat.accepted]
            entries = entries if ring != "beta" else entries[..., None]
            history.rings[ring].append(entries.cpu().clone())
        for name in STREAMS:
            new = torch.stack([r.x[name][: seat.accepted].flatten(1) for r in rows])
            old = history.rows.get(name, new.new_zeros(len(rows), 3, new.shape[2]))
            history.rows[name] = torch.cat([old, new], 1)[:, -3:]
    engine.commit(batch)


def _marked(player: Player, kept: dict[int, History], first: int, tokens: int, rounds: int) -> Mark:
    """Judge every state and conv history."""
    expectations, pools = [], player.engine.pools
    states = {slot: history.state(player) for slot, history in kept.items()}
    for slot, history in kept.items():
        for layer, state in enumerate(states[slot]):
            at = (layer, slot)
            expectations.append(
                player.expectation("recurrent_state", at, state, torch.float32, column=-1)
            )
            expectations += [
                exactly(f"cs_{name}", at, history.rows[name][layer].mT) for name in STREAMS
            ]
    finding = compare(pools, Answer(tuple(expectations), True), player.kernels.claims.grain)
    if finding.outcome != Outcome.PASS:
        raise Failure(player.schedule, f"after {tokens} tokens", finding)
    state = states[first][0]
    got = pools["recurrent_state"][0, first].double().cpu()
    size = _rms(state.value)
    error, bound = _rms(got - state.value) / size, _rms(state.error.expand_as(got)) / size
    return Mark(tokens, rounds, finding.ratio, error, bound)


def _rms(x: Tensor) -> float:
    return float(x.square().mean().sqrt())


def main(arguments: list[str] | None = None) -> int:
    """Print a row per mark; 1 where a state leaves its budget, 2 for a call that makes no sense."""
    parser = argparse.ArgumentParser(
        "python -m kda_verify.serving.horizon", description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )  # fmt: skip
    parser.add_argument("--tokens", type=int, default=10_000, help="of the longer request [10000]")
    parser.add_argument("--draft", type=int, default=16, help="tokens of a draft [16]")
    parser.add_argument("--heads", type=int, default=1, help="H, and HV twice that [1]")
    parser.add_argument("--size", type=int, default=16, help="K and V [16]")
    parser.add_argument("--dtype", default="bfloat16", help="of activations [bfloat16]")
    parser.add_argument("--decay", default="slow", help="usual or slow [slow]")
    parser.add_argument("--seed", type=int, default=0, help="of all numbers [0]")
    options = parser.parse_args(arguments)
    if not torch.cuda.is_available():
        os.environ.setdefault("TRITON_INTERPRET", "1")
    from rich.console import Console
    from rich.progress import Progress

    from .engine import our_kernels

    device = "cuda" if torch.cuda.is_available() else "cpu"
    try:
        dims = Schedule(
            slots=3, heads=options.heads, group=2, size_k=options.size, size_v=options.size,
            max_tokens=options.draft, dtype=options.dtype, decay=options.decay, seed=options.seed,
        )  # fmt: skip
        print("  tokens  rounds  worst/budget  state error  its budget")
        with Progress(console=Console(stderr=True), transient=True) as bar:
            task = bar.add_task("tokens", total=options.tokens)
            marks = drift(dims, our_kernels(), options.tokens, device,
                          lambda done: bar.update(task, completed=done))  # fmt: skip
            for mark in marks:
                print(f"{mark.tokens:8d}{mark.rounds:8d}{mark.worst:14.3f}{mark.error:13.2e}"
                      f"{mark.budget:12.2e}", flush=True)  # fmt: skip
    except ValueError as problem:
        print(f"horizon: {problem}", file=sys.stderr)
        return 2
    except Failure as failure:
        print(f"horizon: {failure.phase}: {failure.outcome} at {failure.where}, "
              f"{failure.ratio:.3g} times the budget\n  {failure.detail}")  # fmt: skip
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
