"""Values of small parts, each by a law or by hand."""

from __future__ import annotations

from dataclasses import replace
from importlib.metadata import version
from inspect import signature
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from click.testing import CliRunner
from timm.models.vision_transformer import VisionTransformer
from torchvision.transforms import v2

from learngene_zoo import ownership
from learngene_zoo.artifacts import records
from learngene_zoo.artifacts.descendant import assemble
from learngene_zoo.bench.grid.cell import Arm, Cell, Extraction
from learngene_zoo.bench.report import pictures
from learngene_zoo.bench.results import statistics
from learngene_zoo.bench.running import extraction, trial
from learngene_zoo.bench.running import on_ray as ray_executor
from learngene_zoo.bench.running.extraction import ExtractionCost
from learngene_zoo.cli import expand as cli_expand
from learngene_zoo.cli import listing
from learngene_zoo.cli.main import main
from learngene_zoo.errors import BadData, BadFile, Unavailable, WrongCall
from learngene_zoo.families.picture_format import InputFormat
from learngene_zoo.families.timm_config import read_spec
from learngene_zoo.families.vit.spec import ViTSpec
from learngene_zoo.method.contract import Work
from learngene_zoo.method.installed import METHODS
from learngene_zoo.publishing import publication
from learngene_zoo.runs import folder as run_folder
from learngene_zoo.runs.run import Run, open_device
from learngene_zoo.seeds import derive_seed
from learngene_zoo.settings import Recipe
from learngene_zoo.tasks import deit, transforms
from learngene_zoo.tasks.catalogue import DEFAULT_TASKS, SOURCE_TASK
from learngene_zoo.tasks.splits import assembly
from learngene_zoo.tasks.streams import places
from learngene_zoo.testing import make_tiny_task
from learngene_zoo.training import report
from learngene_zoo.version import __version__

SPEC = ViTSpec(layers=2, width=16, heads=2, classes=3, image_size=16, patch_size=8)

# Statistics of a bench.


def test_a_plan_over_these_very_tasks_does_not_depend_on_how_far_tasks_differ() -> None:
    near, far = (statistics.Spread(tasks=tasks, seeds=0.2, rest=0.5) for tasks in (0.0, 40.0))
    assert statistics.plan_effect(3, 4, near, "seeds") == pytest.approx(
        statistics.plan_effect(3, 4, far, "seeds")
    )
    assert statistics.plan_effect(3, 4, far, "tasks") > 5 * statistics.plan_effect(
        3, 4, near, "tasks"
    )


def test_a_forward_pass_counts_as_a_third_of_a_training_step(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A backward pass costs about two forward ones."""
    works = [Work(images=100, trained=6), Work(images=100, trained=0, frozen=6)]
    for chosen, layers in ((works[:1], 600), (works[1:], 200), (works, 800)):
        monkeypatch.setattr(extraction, "estimate_works", lambda *_, chosen=chosen: chosen)
        assert extraction.estimate_work(
            Extraction(arm=Arm(name="tal", method="tal"), seed=0)
        ) == pytest.approx(layers)


def test_the_control_of_shuffled_weights_has_a_seed_of_its_own(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    from learngene_zoo.artifacts import descendant

    seeds: dict[str, int] = {}

    def controlled(start: Any, control: str, seed: int) -> Any:
        seeds[control] = seed
        return start

    start, task = assemble(SPEC, {}, seed=0, scheme="fan_in"), make_tiny_task()
    monkeypatch.setattr(descendant, "apply_control", controlled)
    monkeypatch.setattr(trial, "expand_cell", lambda *_: start)
    for control in ("shuffled", "stem"):
        arm = Arm(name="one", method="lsamd", control=control)  # type: ignore[arg-type]
        cell = Cell(arm=arm, task=task.name, layers=2, seed=0, recipe=Recipe())
        trial.build_start(cell, None, task, Run(seed=7))  # type: ignore[arg-type]
    assert seeds == {"shuffled": derive_seed(7, "shuffle"), "stem": 7}


def test_a_learngene_that_another_machine_extracted_is_copied_here(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Error(Exception):
        pass

    taken: list[Any] = []
    monkeypatch.setattr(ray_executor, "unpack", lambda made, job, out: taken.append((made, job)))
    ray = ray_executor.Ray.__new__(ray_executor.Ray)
    extracted = Extraction(arm=Arm(name="tal", method="tal"), seed=0)
    cell = Cell(arm=extracted.arm, task="digits", layers=2, seed=0, recipe=Recipe())
    answers = {
        "extracted": (extracted, ExtractionCost(), b"packed"),
        "cell": (cell, "row", None),
        "failed": (extracted, "failure", None),
    }
    ray._out, ray._jobs = tmp_path, {name: answer[0] for name, answer in answers.items()}
    ray._ray = SimpleNamespace(
        wait=lambda jobs, num_returns: ([jobs[0]], jobs[1:]),
        get=lambda name: answers[name][1:],
        exceptions=SimpleNamespace(RayError=Error),
    )
    for job, outcome, _ in answers.values():
        assert ray.wait() == (job, outcome)
    assert taken == [(b"packed", extracted)]


def test_the_pareto_front_lies_behind_everything_else() -> None:
    condition = SimpleNamespace(epochs=1)
    lines = [
        SimpleNamespace(
            arm=arm, params=params, condition=condition, metric="accuracy",
            value=SimpleNamespace(value=value, low=value - 0.1, high=value + 0.1, interval="95 %"),
        )
        for arm in ("one", "two")
        for params, value in ((1e6, 0.5), (2e6, 0.6))
    ]  # fmt: skip
    look = {"color": "black"}
    panel = pictures.subplots(1, 1, (3, 3))[1][0]
    pictures._draw_pareto_panel(panel, lines, {"one": look, "two": look})  # type: ignore[arg-type, dict-item]
    by_name = {line.get_label(): line.get_zorder() for line in panel.lines}
    front = by_name.pop("Pareto front of the means")
    assert by_name
    assert all(front < other for other in by_name.values())


# Artifacts.


def test_the_versions_are_those_of_the_packages() -> None:
    records.list_versions.cache_clear()
    result = dict(records.list_versions())
    assert result.pop("learngene_zoo") == __version__
    assert result == {
        name: version(name) for name in ("torch", "timm", "safetensors", "accelerate", "datasets")
    }


def test_only_a_learngene_is_published_with_descendants(tmp_path: Path) -> None:
    model = assemble(SPEC, {}, seed=0, scheme="fan_in")
    assert publication._open_members(model, []) == {}
    with pytest.raises(WrongCall, match="descendants is for publishing a learngene"):
        publication._open_members(model, [tmp_path])


def test_objects_are_shown_in_one_line() -> None:
    import learngene_zoo as lg
    from learngene_zoo.pretrained.ancestry import open_ancestry

    model = replace(
        assemble(SPEC, {}, seed=0), provenance={"method": "first_k"}, folder=Path("model")
    )
    params = f"{model.cost().params:,}"
    shown = (
        f"Descendant(first_k: 2 layers, width 16, {params} parameters, task=None, classes=3,"
        " folder='model')"
    )
    assert repr(model) == shown
    gene = lg.load("closed_form-mini")
    assert repr(gene).startswith("Learngene(closed_form from bundled, ")
    assert repr(open_ancestry("bundled")) == "Ancestry('bundled', 12 layers, width 96)"
    assert max(len(repr(item)) for item in (model, gene)) < 200


# Models.


RATES = [
    name
    for name in signature(VisionTransformer).parameters
    if name.endswith(("drop_rate", "path_rate"))
]


@pytest.mark.parametrize("rate", RATES)
def test_rates_of_dropping_out_change_no_model(rate: str) -> None:
    """These arguments of timm apply only in training."""
    assert len(RATES) == 6
    config = {"architecture": "vit_tiny_patch16_224", "pretrained_cfg": {"num_classes": 5}}
    plain = read_spec({**config, "model_args": {"depth": 2}}, "FILE")
    assert read_spec({**config, "model_args": {"depth": 2, rate: 0.1}}, "FILE") == plain


@pytest.mark.parametrize(
    "names", [["scale_attn_norm"], ["scale_mlp_norm"], ["scale_attn_norm", "scale_mlp_norm"]]
)
@pytest.mark.parametrize("value", [True, False])
def test_norms_within_attention_and_mlp_come_together(names: list[str], value: bool) -> None:
    config = {"architecture": "vit_tiny_patch16_224", "pretrained_cfg": {"num_classes": 5}}
    arguments = {"depth": 2, **dict.fromkeys(names, value)}
    if value and len(names) == 1:
        with pytest.raises(
            BadFile, match="has one of scale_attn_norm and scale_mlp_norm; only both are supported"
        ):
            read_spec({**config, "model_args": arguments}, "FILE")
        return
    spec = read_spec({**config, "model_args": arguments}, "FILE")
    assert isinstance(spec, ViTSpec)
    assert spec.scale_norms is value


def test_a_packed_gate_needs_an_even_hidden_width() -> None:
    ViTSpec(layers=1, width=48, heads=3, mlp="swiglu_packed", mlp_ratio=2.0)
    with pytest.raises(
        WrongCall, match=r"'swiglu_packed' needs an even hidden width; 45 x 3.0 gives 135"
    ):
        ViTSpec(layers=1, width=45, heads=3, mlp="swiglu_packed", mlp_ratio=3.0)


def test_a_gpu_that_is_not_there_is_named_with_those_that_are(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    chosen: list[int] = []
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    monkeypatch.setattr(torch.cuda, "set_device", chosen.append)
    for name, number in (("cuda", 0), ("cuda:0", 0), ("cuda:1", 1)):
        assert open_device(Run(device=name)) == torch.device("cuda", number)
    assert chosen == [0, 0, 1]
    for name in ("cuda:2", "cuda:7"):
        with pytest.raises(
            Unavailable, match=f"{name} does not exist: this machine has 2 GPUs, counted from 0"
        ):
            open_device(Run(device=name))


# Runs.


def test_a_run_keeps_things_in_its_folder_and_in_those_of_its_parts(tmp_path: Path) -> None:
    assert list(run_folder._iterate_folders(tmp_path)) == [tmp_path]
    (tmp_path / "other").mkdir()
    inner = tmp_path / "parts" / "one" / "parts" / "two"
    inner.mkdir(parents=True)
    result = list(run_folder._iterate_folders(tmp_path))
    assert result[0] == tmp_path
    assert result[1] == tmp_path / "parts"
    assert set(result[2:]) == {inner, *inner.parents} - {
        tmp_path / "parts",
        tmp_path,
        *tmp_path.parents,
    }


def test_only_a_marked_draft_is_removed(tmp_path: Path) -> None:
    for name, is_marked in (("theirs", False), ("ours", True)):
        draft = tmp_path / f".{name}"
        draft.mkdir()
        if is_marked:
            ownership.write_draft_mark(draft)
        (draft / "inner").mkdir()
        (draft / "inner" / "file").write_text("x")
        ownership.remove_draft(draft)
        assert draft.is_dir() is not is_marked
    assert (tmp_path / ".theirs" / "inner" / "file").read_text() == "x"


# Tasks.


@pytest.mark.parametrize(
    ("kind", "tasks"), [("none", []), ("one", [SOURCE_TASK]), ("many", list(DEFAULT_TASKS))]
)
def test_the_tasks_of_an_extraction_that_names_none(kind: str, tasks: list[str]) -> None:
    method = replace(METHODS.load("lsamd"), tasks=kind)  # type: ignore[arg-type]
    assert method.references(()) == tasks


def test_what_a_task_records() -> None:
    task = replace(make_tiny_task(classes=4), revision="abc", licence="mit", source="somewhere")
    record = task.record
    assert (record.name, record.source, record.kind) == ("tiny", "somewhere", "classification")
    assert (record.classes, record.images) == (4, task.sizes["train"])
    assert (record.revision, record.licence) == ("abc", "mit")
    assert replace(task, kind="segmentation").record.kind == "segmentation"


def test_of_several_classes_that_are_not_in_train_the_first_is_named() -> None:
    with pytest.raises(BadData, match="x: class 'ant' of test is not in train"):
        assembly.check_train_classes("x", {"train": ["bee"], "test": ["bee", "cat", "ant", "dog"]})
    assert assembly.check_train_classes("x", {"train": ["bee", "cat"], "test": ["cat"]}) == {
        "bee",
        "cat",
    }


def test_a_connection_that_breaks_is_waited_for_twice_as_long_each_time(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    class Broken:
        def readinto(self, buffer: Any) -> int:
            raise OSError("broken")

        def close(self) -> None: ...

    def connect(self: Any) -> None:
        self._answer = Broken()

    waited: list[float] = []
    monkeypatch.setattr(places.time, "sleep", waited.append)
    monkeypatch.setattr(places.RemoteFile, "_connect", connect)
    with pytest.raises(Unavailable, match=r"broken"):
        places.RemoteFile("https://x.org/a.tar").readinto(bytearray(8))
    assert waited == [2.0**number for number in range(places.TRIES - 1)]
    assert len(waited) >= 2


IMAGES = [
    torch.randint(
        0, 256, (3, 20, 20), generator=torch.Generator().manual_seed(n), dtype=torch.uint8
    )
    for n in (1, 2)
]
FORMAT = InputFormat(image_size=16, mean=(0.4, 0.5, 0.6), std=(0.2, 0.25, 0.3))


@pytest.mark.parametrize("flip", [True, False])
def test_an_augmentation_mirrors_only_where_a_mirrored_picture_keeps_its_label(
    flip: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls: list[tuple[int, bool]] = []

    def change(size: int, flip: bool) -> Any:
        calls.append((size, flip))
        return lambda *images: torch.zeros(3, size, size) if len(images) == 1 else images

    monkeypatch.setattr(transforms, "_create_rand", change)
    transforms.augment_images(IMAGES, None, "rand", FORMAT, (7, 1, [3, 5], flip))
    assert calls == [(16, flip)]
    steps = [transforms._create_joint_rand(16, flip).transforms]
    monkeypatch.undo()
    steps.append(transforms._create_rand(16, flip).transforms)
    for own in steps:
        assert any(isinstance(step, v2.RandomHorizontalFlip) for step in own) == flip


def test_erasing_has_seeds_of_its_own() -> None:
    how = (7, 3, [4, 9], True)
    full = transforms.fit_images(IMAGES, 16, FORMAT.view)
    changed = deit.apply_deit_augmentation(
        list(full), FORMAT, deit.derive_seeds("deit", 7, 3, [4, 9]), True
    )
    right = deit.erase_rectangles(
        transforms.normalise_images(changed, FORMAT), deit.derive_seeds("erased", 7, 3, [4, 9])
    )
    erased, _ = transforms.augment_images(IMAGES, None, "deit", FORMAT, how)
    assert torch.equal(erased, right)


def test_pictures_with_masks_are_moved_as_far_as_randaugment_moves_pictures() -> None:
    """torchvision's ranges for a side of 331 pixels, at magnitude 9 of 30."""
    space = v2.RandAugment()._AUGMENTATION_SPACE
    right = {
        name: float(how(31, 331, 331)[9])
        for name, (how, _) in space.items()
        if how(31, 331, 331) is not None
    }
    choice = next(
        item
        for item in transforms._create_joint_rand(16, False).transforms
        if isinstance(item, v2.RandomChoice)
    )
    affine = [item for item in choice.transforms if isinstance(item, v2.RandomAffine)]
    shears = [item.shear for item in affine if item.shear is not None]
    assert [max(np.tan(np.deg2rad(np.abs(shear)))) for shear in shears] == pytest.approx(
        [right["ShearX"], right["ShearY"]], rel=0.02
    )
    assert [item.translate for item in affine if item.translate] == [
        (pytest.approx(right["TranslateX"] / 331, rel=0.01), 0.0),
        (0.0, pytest.approx(right["TranslateY"] / 331, rel=0.01)),
    ]
    assert [item.degrees for item in affine if any(item.degrees)] == [
        [-right["Rotate"], right["Rotate"]]
    ]
    jitters = [item for item in choice.transforms if isinstance(item, v2.ColorJitter)]
    for jitter, name, field in zip(
        jitters, ("Brightness", "Color", "Contrast"), ("brightness", "saturation", "contrast")
    ):
        assert getattr(jitter, field) == pytest.approx((1 - right[name], 1 + right[name]))
    (posterize,) = (item for item in choice.transforms if isinstance(item, v2.RandomPosterize))
    (solarize,) = (item for item in choice.transforms if isinstance(item, v2.RandomSolarize))
    assert posterize.bits == right["Posterize"]
    assert solarize.threshold == pytest.approx(255 * right["Solarize"], abs=1)


# Text and reports.


def test_a_curve_has_a_point_for_every_epoch() -> None:
    curve = report._draw_curve("loss", [(1, 4.0), (2, 2.0), (3, 3.0)])
    points = [tuple(map(float, point)) for point in curve["points"]]
    assert [x for x, _ in points] == [40.0, 220.0, 400.0]
    assert [y for _, y in points] == [30.0, 150.0, 90.0]  # the largest is at the top


def test_columns_of_numbers_alone_are_aligned_to_the_right(
    capsys: pytest.CaptureFixture[str],
) -> None:
    from learngene_zoo.cli.job import print_rows

    print_rows(
        [
            {"count": 5, "mixed": 7},
            {"count": 1000, "mixed": "abcdefgh"},
            {"count": None, "mixed": None},
        ],
        False,
    )
    lines = capsys.readouterr().out.splitlines()
    five, thousand = (next(line for line in lines if word in line) for word in ("7", "abcdefgh"))
    assert five.index("5") == thousand.index("1000") + 3
    assert five.index("7") == thousand.index("abcdefgh")


def test_without_a_learngene_the_line_says_how_to_get_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(
        WrongCall, match=r"no learngene at ./learngene; .*`lgzoo extract closed_form`"
    ):
        cli_expand.find(None)


def test_a_suite_that_cannot_be_used_is_named(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    broken = SimpleNamespace(name="mine", reference="my_package:SUITE")
    monkeypatch.setattr(listing.catalogue, "load_suites", lambda: ((), [broken]))
    listing.list_tasks()
    assert (
        "suite mine of my_package:SUITE cannot be used; see lgzoo doctor" in capsys.readouterr().err
    )


@pytest.mark.parametrize(("is_terminal", "words"), [(True, []), (False, []), (True, ["--quiet"])])
def test_publishing_shows_a_bar_on_a_terminal_only(
    is_terminal: bool, words: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from learngene_zoo.publishing import publish

    shown: list[bool] = []

    def carry_out(made: Any, *, progress: bool, **_: Any) -> Any:
        shown.append(progress)
        raise Unavailable("no network")

    monkeypatch.setattr(publish, "carry_out", carry_out)
    monkeypatch.setattr(
        "learngene_zoo.cli.hub.sys",
        SimpleNamespace(stderr=SimpleNamespace(isatty=lambda: is_terminal)),
    )
    assemble(SPEC, {}, seed=0, scheme="fan_in").save(tmp_path / "model")
    CliRunner().invoke(main, ["publish", str(tmp_path / "model"), "me/model", *words])
    assert shown == [is_terminal and not words]
