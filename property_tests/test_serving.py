"""Serving: the state machine on our kernels, and schedules as JSON and as stored files."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis.stateful import run_state_machine_as_test

from kda_verify.serving import Schedule, Seat, Step, our_kernels, play
from kda_verify.serving.__main__ import main
from kda_verify.serving.machine import dims, serving_machine
from kda_verify.serving.model import Model
from kda_verify.serving.stored import SCHEDULES, load, parse

STEPS = 8
FILES = sorted(SCHEDULES.glob("*.json"))
TWO = (Step("take", 1), Step("round", seats=(Seat(-1, 1, 1), Seat(1, 2, 1, 0, 0))))


def test_our_kernels_serve(device: str) -> None:
    run_state_machine_as_test(
        serving_machine(device=device), settings=settings(stateful_step_count=STEPS)
    )


@pytest.mark.parametrize("path", FILES, ids=lambda p: p.stem)
def test_stored_schedules_pass(path: Path, device: str) -> None:
    stored = load(path)
    assert path.name == stored.name
    assert parse(stored.to_json()) == stored
    player = play(stored.schedule, our_kernels(), device)
    assert 0 < player.worst <= 1


def test_schedules_are_stored() -> None:
    assert len(FILES) >= 2


@given(schedule=dims())
def test_a_schedule_survives_json(schedule: Schedule) -> None:
    schedule = replace(schedule, null_block=-1)  # The steps use slot 0.
    for step in (*TWO, Step("resume", 0), Step("free", 1), Step("poison", 1)):
        schedule = schedule.then(step)
    again = Schedule.from_json(schedule.to_json())
    assert again == schedule
    assert again.holders()[:2] == ("live", "free")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("{", "`schedule` must be JSON"),
        ("[]", "`schedule` must be a JSON object, got list"),
        ('{"slot": 3}', "`schedule` must have only known fields, got slot"),
        ('{"slots": 0}', "`slots` must be a whole number in 1 to 64, got 0"),
        ('{"slots": true}', "`slots` must be a whole number in 1 to 64, got True"),
        ('{"seed": 1.5}', "`seed` must be a whole number in 0 to 2147483647, got 1.5"),
        ('{"dtype": "int8"}', "`dtype` must be one of float32, bfloat16, float16, got 'int8'"),
        ('{"norm": 1}', "`norm` must be true or false, got 1"),
        (
            '{"null_block": 0, "steps": [{"take": 0}]}',
            "step 0: `take` must name a free slot, got r",
        ),
        ('{"steps": {}}', "`steps` must be a list, got {}"),
        ('{"steps": [{}]}', "a step must be an object with one action, got {}"),
        ('{"steps": [{"leave": 0}]}', "step 0: `action` must be one of take, round, free"),
        ('{"steps": [{"take": 3}]}', "step 0: `take` must be a whole number in 0 to 2, got 3"),
        ('{"steps": [{"free": 1}]}', "step 0: `free` must name a live or kept slot, got free"),
        ('{"steps": [{"take": 1}, {"take": 1}]}', "step 1: `take` must name a free slot"),
        ('{"steps": [{"resume": 1}]}', "step 0: `resume` must name a kept slot, got free slot 1"),
        ('{"steps": [{"round": 1}]}', "`round` must be a list of seats, got 1"),
        ('{"steps": [{"round": []}]}', "step 0: `round` must have 1 to 64 seats, got 0"),
        ('{"steps": [{"round": [{}]}]}', "`seat` must have a slot, got {}"),
        ('{"steps": [{"round": [{"slot": 0}]}]}', "step 0: `slot` must name a live slot once"),
        (
            '{"steps": [{"round": [{"slot": -1, "tokens": 1, "accepted": 2}]}]}',
            "step 0: `accepted` must be a whole number in 0 to 1, got 2",
        ),
        (
            '{"steps": [{"take": 0}, {"round": [{"slot": 0, "track_slot": 0}]}]}',
            "step 1: `track_slot` must name a slot without a request once, got 0",
        ),
    ],
)
def test_what_is_no_schedule_is_refused(text: str, message: str) -> None:
    with pytest.raises(ValueError) as problem:
        Schedule.from_json(text)
    assert str(problem.value).startswith(message)


def test_a_changed_file_is_refused(tmp_path: Path) -> None:
    text = FILES[0].read_text(encoding="utf-8")
    changes = {
        "whole JSON": text[:-9],
        "`checksum` must be": text.replace('"note": "', '"note": "not '),
        "a field must occur once": text.replace("{", '{"format": 1,', 1),
        "`format` must be 1": text.replace('"format": 1', '"format": 2'),
        "fields must be": json.dumps({**json.loads(text), "more": 1}),
        "numbers must be finite": text.replace('"format": 1', '"format": NaN'),
    }
    for reason, changed in changes.items():
        path = tmp_path / "changed.json"
        path.write_text(changed, encoding="utf-8")
        with pytest.raises(ValueError) as problem:
            load(path)
        assert str(path) in str(problem.value)
        assert reason in str(problem.value)


def test_the_replay_line(capsys: pytest.CaptureFixture[str]) -> None:
    schedule = Schedule(steps=TWO).to_json()
    for words, code, text in (
        ([schedule], 0, "pass: 2 steps"),
        ([str(FILES[0])], 0, "pass: "),
        (["{"], 2, "must be JSON"),
        (["no such file"], 2, "schedule no such file"),
        ([], 2, "`schedule` or `--draw` must be given"),
        (["--draw", "0"], 2, "`--draw` must be at least 1, got 0"),
        (["--draw", "1"], 0, "pass: 1 schedules of"),
    ):
        assert main(words) == code
        assert text in "".join(capsys.readouterr())


def test_rejected_tokens_leave_no_trace_in_the_model() -> None:
    player = play(Schedule(steps=TWO), our_kernels())
    model: Model = player.model
    assert {slot: len(rows[0]) for slot, rows in model.history.items()} == {0: 1, 1: 1}
    (state, _), (kept, _) = model.committed(1, 0), model.committed(0, 0)
    assert bool((state.value == kept.value).all())
    assert bool((state.value != 0).any())
