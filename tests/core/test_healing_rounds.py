"""Healing in rounds: the sizes between, the verbs that it stands for, its records, and resuming."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

import learngene_zoo as lg
from learngene_zoo.artifacts.descendant import Descendant, assemble, load_descendant
from learngene_zoo.errors import Refused, WrongCall
from learngene_zoo.families.vit.spec import ViTSpec
from learngene_zoo.lifecycle.healing_rounds import building as rounds
from learngene_zoo.lifecycle.healing_rounds.sizes import plan_rounds
from learngene_zoo.runs.run import Run
from learngene_zoo.storage import fingerprint_of_state
from learngene_zoo.training import loop
from learngene_zoo.training.healing import recovery
from learngene_zoo.training.healing.blocks import compose_blocks, match_blocks

RUN = Run(threads=1, device="cpu")
SPEC = ViTSpec(layers=6, width=64, heads=4, classes=3, image_size=16, patch_size=8)
IMAGES = "folder:flat"
SETTINGS: dict[str, Any] = {"epochs": 2, "batch_size": 16, "lr": 1e-3}


class Killed(BaseException):
    pass


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return a folder with a pretrained model, a flat folder of images, and two descendants."""
    monkeypatch.chdir(tmp_path)
    assemble(SPEC, {}, seed=0, scheme="fan_in").save("ancestry")
    draws = np.random.default_rng(0)
    Path("flat").mkdir()
    for number in range(30):
        pixels = draws.integers(0, 256, (4, 4, 3), dtype=np.uint8).repeat(4, 0).repeat(4, 1)
        Image.fromarray(pixels).save(Path("flat", f"{number}.png"))
    lg.extract("closed_form", ancestries="ancestry", tasks=IMAGES, out="gene", run=RUN)
    lg.expand("gene", layers=2, width=32, out="narrow", run=RUN)
    lg.extract("first_k", ancestries="ancestry", out="blocks", run=RUN)
    lg.expand("blocks", layers=2, out="two", run=RUN)
    return tmp_path


def heal(model: str | Descendant = "narrow", **changes: Any) -> Descendant:
    return lg.heal(model, IMAGES, **{"rounds": 2, "run": RUN, **SETTINGS, **changes})


def read_rounds(model: Descendant) -> list[dict[str, Any]]:
    record: Any = model.provenance["healed"]
    return record["rounds"]


# The sizes.


@pytest.mark.parametrize(
    ("method", "larger", "smaller", "sizes"),
    [
        ("closed_form", (12, 384), (6, 256), [(9, 320), (6, 256)]),
        ("closed_form", (12, 384), (12, 64), [(12, 192), (12, 64)]),
        ("closed_form", (12, 384), (3, 64), [(8, 192), (5, 128), (3, 64)]),
        ("first_k", (12, 384), (3, 384), [(6, 384), (3, 384)]),
        ("first_k", (12, 384), (2, 384), [(7, 384), (4, 384), (2, 384)]),
        ("weight_selection", (12, 384), (6, 192), [(9, 256), (6, 192)]),
    ],
)
def test_the_sizes_lie_geometrically_between(
    method: str, larger: tuple[int, int], smaller: tuple[int, int], sizes: list[tuple[int, int]]
) -> None:
    def shape(size: tuple[int, int]) -> ViTSpec:
        return SPEC.with_(layers=size[0], width=size[1], heads=size[1] // 64)

    start = assemble(shape(smaller), {}, seed=0, provenance={"method": method, "settings": {}})
    plan = plan_rounds(start, shape(larger), len(sizes))
    assert [(m.spec.layers, m.spec.width) for m in plan.members] == sizes
    assert all(m.spec.head_width == 64 and m.spec.classes == 3 for m in plan.members)


# The verbs.


@pytest.mark.slow
@pytest.mark.parametrize(
    ("method", "start", "middle"),
    [
        ("closed_form", "narrow", {"layers": 4, "width": 48}),
        ("first_k", "two", {"layers": 4}),
    ],
)
def test_the_verbs_by_hand_give_the_same_weights(
    method: str, start: str, middle: dict[str, int], place: Path
) -> None:
    healed = heal(start, match="even", out="healed")
    spec = load_descendant(start).spec
    last = {"layers": spec.layers, **({"width": spec.width} if "width" in middle else {})}
    tasks = [IMAGES] if method == "closed_form" else []
    source = "ancestry"
    for number, size in enumerate((middle, last), start=1):
        lg.extract(method, ancestries=source, tasks=tasks, out=f"gene{number}", run=RUN)
        lg.expand(f"gene{number}", out=f"model{number}", run=RUN, classes=3, **size)
        source = f"healed{number}"
        settings = {**SETTINGS, "match": "even", "teacher": "ancestry", "run": RUN}
        by_hand = lg.heal(f"model{number}", IMAGES, out=source, **settings)
    assert fingerprint_of_state(by_hand.state) == fingerprint_of_state(healed.state)


@pytest.mark.slow
def test_the_records_are_those_of_a_descendant_of_the_ancestry_model(place: Path) -> None:
    start = load_descendant("narrow")
    healed = heal(out="healed")
    assert healed.spec == start.spec
    assert [(r["layers"], r["width"], r["heads"]) for r in read_rounds(healed)] == [
        (4, 48, 3),
        (2, 32, 2),
    ]
    for record in read_rounds(healed):
        assert len(record["metrics"]["history"]) == 3
        assert record["expansion"]["calibration"] == IMAGES
    for name in ("method", "learngene", "settings", "ancestries", "seed"):
        assert healed.provenance[name] == start.provenance[name]
    first, second = (record["expansion"] for record in read_rounds(healed))
    composed = compose_blocks(6, 4, 2, first, second)
    assert {name: healed.provenance[name] for name in composed} == composed
    teacher: Any = healed.provenance["healed"]
    assert teacher["teacher"]["source"] == "ancestry"
    again = lg.heal("healed", IMAGES, **{**SETTINGS, "epochs": 1, "run": RUN})
    assert again.provenance["healed"]["before"]["rounds"] == read_rounds(healed)
    assert torch.equal(healed.state["head.weight"], start.state["head.weight"])
    lg.finetune("healed", task="digits", epochs=1, images=20, run=RUN)


@pytest.mark.slow
def test_in_memory_the_result_is_the_same(place: Path) -> None:
    written, returned = heal(out="healed"), heal()
    assert fingerprint_of_state(written.state) == fingerprint_of_state(returned.state)
    assert written.provenance["healed"] == returned.provenance["healed"]


@pytest.mark.slow
def test_another_teacher_is_the_model_that_rounds_build_from(place: Path) -> None:
    assemble(SPEC.with_(layers=8), {}, seed=1, scheme="fan_in").save("larger")
    healed = heal(teacher="larger")
    assert healed.provenance["ancestries"][0]["source"] == "larger"
    assert read_rounds(healed)[0]["layers"] == 4


# Blocks.


@pytest.mark.parametrize(
    ("middle", "provenance", "records"),
    [
        ({}, {}, {"runs": [0, 8], "teacher_depth": 12}),
        ({"runs": [0, 1, 5], "teacher_depth": 9}, {}, {"runs": [0, 5], "teacher_depth": 9}),
        (
            {"runs": [0, 1, 5], "teacher_depth": 9},
            {"runs": [0, 1], "teacher_depth": 2},
            {"runs": [0, 1], "teacher_depth": 5},
        ),
    ],
)
def test_blocks_of_two_steps_are_composed(
    middle: dict[str, Any], provenance: dict[str, Any], records: dict[str, Any]
) -> None:
    composed = compose_blocks(12, 3, 2, middle, provenance)
    assert composed == records
    (own,), (matched,) = match_blocks(2, 12, 1, composed)
    assert (own, matched) == (0, records["runs"][1] - 1)


# Resuming.


def kill_at(module: Any, name: str, calls: int) -> Callable[..., Any]:
    """Return the function of a module, which raises `Killed` after so many calls."""
    function, count = getattr(module, name), 0

    def call(*arguments: Any, **named: Any) -> Any:
        nonlocal count
        count += 1
        if count > calls:
            raise Killed
        return function(*arguments, **named)

    return call


def train_until(round_number: int, steps: int) -> Callable[..., Iterator[loop.Step]]:
    """Return a `train` that raises `Killed` at a step of a round."""
    count = 0

    def train(*arguments: Any, **named: Any) -> Iterator[loop.Step]:
        nonlocal count
        count += 1
        iterator = loop.train(*arguments, **named, seconds_between_checkpoints=0)
        for number, step in enumerate(iterator):
            if (count, number) == (round_number, steps):
                raise Killed
            yield step

    return train


KILLS: dict[str, Callable[[pytest.MonkeyPatch], None]] = {
    "before the first round": lambda patch: patch.setattr(
        rounds, "extract", kill_at(rounds, "extract", 0)
    ),
    "in the first": lambda patch: patch.setattr(recovery, "train", train_until(1, 2)),
    "between": lambda patch: patch.setattr(rounds, "expand", kill_at(rounds, "expand", 1)),
    "in the last": lambda patch: patch.setattr(recovery, "train", train_until(2, 2)),
}


@pytest.mark.slow
def test_a_killed_call_ends_as_if_it_had_not_been(
    place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    heal(out="whole")
    for out, kill in KILLS.items():
        with monkeypatch.context() as patch:
            kill(patch)
            with pytest.raises(Killed):
                heal(out=out)
        assert not Path(out).exists(), out
        with pytest.raises(Refused, match=r"continue it with Run\(resume=True\)"):
            heal(out=out)
        with pytest.raises(Refused, match=r"healing\.rounds: 2 then, 3 now"):
            heal(out=out, rounds=3, run=replace(RUN, resume=True))
        heal(out=out, run=replace(RUN, resume=True))
        for name in ("config.json", "model.safetensors", "README.md"):
            assert Path(out, name).read_bytes() == Path("whole", name).read_bytes(), out
        assert not Path(f"{out}.run", "rounds").exists(), out
        with monkeypatch.context() as patch:
            patch.setattr(rounds, "extract", partial(pytest.fail, "a finished call is repeated"))
            heal(out=out, run=replace(RUN, resume=True))


@pytest.mark.slow
def test_finished_rounds_are_not_repeated(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as patch:
        patch.setattr(recovery, "train", train_until(2, 1))
        with pytest.raises(Killed):
            heal(out="killed")
    for name in ("extract", "expand"):
        monkeypatch.setattr(rounds, name, kill_at(rounds, name, 0))
    assert len(read_rounds(heal(out="killed", run=replace(RUN, resume=True)))) == 2


# Wrong calls.


TASK = {"name": "digits", "source": "built in"}


def rename(model: Descendant, **changes: Any) -> Descendant:
    return replace(model, provenance={**model.provenance, **changes}, folder=None)


@pytest.mark.parametrize(
    ("change", "settings", "words"),
    [
        (lambda m: rename(m, method="wave"), {}, "built by wave; rounds need a method that"),
        (lambda m: rename(m, method="nothing"), {}, "does not record a method that is installed"),
        (lambda m: rename(m, healed={}), {}, "was healed, which rounds would discard"),
        (lambda m: rename(m, trained_on=TASK), {}, "was fine-tuned, which rounds would discard"),
        (lambda m: m, {"rounds": 9}, "builds no size between .* heal in fewer rounds"),
        (lambda m: m, {"rounds": 0}, "rounds is 0"),
    ],
)
def test_wrong_calls_have_one_line_and_write_nothing(
    change: Any, settings: dict[str, Any], words: str, place: Path
) -> None:
    model = change(load_descendant("narrow"))
    with pytest.raises(WrongCall, match=words) as caught:
        heal(model, teacher="ancestry", out="healed", **settings)
    assert "\n" not in str(caught.value)
    assert not list(place.glob("healed*"))


def test_a_pruned_model_is_refused(place: Path) -> None:
    lg.extract("pruning", ancestries="ancestry", tasks=IMAGES, out="scores", run=RUN)
    lg.expand("scores", heads=2, out="pruned", run=RUN)
    with pytest.raises(WrongCall, match="pruned has blocks of several sizes; heal it without"):
        heal("pruned")


def test_data_of_a_stranger_are_not_opened(place: Path) -> None:
    settings = {"calibration": "folder:secret", "solve": False}
    start = rename(load_descendant("narrow"), settings=settings)
    plan = plan_rounds(start, SPEC, 2)
    assert plan.expander.calibration is None  # type: ignore[attr-defined]
    assert plan.expander.solve is False  # type: ignore[attr-defined]
