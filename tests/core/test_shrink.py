"""Shrinking: the choice of candidates, the comparison without labels, and the laws of the verb."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

import learngene_zoo as lg
from learngene_zoo import lifecycle
from learngene_zoo.artifacts import own_data
from learngene_zoo.artifacts.descendant import Descendant, assemble, load_descendant
from learngene_zoo.errors import BadData, Refused, WrongCall
from learngene_zoo.families.vit.spec import ViTSpec
from learngene_zoo.lifecycle import extraction
from learngene_zoo.lifecycle.analyse import assemble_ancestry
from learngene_zoo.lifecycle.shrinking import building, estimate, finishing, ranking, steps
from learngene_zoo.lifecycle.shrinking.candidates import (
    choose_candidates,
    describe_too_large,
    list_free_methods,
    list_offers,
    select_affordable,
)
from learngene_zoo.lifecycle.shrinking.finishing import FinishedCandidate, choose_winner
from learngene_zoo.lifecycle.shrinking.request import (
    ShrinkConfig,
    choose_export,
    print_note_on_export,
)
from learngene_zoo.lifecycle.shrinking.table import Shrunk
from learngene_zoo.method.contract import Work
from learngene_zoo.method.installed import METHODS
from learngene_zoo.method.sizes import Budget, Member
from learngene_zoo.pretrained.ancestry import open_ancestry
from learngene_zoo.runs import folder
from learngene_zoo.runs.progress import print_activities
from learngene_zoo.runs.run import Run
from learngene_zoo.settings import with_settings
from learngene_zoo.storage import fingerprint_of_state, read_json
from learngene_zoo.tasks.catalogue import open_task
from learngene_zoo.tasks.splits.cutting import ensure_validation
from learngene_zoo.text import format_count
from learngene_zoo.training.feature_map import measure_map_errors
from learngene_zoo.training.probes import compute_features, fit_ridge
from learngene_zoo.training.speed import SOLVING_COST

SPEC = ViTSpec(layers=4, width=32, heads=2, classes=3, image_size=16, patch_size=8)
RUN = Run(threads=1, device="cpu")
SMALL = {"candidates": 3, "epochs": 1, "batch_size": 16, "probe_images": 30}


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Write a pretrained model, and pictures of three colours."""
    top = tmp_path_factory.mktemp("data")
    assemble(SPEC, {}, seed=0, scheme="fan_in").save(top / "model")
    draws = np.random.default_rng(0)
    for label, name in enumerate(("red", "green", "blue")):
        (top / "photos" / name).mkdir(parents=True)
        for number in range(24):
            pixels = draws.integers(0, 120, (16, 16, 3), dtype=np.uint8)
            pixels[..., label] += 80
            Image.fromarray(pixels).save(top / "photos" / name / f"{number}.png")
    return top


def shrink(data: Path, out: Path, **changes: Any) -> Shrunk:
    settings = {"task": f"folder:{data / 'photos'}", "max_params": 30_000, "export": "none"}
    run = changes.pop("run", RUN)
    return lg.shrink(str(data / "model"), out=out, run=run, **{**SMALL, **settings, **changes})


@pytest.mark.slow
def test_its_data_need_not_be_named_again(
    data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("LGZOO_CACHE", str(tmp_path / "cache"))
    shrink(data, tmp_path / "small", candidates=1)
    monkeypatch.setattr(own_data, "_session", OrderedDict())  # as in another process
    assert lg.evaluate(tmp_path / "small", run=RUN).images > 0


# Candidates.


def test_methods_that_train_or_inherit_nothing_are_left_out() -> None:
    names = [method.name for method in list_free_methods(SPEC)]
    assert names[:2] == ["closed_form", "first_k"]
    assert not {"scratch", "mimetic", "distillation", "lsamd", "tleg", "wave"} & set(names)
    for name in names:
        assert not any(work.trained for work in METHODS.load(name).extractor.work([SPEC], [100]))


def test_every_offer_is_smaller_than_the_model() -> None:
    whole = Member(spec=SPEC.with_(classes=7)).cost().params
    offers = list_offers(SPEC, 7)
    assert all(m.cost().params < whole for members in offers.values() for m in members)
    assert all(m.spec.classes == 7 for members in offers.values() for m in members)


def test_candidates_are_the_largest_that_fit_and_no_other_one_exceeds() -> None:
    offers = list_offers(ViTSpec(layers=12, width=96, heads=3, classes=10, image_size=32), 10)
    fitting = select_affordable(offers, Budget(max_params=500_000), lambda spec: 0.0)
    candidates = choose_candidates(fitting, 8, is_spread=False)
    assert len(candidates) == 8
    assert all(c.member.cost().params <= 500_000 for c in candidates)
    assert candidates[0].method == "closed_form"
    assert len({c.name for c in candidates}) == 8
    sizes = [c.member for c in candidates if c.method == "closed_form"]
    assert len({member.spec.width for member in sizes}) == len(sizes)
    largest = max(c.member.cost().params for c in candidates)
    assert all(c.member.cost().params >= largest / 2 for c in candidates)


def test_methods_without_a_model_within_the_budget_are_named() -> None:
    offers = list_offers(SPEC, 3)
    least = {name: min(m.cost().params for m in members) for name, members in offers.items()}
    fitting = select_affordable(offers, Budget(max_params=least["first_k"] - 1), lambda spec: 0.0)
    text = describe_too_large(offers, fitting)
    assert 0 < len(fitting) < len(offers)
    assert all((name in text) is (name not in fitting) for name in offers)
    assert f"(from {format_count(least['first_k'])} on)" in text
    assert describe_too_large(offers, offers) == ""


@pytest.mark.parametrize("count", [1, 2, 5, 30])
def test_there_are_never_more_candidates_than_allowed(count: int) -> None:
    offers = list_offers(SPEC, 3)
    for is_spread in (False, True):
        assert 1 <= len(choose_candidates(offers, count, is_spread=is_spread)) <= count


@pytest.mark.slow
def test_latency_is_measured_by_bisection_and_only_of_sizes_that_fit() -> None:
    offers = {"first_k": list_offers(SPEC.with_(layers=12), 3)["first_k"]}
    measured = []

    def measure(spec: Any) -> float:
        measured.append(spec.layers)
        return float(spec.layers)

    chosen = select_affordable(offers, Budget(max_latency=7.0), measure)
    assert [member.spec.layers for member in chosen["first_k"]] == list(range(1, 8))
    assert len(measured) <= 5, "the smallest one first"
    with pytest.raises(WrongCall, match="the fastest measured one takes"):
        select_affordable(offers, Budget(max_latency=0.5), measure)


# The comparison without labels.


def test_a_linear_map_is_predicted_and_noise_is_not() -> None:
    draws = np.random.default_rng(0)
    features_ND, held_out_MD = draws.normal(size=(300, 8)), draws.normal(size=(100, 8))
    weight_DF = draws.normal(size=(8, 5))
    errors_M = measure_map_errors(
        features_ND, features_ND @ weight_DF + 3, held_out_MD, held_out_MD @ weight_DF + 3
    )
    assert errors_M.shape == (100,)
    assert errors_M.mean() < 1e-6
    noise = draws.normal(size=(300, 5)), draws.normal(size=(100, 5))
    assert 0.9 < measure_map_errors(features_ND, noise[0], held_out_MD, noise[1]).mean() < 1.2


def test_the_share_of_variance_of_half_of_the_targets_is_a_half() -> None:
    draws = np.random.default_rng(1)
    features_ND, held_out_MD = draws.normal(size=(500, 4)), draws.normal(size=(400, 4))
    noise_ND, noise_MD = draws.normal(size=(500, 4)), draws.normal(size=(400, 4))
    errors_M = measure_map_errors(
        features_ND, np.c_[features_ND, noise_ND], held_out_MD, np.c_[held_out_MD, noise_MD]
    )
    assert 1 - errors_M.mean() == pytest.approx(0.5, abs=0.05)


# The winner.


def finish(**values: float) -> dict[str, FinishedCandidate]:
    return {name: FinishedCandidate(path=Path(name), value=v) for name, v in values.items()}


@pytest.mark.parametrize(
    ("max_drop", "values", "winner"),
    [
        (None, {"small": 0.80, "large": 0.85}, "large"),
        (None, {"small": 0.85, "large": 0.85}, "small"),
        (6.0, {"small": 0.84, "large": 0.90}, "small"),
        (5.0, {"small": 0.84, "large": 0.90}, "large"),
        (1.0, {"small": 0.84, "large": 0.83}, "small"),
    ],
)
def test_the_winner_is_the_best_or_the_smallest_that_keeps_the_drop(
    max_drop: float | None, values: dict[str, float], winner: str
) -> None:
    ranked = ranking.sort_candidates(
        [
            (name, Member(spec=SPEC.with_(layers=layers)), np.array([True, False]))
            for layers, name in enumerate(("small", "large"), start=1)
        ]
    )
    result = ranking.Ranking(
        candidates=ranked, probe=0.9, interval=(0.8, 1.0), validation=0.9, validation_images=30
    )
    assert choose_winner(ask(max_drop), result, finish(**values)) == winner


def ask(max_drop: float | None = None) -> Any:
    task = SimpleNamespace(metric="accuracy", sizes={"train": 90})
    return SimpleNamespace(config=ShrinkConfig(max_drop=max_drop), task=task)


def test_few_validation_images_are_weighed_against_the_probe() -> None:
    """Ten validation images against 90 of the probe: a tenth of the mean."""
    ranked = ranking.sort_candidates(
        [
            (name, Member(spec=SPEC.with_(layers=layers)), np.arange(90) < right)
            for layers, (name, right) in enumerate((("small", 63), ("large", 72)), start=1)
        ]
    )
    result = ranking.Ranking(
        candidates=ranked, probe=0.85, interval=(0.8, 0.9), validation=0.5, validation_images=10
    )
    few, many = result, replace(result, validation_images=30)
    values = {"small": 0.9, "large": 0.6}  # means 0.72 and 0.78
    assert choose_winner(ask(), few, finish(**values)) == "large"
    assert choose_winner(ask(), many, finish(**values)) == "small"
    # The original's mean is 0.815.
    assert choose_winner(ask(9.0), few, finish(**values)) == "large"
    assert choose_winner(ask(10.0), few, finish(**values)) == "small"
    assert choose_winner(ask(), few, finish(small=1.0, large=0.0)) == "small"


# The verb.


@pytest.mark.slow
def test_the_winner_fits_and_is_what_the_verbs_make_by_hand(data: Path, tmp_path: Path) -> None:
    result = shrink(data, tmp_path / "small")
    table = result.table
    winner = table.winner
    assert result.model.cost().params == winner.params <= 30_000
    assert sum(row.kept for row in table.rows) == 1
    assert table.rows[0].method == "original"
    tried = [row for row in table.rows[1:] if row.validation is not None]
    assert len(tried) == min(2, len(table.rows) - 1)
    assert winner.validation == max(row.validation for row in tried if row.validation is not None)
    measured = {"original", winner.method}
    assert {row.method for row in table.rows if row.test is not None} == measured
    assert table.rows[0].test == measure_test_by_hand(data)
    assert (tmp_path / "small.html").is_file()
    assert not (tmp_path / "small.run" / "work").exists()

    task = f"folder:{data / 'photos'}"
    method = METHODS.load(winner.method)
    tasks = [] if method.tasks == "none" else [task]
    extractor = with_settings(method.extractor, building.keep_streams(method.extractor))
    lifecycle.extract(
        winner.method,
        ancestries=str(data / "model"),
        tasks=tasks,
        extractor=extractor,
        out=tmp_path / "gene",
        run=RUN,
    )
    sizes = {"layers": winner.layers, "width": winner.width, "heads": winner.heads}
    free = {name: value for name, value in sizes.items() if name in method.expander.axes}
    start = lifecycle.expand(tmp_path / "gene", task=task, run=RUN, **free)
    tuned = lifecycle.finetune(start, task=task, run=RUN, epochs=1, batch_size=16)
    assert fingerprint_of_state(tuned.state) == fingerprint_of_state(result.model.state)
    assert result.model.provenance["learngene"] == "in memory", "its folder is removed"


def measure_test_by_hand(data: Path) -> float:
    """Return the accuracy of a linear probe of the pretrained model on test images."""
    model = assemble_ancestry(open_ancestry(str(data / "model")), 0)
    task = ensure_validation(open_task(f"folder:{data / 'photos'}"))
    train, test = (
        compute_features(model.model(), task, split, model.input_format, RUN, images=images)
        for split, images in (("train", SMALL["probe_images"]), ("test", None))
    )
    predicted_M = fit_ridge(train, task.classes).predict(test.values).argmax(axis=1)
    return float((predicted_M == test.labels).mean())


def interrupt_after(monkeypatch: pytest.MonkeyPatch, module: Any, name: str, calls: int) -> None:
    """Make the function raise KeyboardInterrupt, as Ctrl-C does, after so many calls."""
    function: Callable[..., Any] = getattr(module, name)
    count = 0

    def call(*arguments: Any, **named: Any) -> Any:
        nonlocal count
        count += 1
        if count > calls:
            raise KeyboardInterrupt
        return function(*arguments, **named)

    monkeypatch.setattr(module, name, call)


def count_calls(monkeypatch: pytest.MonkeyPatch, module: Any, name: str) -> list[int]:
    function: Callable[..., Any] = getattr(module, name)
    calls: list[int] = []

    def call(*arguments: Any, **named: Any) -> Any:
        calls.append(1)
        return function(*arguments, **named)

    monkeypatch.setattr(module, name, call)
    return calls


@pytest.fixture(scope="module")
def uninterrupted(data: Path, tmp_path_factory: pytest.TempPathFactory) -> Shrunk:
    return shrink(data, tmp_path_factory.mktemp("uninterrupted") / "small")


@pytest.mark.slow
@pytest.mark.parametrize(
    "interruptions",
    [
        [
            (ranking, "compute_features", 3),
            (finishing, "finetune", 1),
            (steps, "write_table", 0),
        ],
        [
            (building, "extract", 1),
            (building, "expand", 1),
            (finishing, "finetune", 0),
            (ranking, "evaluate_original", 0),
            (steps, "write_report", 0),
        ],
    ],
    ids=lambda interruptions: ", ".join(name for _, name, _ in interruptions),
)
def test_a_call_goes_on_after_each_of_several_interruptions(
    interruptions: list[tuple[Any, str, int]],
    data: Path,
    tmp_path: Path,
    uninterrupted: Shrunk,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    out, done = tmp_path / "small", []
    features = count_calls(monkeypatch, ranking, "compute_features")
    for number, (module, name, calls) in enumerate(interruptions):
        with monkeypatch.context() as patch:
            interrupt_after(patch, module, name, calls)
            with pytest.raises(KeyboardInterrupt):
                shrink(data, out, run=replace(RUN, resume=number > 0))
        assert not out.exists()
        with pytest.raises(Refused, match=r"continue it with Run\(resume=True\)"):
            shrink(data, out)
        done.append(len(features))
    result = shrink(data, out, run=replace(RUN, resume=True))
    assert fingerprint_of_state(result.model.state) == fingerprint_of_state(
        uninterrupted.model.state
    )
    assert result.model.provenance["metrics"] == uninterrupted.model.provenance["metrics"]
    assert [row.probe for row in result.table.rows] == [
        row.probe for row in uninterrupted.table.rows
    ]
    for (module, name, _), count in zip(interruptions, done):
        if module is not building:
            # Those of the candidates that were not probed, and of the test images of the original.
            left = {"compute_features": 3, "finetune": 1, "evaluate_original": 1}
            assert len(features) - count == left.get(name, 0), name


@pytest.mark.slow
def test_a_call_that_was_killed_in_its_first_extraction_goes_on(
    data: Path, tmp_path: Path, uninterrupted: Shrunk, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A killed process leaves the record of the extraction without any result."""
    out = tmp_path / "small"
    with monkeypatch.context() as patch:
        interrupt_after(patch, extraction, "suggest_check", 0)
        patch.setattr(folder, "clear", lambda *_, **__: None)  # a killed process clears nothing
        with pytest.raises(KeyboardInterrupt):
            shrink(data, out)
    (begun,) = out.with_name("small.run").glob("work/learngenes/*.run/run.json")
    assert read_json(begun)["finished"] is False
    result = shrink(data, out, run=replace(RUN, resume=True))
    assert fingerprint_of_state(result.model.state) == fingerprint_of_state(
        uninterrupted.model.state
    )


@pytest.mark.slow
def test_a_finished_call_is_not_repeated(data: Path, tmp_path: Path) -> None:
    first = shrink(data, tmp_path / "small")
    again = shrink(data, tmp_path / "small", run=Run(threads=1, device="cpu", resume=True))
    assert again.table == first.table
    with pytest.raises(Refused, match="already exists"):
        shrink(data, tmp_path / "small")


def test_a_file_of_the_user_is_not_replaced_where_nothing_is_resumed(
    data: Path, tmp_path: Path
) -> None:
    (tmp_path / "small.html").write_text("mine")
    with pytest.raises(Refused, match="already exists"):
        shrink(data, tmp_path / "small", run=Run(threads=1, device="cpu", resume=True))
    assert (tmp_path / "small.html").read_text() == "mine"


@pytest.mark.slow
def test_another_setting_is_refused_by_its_name(
    data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patch:
        interrupt_after(patch, finishing, "finetune", 0)
        with pytest.raises(KeyboardInterrupt):
            shrink(data, tmp_path / "small")
    resumed = Run(threads=1, device="cpu", resume=True)
    for change, words in (
        ({"max_params": 29_000}, "max_params: 30000 then, 29000 now"),
        ({"candidates": 4}, "candidates: 3 then, 4 now"),
        ({"epochs": 2}, "finetune.epochs: 1 then, 2 now"),
    ):
        with pytest.raises(Refused, match=words):
            shrink(data, tmp_path / "small", run=resumed, **change)


@pytest.mark.slow
def test_without_labels_the_best_candidate_is_healed(data: Path, tmp_path: Path) -> None:
    changes = {"task": None, "images": f"folder:{data / 'photos'}", "heal_epochs": 1}
    settings = {key: value for key, value in SMALL.items() if key not in ("epochs", "batch_size")}
    result = lg.shrink(
        str(data / "model"),
        out=tmp_path / "small",
        run=RUN,
        max_params=30_000,
        export="none",
        **{**settings, **changes},
    )
    assert isinstance(result.model, Descendant)
    assert result.model.spec.classes == 0
    assert result.table.rows[0].probe == 1.0
    assert result.table.winner.test is None
    probes = [row.probe for row in result.table.rows[1:]]
    assert probes == sorted(probes, reverse=True)
    assert "healed" in result.model.provenance
    assert load_descendant(tmp_path / "small").spec == result.model.spec


def lay_flat(photos: Path, top: Path) -> Path:
    for number, file in enumerate(sorted(photos.glob("*/*.png"))):
        (top / "flat").mkdir(exist_ok=True)
        (top / "flat" / f"{number}.png").write_bytes(file.read_bytes())
    return top / "flat"


def lay_nested(photos: Path, top: Path) -> Path:
    """Lay the pictures into two years with the same months, which are not classes."""
    for number, file in enumerate(sorted(photos.glob("*/*.png"))):
        month = top / "nested" / f"{2023 + number % 2}" / ("may", "june")[number // 2 % 2]
        month.mkdir(parents=True, exist_ok=True)
        (month / f"{number}.png").write_bytes(file.read_bytes())
    return top / "nested"


WITHOUT_LABELS = {"candidates": 6, "probe_images": 30, "heal_epochs": 1, "export": "none"}


@pytest.mark.slow
@pytest.mark.parametrize("lay", [lay_flat, lay_nested])
def test_a_folder_without_labels_is_enough(
    lay: Callable[[Path, Path], Path], data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder, seen = lay(data / "photos", tmp_path), []
    extract = building.extract

    def record(name: str, **named: Any) -> Any:
        learngene = extract(name, **named)
        for task in learngene.config.tasks:
            seen.append((name, task.classes, task.images))
        assert learngene.config.purpose is None
        return learngene

    monkeypatch.setattr(building, "extract", record)
    result = lg.shrink(
        str(data / "model"),
        images=f"folder:{folder}",
        out=tmp_path / "small",
        run=RUN,
        max_params=30_000,
        **WITHOUT_LABELS,
    )
    record_of_healing: Any = result.model.provenance["healed"]
    assert record_of_healing["images"]["classes"] == 1
    assert record_of_healing["metrics"]["training_images"] == 65
    assert {name for name, *_ in seen} >= {"closed_form", "weight_subcloning"}
    assert {(classes, images) for _, classes, images in seen} == {(1, 65)}


@pytest.mark.slow
def test_without_labels_the_call_can_be_interrupted(
    data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = lay_flat(data / "photos", tmp_path)
    call: dict[str, Any] = {"images": f"folder:{folder}", "max_params": 30_000, **WITHOUT_LABELS}
    call["candidates"] = 2
    whole = lg.shrink(str(data / "model"), out=tmp_path / "whole", run=RUN, **call)
    with monkeypatch.context() as patch:
        interrupt_after(patch, building, "expand", 1)
        with pytest.raises(KeyboardInterrupt):
            lg.shrink(str(data / "model"), out=tmp_path / "small", run=RUN, **call)
    resumed = Run(threads=1, device="cpu", resume=True)
    again = lg.shrink(str(data / "model"), out=tmp_path / "small", run=resumed, **call)
    assert fingerprint_of_state(again.model.state) == fingerprint_of_state(whole.model.state)


def test_methods_that_need_labels_are_left_out_without_labels(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    noted: list[str] = []
    needy = replace(METHODS.load("closed_form"), uses_labels=True)
    methods = [needy, METHODS.load("first_k"), METHODS.load("pruning")]
    place = "learngene_zoo.lifecycle.shrinking.candidates"
    monkeypatch.setattr(f"{place}.list_free_methods", lambda spec: methods)
    monkeypatch.setattr(f"{place}.print_note", lambda text, key: noted.append(text))
    assert list(list_offers(SPEC, 0, has_labels=False)) == ["first_k", "pruning"]
    assert noted == ["methods that need labels are left out: closed_form"]
    assert "closed_form" in list_offers(SPEC, 0)


@pytest.mark.slow
def test_a_task_without_labels_is_refused_with_the_option_that_takes_it(
    data: Path, tmp_path: Path
) -> None:
    folder = lay_flat(data / "photos", tmp_path)
    with pytest.raises(BadData, match=f'shrink without labels: images="folder:{folder}" instead'):
        shrink(data, tmp_path / "small", task=f"folder:{folder}")


@pytest.mark.slow
def test_the_estimate_counts_what_is_done(data: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """With FLOPs of 1 a second, the estimate is the number of FLOPs of all passes."""
    monkeypatch.setattr(estimate, "measure_rate", lambda *_: 1.0)

    def count(**changes: Any) -> float:
        settings = {"task": f"folder:{data / 'photos'}", "max_params": 30_000, "candidates": 2}
        return lifecycle.plan_shrink(str(data / "model"), run=RUN, **{**settings, **changes})[1]

    short, long = count(epochs=1), count(epochs=11)
    assert count(epochs=21) - long == pytest.approx(long - short)
    tried = count(epochs=11, tries=1)
    assert long - short == pytest.approx(2 * (tried - count(epochs=1, tries=1)), rel=0.2)
    once, twice, thrice = (count(epochs=1, heal=True, heal_epochs=n) for n in (1, 2, 3))
    assert thrice - twice == pytest.approx(twice - once)
    assert twice - once < once - short, "the model before training is examined, too"
    reference = f"folder:{data / 'photos'}"
    without = count(task=None, images=reference, heal_epochs=1)
    assert count(task=None, images=reference, heal_epochs=2) > without > 0
    assert count(max_drop=1, max_params=None, epochs=1) > 0


@pytest.mark.slow
def test_the_estimate_counts_extractions_and_expansions_as_methods_state_them(
    data: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(estimate, "measure_rate", lambda *_: 1.0)
    settings = {"task": f"folder:{data / 'photos'}", "max_params": 30_000, "candidates": 2}

    def estimate_time() -> float:
        return lifecycle.plan_shrink(str(data / "model"), run=RUN, epochs=1, **settings)[1]

    before = estimate_time()
    closed_form = METHODS.load("closed_form")
    extra = [Work(images=1, trained=0, solved=1e6)]
    for verb in (closed_form.extractor, closed_form.expander):
        stated = type(verb).work
        monkeypatch.setattr(
            type(verb), "work", lambda self, *given, f=stated: [*f(self, *given), *extra]
        )
        after = estimate_time()
        assert after - before == pytest.approx(1e6 * SOLVING_COST)
        before = after


def test_work_on_the_processor_is_as_slow_as_the_processor(monkeypatch: pytest.MonkeyPatch) -> None:
    speeds = {"bf16": 4.0, "fp32": 2.0}
    monkeypatch.setattr(estimate, "measure_rate", lambda *given: speeds[given[2].precision])
    flops, model = estimate.Flops(device=8.0, processor=8.0), torch.nn.Identity()
    assert estimate._compute_seconds(flops, model, SPEC, RUN) == 8.0
    bf16 = replace(RUN, precision="bf16")
    assert estimate._compute_seconds(flops, model, SPEC, bf16) == 6.0


@pytest.mark.slow
def test_max_drop_alone_tries_the_smallest_ones_near_the_original(
    data: Path, tmp_path: Path
) -> None:
    result = shrink(data, tmp_path / "small", max_params=None, max_drop=100, tries=1)
    rows = result.table.rows[1:]
    assert result.table.winner.params == min(row.params for row in rows)
    many = replace(result.table, validation_images=30)
    assert "within the accepted drop of 100" in many.describe_drop()
    assert result.table.describe_drop().endswith(
        "of the original: too few to show whether the accepted drop of 100 is kept"
    )


def test_without_epochs_the_best_ridge_head_wins(data: Path, tmp_path: Path) -> None:
    result = shrink(data, tmp_path / "small", epochs=0, tries=2)
    tried = [row.validation for row in result.table.rows[1:] if row.validation is not None]
    assert len(tried) == 2
    assert result.table.winner.validation == max(tried)
    assert result.table.trainings == ()


def test_a_missing_bound_is_named_before_an_existing_result(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("shrunk").mkdir()
    with pytest.raises(WrongCall, match="no bound is given"):
        lg.shrink(task="digits")


@pytest.mark.parametrize(
    ("changes", "error", "words"),
    [
        ({"max_params": None}, WrongCall, "no bound is given"),
        ({"task": None}, WrongCall, "no images are given"),
        ({"max_params": 10}, WrongCall, r"the smallest has 1 layer of width .* parameters \("),
        ({"max_params": 10**9}, WrongCall, "the model itself is within the budget"),
        (
            {"max_megabytes": 0.0001, "max_params": None},
            WrongCall,
            r"fits within 0\.0001 MB of fp32 weights; .* parameters \(\d+\), [\d.]+ MB and .* FLOPs",
        ),
        (
            {"max_megabytes": 1, "max_params": 10},
            WrongCall,
            r"fits within 10 parameters and 1 MB of fp32 weights; even without a head",
        ),
        (
            {"max_megabytes": 100, "max_params": None},
            WrongCall,
            r"within the budget \(.* parameters, [\d.]+ MB, .* FLOPs\); choose",
        ),
        ({"task": "scenes"}, WrongCall, "scenes has a class for every pixel"),
        ({"task": None, "images": "digits", "max_drop": 1}, WrongCall, "which need labels"),
        ({"task": None, "images": "digits"}, WrongCall, "epochs is a setting of the fine-tuning"),
        ({"export": "tflite"}, WrongCall, "tflite"),
        ({"tried": 3}, WrongCall, "did you mean 'tries'|tries"),
        ({"max_drop": -1}, WrongCall, "max_drop is -1"),
        ({"lr": -1.0}, WrongCall, "lr is -1"),
    ],
)
def test_wrong_calls_are_refused_before_anything_is_written(
    changes: dict[str, Any], error: type[Exception], words: str, data: Path, tmp_path: Path
) -> None:
    with pytest.raises(error, match=words):
        shrink(data, tmp_path / "small", **changes)
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("images", [{"a": 1, "b": 1}, {"a": 30}, {"a": 4, "b": 4}])
def test_too_few_images_or_classes_are_refused(
    images: dict[str, int], data: Path, tmp_path: Path
) -> None:
    for name, count in images.items():
        (tmp_path / "few" / name).mkdir(parents=True)
        for number in range(count):
            Image.new("RGB", (16, 16), (number, 0, 0)).save(
                tmp_path / "few" / name / f"{number}.png"
            )
    with pytest.raises(BadData, match=r"too few|one class|training images"):
        shrink(data, tmp_path / "small", task=f"folder:{tmp_path / 'few'}")
    assert [path.name for path in tmp_path.iterdir()] == ["few"]


def test_a_model_that_no_method_takes_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        "learngene_zoo.lifecycle.shrinking.candidates.list_free_methods", lambda spec: []
    )
    with pytest.raises(WrongCall, match="no method without training takes a model of this shape"):
        list_offers(SPEC, 3)


def test_the_format_of_the_export_depends_on_the_packages(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    place = "learngene_zoo.lifecycle.shrinking.request.find_spec"
    monkeypatch.setattr(place, lambda name: object())
    assert choose_export("auto") == "onnx"
    monkeypatch.setattr(place, lambda name: None)
    assert choose_export("auto") == "none"
    assert choose_export("pt2") == "pt2"
    assert capsys.readouterr().err == ""
    with print_activities():
        print_note_on_export("pt2")
        print_note_on_export("auto")
    assert "no ONNX file is written, because onnx is not installed" in capsys.readouterr().err
