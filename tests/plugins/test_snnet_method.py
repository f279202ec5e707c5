"""SN-Net as a method: from ancestry models to descendants of any configuration, and what it
refuses.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from stitching_toy import anchors

from learngene_zoo import lifecycle
from learngene_zoo.artifacts.descendant import Descendant
from learngene_zoo.artifacts.learngene import Learngene
from learngene_zoo.artifacts.records import LearngeneConfig
from learngene_zoo.errors import BadFile, WrongCall
from learngene_zoo.families.picture_format import View
from learngene_zoo.families.vit.spec import ViTSpec
from learngene_zoo.method.installed import METHODS
from learngene_zoo.method.sizes import Budget, Target
from learngene_zoo.pretrained.ancestry import Ancestry
from learngene_zoo.runs.run import Run
from learngene_zoo.settings import with_settings
from learngene_zoo.tasks.task import Samples
from learngene_zoo.testing import make_tiny_task
from learngene_zoo.training import fit
from learngene_zoo.training.evaluate import evaluate
from lgzoo_pool.details import StitchedDetails, read_details
from lgzoo_pool.snnet import SnnetExpander, attach_heads

METHOD = METHODS.load("snnet")
TASK = make_tiny_task(classes=4)


def extract_snnet(
    ancestries: Sequence[Ancestry] | None = None,
    run: Run | None = None,
    task: Any = TASK,
    **settings: Any,
) -> Learngene:
    extractor = with_settings(METHOD.presets["smoke"], settings)
    learngene = extractor(ancestries or anchors((2, 2)), [task], run or Run())
    return learngene.with_config(method="snnet")


def make_anchors(depths: tuple[int, ...] = (2, 2)) -> list[Ancestry]:
    """Anchors whose heads are the tiny task's."""
    return [replace(ancestry, class_names=TASK.class_names) for ancestry in anchors(depths)]


class MaskedSplit:
    """The images of a split of the tiny task, with a mask of their class."""

    def __init__(self, name: str) -> None:
        self.split = TASK.split(name)
        self.labels = self.split.labels

    def __len__(self) -> int:
        return len(self.split)

    def __getitems__(self, indices: Sequence[int]) -> Samples:
        images: Any = self.split.__getitems__(indices)
        labels = torch.as_tensor([int(self.labels[index]) for index in indices], dtype=torch.uint8)
        masks = labels[:, None, None].expand(-1, *images.shape[-2:]).contiguous()
        return Samples(images, masks=masks)


@pytest.fixture(scope="module")
def gene() -> Learngene:
    return extract_snnet(anchors((2, 3)), unequal="window")  # more paths than by the released rule


def test_what_an_extraction_holds(gene: Learngene) -> None:
    details = gene.config.details
    assert details["anchors"] == [
        {"layers": 2, "width": 16, "heads": 1},
        {"layers": 3, "width": 32, "heads": 2},
    ]
    assert (details["task"], details["classes"], details["dense"]) == ("tiny", 4, False)
    metrics = gene.config.metrics
    paths = read_details(gene.config).layout.paths
    assert [row["config"] for row in metrics["paths"]] == list(range(len(paths)))
    assert all(0 <= row["accuracy"] <= 1 and row["images"] == 12 for row in metrics["paths"])
    assert metrics["stitches"]["images"] == 16
    assert metrics["training"]["training_images"] == 32
    assert 0 < metrics["stitches"]["norm_ratio"]["mean"] < 2


def test_a_task_with_masks_is_evaluated_by_its_mean_iou() -> None:
    dense = replace(TASK, name="masks", kind="segmentation", open_split=MaskedSplit)
    metrics = extract_snnet(task=dense).config.metrics
    assert all(0 <= row["mIoU"] <= 1 for row in metrics["paths"])
    assert "warning" not in metrics["training"]


def test_the_recorded_accuracy_is_that_of_the_descendant(gene: Learngene) -> None:
    for number in (1, 4):
        descendant = lifecycle.expand(
            gene, target=Target(task="tiny", classes=4, dense=False), config=number
        )
        evaluation = evaluate(
            descendant.model(), TASK, "validation", descendant.input_format, Run()
        )
        assert evaluation.value == pytest.approx(gene.config.metrics["paths"][number]["accuracy"])
        assert descendant.task == "tiny"


def test_paths_that_learnt_nothing_have_a_warning(monkeypatch: pytest.MonkeyPatch) -> None:
    assert not extract_snnet(make_anchors()).list_warnings()
    monkeypatch.setattr(fit, "find_constant_share", lambda task: 0.99)
    texts = extract_snnet(make_anchors()).list_warnings()
    assert [text.partition(" on ")[0] for text in texts] == [
        "snnet, training: the model is no better than a constant answer"
    ]


def test_every_part_is_done_once(tmp_path: Path) -> None:
    full = extract_snnet(anchors((2, 2)), Run(folder=tmp_path / "run", seed=2))
    assert {path.name for path in (tmp_path / "run" / "parts").iterdir()} == {
        "stitches",
        "training",
        "teacher",
    }
    before = {path: path.stat().st_mtime_ns for path in (tmp_path / "run").rglob("*.safetensors")}
    again = extract_snnet(anchors((2, 2)), Run(folder=tmp_path / "run", seed=2, resume=True))
    assert before == {
        path: path.stat().st_mtime_ns for path in (tmp_path / "run").rglob("*.safetensors")
    }
    assert again.config == full.config
    assert all(torch.equal(again.state[name], tensor) for name, tensor in full.state.items())


def test_a_teacher_with_the_tasks_head_is_not_trained_and_heads_are_kept() -> None:
    """With stitches alone trained, the anchors stay the ancestry models but for their
    class tokens.
    """
    ancestries = make_anchors()
    gene = extract_snnet(ancestries, trained="stitches", judged=0)
    assert set(gene.config.metrics) == {"stitches", "training"}
    for index, ancestry in enumerate(ancestries):
        for name, tensor in ancestry.state.items():
            same = torch.equal(gene.state[f"anchors.{index}.{name}"], tensor)
            assert same or name == "cls_token", name
    assert not torch.equal(gene.state["stitches.0.0.bias"], torch.zeros(32))


@pytest.mark.parametrize(
    "settings",
    [
        {"guidance": "soft", "temperature": 2.0},
        {"guidance": "none"},
        {"stitch": "random"},
        {"trained": "stitches"},
        {"stitch_images": 8},
        {"share": 0.1},
    ],
    ids=str,
)
def test_every_setting_changes_what_comes_out(settings: dict[str, Any]) -> None:
    usual, other = (
        extract_snnet(make_anchors(), judged=0),
        extract_snnet(make_anchors(), judged=0, **settings),
    )
    assert set(usual.state) == set(other.state)
    assert any(not torch.equal(usual.state[name], tensor) for name, tensor in other.state.items())
    assert ("stitches" in other.config.metrics) is (settings.get("stitch") != "random")


def test_windows_and_far_stitches_are_kept_in_the_details() -> None:
    gene = extract_snnet(anchors((2, 2, 2)), nearest=False, window=1, judged=0)
    layout = read_details(gene.config).layout
    assert (layout.nearest, layout.window, layout.stride) == (False, 1, 1)
    assert len(layout.paths) == 3 + 3 * 2 + 3
    number = max(range(len(layout.paths)), key=lambda place: len(layout.paths[place].parts))
    assert len(SnnetExpander(config=number)(gene, Target(), Run()).spec.front) == 2


def expand_to(gene: Learngene, **sizes: Any) -> Descendant:
    return lifecycle.expand(gene, **sizes)


def test_sizes_and_budgets_choose_a_configuration(gene: Learngene) -> None:
    members = METHOD.expander.family(gene.config)
    assert expand_to(gene).spec == members[1].spec, "the widest anchor"
    assert expand_to(gene, width=16).spec == members[0].spec, "the anchor of that width"
    largest = max(members, key=lambda member: member.cost())
    assert expand_to(gene, layers=largest.spec.layers).spec == largest.spec
    four = [member for member in members if member.spec.layers == 4]
    assert expand_to(gene, layers=4).cost() == max(member.cost() for member in four)
    assert expand_to(gene, config=0).spec == members[0].spec
    most = sorted(member.cost() for member in members)[4]
    assert expand_to(gene, budget=Budget(max_params=most.params)).cost() == most
    assert expand_to(gene, max_params=most.params, legacy=True).spec.final_norm is False


@pytest.mark.parametrize(
    ("sizes", "says"),
    [
        ({"config": 99}, "no path with config 99; config can be 0 to"),
        ({"config": -1}, "no path with config -1"),
        ({"layers": 40}, "no path with layers 40; layers can be 2 to 5"),
        (
            {"config": 0, "layers": 3},
            (
                "no path with config 0 and layers 3; with layers 3 config can be .*, with config 0"
                " layers can be 2"
            ),
        ),
        ({"width": 20}, "no path with width 20; width can be 16, 32"),
        (
            {"layers": 5, "width": 16},
            "with width 16 layers can be 2, with layers 5 width can be 32",
        ),
        ({"heads": 3}, "heads can be 1, 2"),
    ],
)
def test_sizes_that_there_are_not(gene: Learngene, sizes: dict[str, Any], says: str) -> None:
    with pytest.raises(WrongCall, match=says):
        expand_to(gene, **sizes)


def shape(**changes: Any) -> ViTSpec:
    return ViTSpec(
        **{"layers": 2, "width": 32, "heads": 2, "image_size": 32, "patch_size": 8, **changes}
    )


@pytest.mark.parametrize(
    ("wide", "says"),
    [
        ({"patch_size": 4}, "patch size is 8 and 4"),
        ({"image_size": 64}, "image size is 32 and 64"),
        ({"pool": "avg"}, "pool is token and avg"),
        ({"class_token": False, "pool": "avg"}, "cannot be stitched"),
        ({"mlp_ratio": 2.0}, "mlp ratio is 4.0 and 2.0"),
        ({"width": 16, "heads": 1}, "same width of 16"),
        (
            {"width": 8, "heads": 1},
            "widths 16 and 8; stitches lead from narrow to wide: give the narrower one first",
        ),
    ],
)
def test_ancestries_that_cannot_be_stitched(wide: dict[str, Any], says: str) -> None:
    with pytest.raises(WrongCall, match=says):
        METHOD.extractor.outline([shape(width=16, heads=1), shape(**wide)])


def test_nothing_is_written_for_ancestries_that_cannot_be_stitched(
    tmp_path: Path, monkeypatch: Any
) -> None:
    first, second = anchors((2, 2))
    sources = {"narrow": first, "wide": second}
    monkeypatch.setattr(
        "learngene_zoo.pretrained.ancestry.open_ancestry", lambda source, **_: sources[source]
    )
    monkeypatch.setattr("learngene_zoo.lifecycle.extraction.check_source", lambda source: None)
    monkeypatch.setattr("learngene_zoo.lifecycle.extraction.open_task", lambda reference, **_: TASK)
    with pytest.raises(WrongCall, match="give the narrower one first"):
        lifecycle.extract(
            "snnet", ancestries=["wide", "narrow"], tasks=["t"], out=tmp_path / "learngene"
        )
    assert not list(tmp_path.iterdir())
    for count in (1, 4):
        with pytest.raises(WrongCall, match=f"takes 2 to 3 ancestry models .*not {count}"):
            lifecycle.extract(
                "snnet", ancestries=["narrow"] * count, tasks=["t"], out=tmp_path / "learngene"
            )


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"mean": (0.4, 0.4, 0.4)}, r"formats: mean \[0.5, 0.5, 0.5\] and \[0.4, 0.4, 0.4\]; use"),
        ({"view": View(crop_pct=0.9)}, "formats: crop_pct 1.0 and 0.9; use"),
    ],
    ids=["mean", "view"],
)
def test_anchors_that_see_images_differently_are_refused(
    changes: dict[str, Any], says: str
) -> None:
    first, second = anchors((2, 2))
    other = replace(second, record=replace(second.record, **changes))
    with pytest.raises(WrongCall, match=f"ancestries 1 and 2 need images in different {says}"):
        extract_snnet([first, other])


def test_anchors_see_images_as_their_ancestry_models() -> None:
    view = View(crop_pct=0.5, interpolation="bilinear")
    ancestries = [
        replace(ancestry, record=replace(ancestry.record, view=view))
        for ancestry in anchors((2, 2))
    ]
    models, _ = attach_heads(ancestries, TASK, 0)
    assert [model.input_format for model in models] == [a.input_format for a in ancestries]


@pytest.mark.parametrize(
    ("settings", "says"),
    [
        ({"window": 0}, "window is 0"),
        ({"stitch_images": 0}, "stitch_images is 0"),
        ({"share": 1.5}, "share is 1.5"),
        ({"temperature": 0.0}, "temperature is 0.0"),
        ({"judged": -1}, "judged is -1"),
    ],
)
def test_settings_that_cannot_be_meant(settings: dict[str, Any], says: str) -> None:
    with pytest.raises(WrongCall, match=says):
        with_settings(METHOD.extractor, settings)


GOOD = (
    LearngeneConfig(spec=shape())
    .with_details(StitchedDetails.from_specs([shape(width=16, heads=1), shape()]))
    .details
)


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"anchors": []}, "got the widths none"),
        ({"anchors": GOOD["anchors"][::-1]}, "each wider than the one before"),
        ({"anchors": "many"}, "expected a list"),
        ({"anchors": [{"layers": 2, "width": 16}] * 2}, "the key 'heads' is missing"),
        (
            {"anchors": [{**GOOD["anchors"][0], "heads": 3}, GOOD["anchors"][1]]},
            "3 heads do not divide a width of 16",
        ),
        (
            {"anchors": [GOOD["anchors"][0], {**GOOD["anchors"][1], "width": 64}]},
            "last anchor has 2 layers of width 64",
        ),
        ({"anchors": [{**GOOD["anchors"][0], "layers": 0}, GOOD["anchors"][1]]}, "layers is 0"),
        ({"window": 0}, "window is 0"),
        ({"nearest": "yes"}, 'nearest is "yes"'),
        ({"classes": "4"}, 'classes is "4"'),
    ],
)
def test_details_that_cannot_be_are_a_bad_file(changes: dict[str, Any], says: str) -> None:
    config = LearngeneConfig(method="snnet", spec=shape(), details={**GOOD, **changes})
    with pytest.raises(BadFile, match=says):
        METHOD.expander.family(config)


def test_the_work_is_known_beforehand() -> None:
    """Two anchors of one block, half as wide and whole: paths of 1/2, 1 and 3/2 layers of the
    widest.
    """
    specs = [shape(layers=1, width=16, heads=1), shape(layers=1)]
    (work,) = with_settings(METHOD.extractor, {"images": 100, "epochs": 3}).work(specs, [5000])
    assert (work.images, work.trained, work.frozen) == (300, 1.0, 1.0)
    (alone,) = with_settings(METHOD.extractor, {"images": None, "guidance": "none"}).work(
        specs, [5000]
    )
    assert (alone.images, alone.frozen) == (5000, 0.0)
