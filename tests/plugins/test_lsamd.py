"""LSAMD as a method: settings, outline, family, costs and refusals. Nothing here trains."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import replace

import pytest

from learngene_zoo.artifacts.records import LearngeneConfig
from learngene_zoo.errors import BadFile, WrongCall
from learngene_zoo.families.timm_config import find_architecture
from learngene_zoo.settings import from_json, list_settings, to_json, with_settings
from learngene_zoo.tasks.catalogue import find_suite
from learngene_zoo.testing import make_tiny_task
from lgzoo_lsamd.blocks import LsamdExpander, read_kept_blocks
from lgzoo_lsamd.lsamd import LSAMD, LsamdExtractor
from lgzoo_lsamd.settings import check_rates

KEPT = (1, 4, 5, 7, 8)
DEIT = find_architecture("deit_base_patch16_224")

# LSAMD, Table 2: layers, parameters in millions, FLOPs in billions, at 100 classes, and the same to
# the last digit.
TABLE_2 = [
    (5, 36.11, 7.09, 36108388, 7094059008),
    (6, 43.20, 8.49, 43196260, 8489613312),
    (7, 50.28, 9.89, 50284132, 9885167616),
    (8, 57.37, 11.28, 57372004, 11280721920),
    (9, 64.46, 12.68, 64459876, 12676276224),
    (10, 71.55, 14.07, 71547748, 14071830528),
    (11, 78.64, 15.47, 78635620, 15467384832),
    (12, 85.72, 16.86, 85723492, 16862939136),
    (13, 92.81, 18.26, 92811364, 18258493440),
    (14, 99.90, 19.65, 99899236, 19654047744),
    (15, 106.99, 21.05, 106987108, 21049602048),
]


def test_the_familys_costs_are_the_papers_table() -> None:
    config = LsamdExtractor(keep=KEPT).outline([DEIT])
    members = LSAMD.expander.family(replace(config, spec=config.spec.with_(classes=100)))
    costs = [(member.spec.layers, *member.cost("thop").__dict__.values()) for member in members]
    assert costs == [(layers, params, flops) for layers, _, _, params, flops in TABLE_2]
    rounded = [(n, round(params / 1e6, 2), round(flops / 1e9, 2)) for n, params, flops in costs]
    assert rounded == [row[:3] for row in TABLE_2]
    assert sum(params for _, params, _ in costs) == 787025228


@pytest.mark.parametrize(
    ("settings", "depths"),
    [
        ({}, range(1, 16)),
        ({"top": 3}, range(3, 16)),
        ({"keep": (12, 2)}, range(2, 16)),
        ({"top": 99}, range(12, 16)),
        ({"threshold": 2.0}, range(1, 16)),
        ({"threshold": 2.0, "top": 3}, range(1, 16)),
        ({"keep": (12, 2), "threshold": 2.0, "top": 3}, range(2, 16)),
    ],
)
def test_the_family_before_a_search_has_every_depth_that_could_come(
    settings: dict, depths: range
) -> None:
    members = LSAMD.expander.family(LsamdExtractor(**settings).outline([DEIT]))
    assert [member.spec.layers for member in members] == list(depths)


def test_the_outline_sorts_the_kept_blocks() -> None:
    assert LsamdExtractor(keep=(8, 1, 5)).outline([DEIT]).details == {"kept": [1, 5, 8]}


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"keep": ()}, "at least one block"),
        ({"keep": (3, 3)}, "each once"),
        ({"threshold": float("nan")}, "threshold is nan"),
        ({"top": 0}, "top is 0"),
        ({"keep": (0, 1)}, "keep is 0; it must be at least 1"),
        ({"router_lr": 0.0}, "router_lr is 0.0; it must be above 0"),
        ({"balance_weight": -1.0}, "balance_weight is -1.0; it must be at least 0"),
        ({"task_lr": ("objects",)}, "objects=1e-4"),
        ({"task_lr": ("=1",)}, "objects=1e-4"),
        ({"task_lr": ("objects=fast",)}, "objects=1e-4"),
        ({"task_lr": ("objects=0",)}, "above 0"),
        ({"task_lr": ("objects=inf",)}, "above 0"),
    ],
)
def test_invalid_settings_are_refused(settings: dict, message: str) -> None:
    with pytest.raises(WrongCall, match=message):
        with_settings(LsamdExtractor(), settings)


def test_a_block_that_the_ancestry_model_lacks_is_refused() -> None:
    with pytest.raises(
        WrongCall, match="keep names block 13, but the ancestry model has blocks 1 to 12"
    ):
        LsamdExtractor(keep=(1, 13)).outline([DEIT])


def test_only_a_search_needs_tasks() -> None:
    assert LsamdExtractor(top=3).needs_tasks()
    assert not LsamdExtractor(keep=(1, 3)).needs_tasks()


def test_the_work_of_a_search_is_one_block_per_layer_and_image() -> None:
    search = with_settings(LsamdExtractor(), {"epochs": 2, "images": 30})
    assert [(work.images, work.trained) for work in search.work([DEIT], [48, 20])] == [
        (60, 12),
        (40, 12),
    ]
    assert [
        work.trained for work in with_settings(search, {"gate": "both"}).work([DEIT], [48])
    ] == [24]


def test_each_task_has_its_learning_rate() -> None:
    search = LsamdExtractor(task_lr=("objects=1e-4", "folder:a=b=2e-3"))
    assert search.derive_settings(make_tiny_task("objects")).training.lr == 1e-4
    assert search.derive_settings(make_tiny_task("folder:a=b")).training.lr == 2e-3
    assert search.derive_settings(make_tiny_task("signs")) == search.each


def test_a_rate_for_an_unknown_task_is_a_misspelling() -> None:
    check_rates(
        LSAMD.presets["paper"].task_lr, ["objects"]
    )  # the paper's other data sets need not be here
    with pytest.raises(WrongCall, match="did you mean objects"):
        check_rates(("obects=1e-4",), ["objects"])


def test_the_paper_preset_is_the_papers_schedule() -> None:
    paper = LSAMD.presets["paper"]
    recipe = paper.each.training
    assert (recipe.epochs, recipe.batch_size, recipe.schedule, recipe.power) == (
        50,
        128,
        "poly",
        0.9,
    )
    assert LSAMD.finetuning["paper"].recipe == recipe


# LSAMD, Table 5: the paper's name of a data set, its task here, and the rates of the search and of
# descendants.
TABLE_5 = [
    ("Cifar100", "cifar100", 5.00e-04, 5.00e-04),
    ("Cifar10", "cifar10", 1.00e-06, 5.00e-04),
    ("Tiny-ImageNet", "tiny-imagenet", 1.00e-05, 5.00e-04),
    ("INAT2019", "inat2019", 1.00e-05, 5.00e-05),
    ("Food101", "food101", 1.00e-05, 1.00e-05),
    ("Cars196", "cars", 5.00e-04, 1.00e-05),
    ("Flowers102", "flowers102", 5.00e-04, 1.00e-04),
    ("Pets", "pets", 1.00e-05, 1.00e-04),
    ("DTD", "dtd", 1.00e-04, 1.00e-05),
    ("Caltech101", "caltech101", 1.00e-05, 1.00e-05),
    ("ADE-20K", "ade20k", 1.00e-05, 1.00e-05),
    ("VOC12", "voc2012", 1.00e-05, 1.00e-05),
]


def test_the_papers_rates_are_those_of_its_table_under_the_names_of_tasks_that_there_are() -> None:
    paper = LSAMD.presets["paper"]
    tasks = find_suite("lsamd12").tasks
    assert [task for _, task, _, _ in TABLE_5] == list(tasks)
    assert [paper.derive_settings(make_tiny_task(task)).training.lr for task in tasks] == [
        search for _, _, search, _ in TABLE_5
    ]
    assert LSAMD.finetuning["paper"].task_lr == {task: rate for _, task, _, rate in TABLE_5}


def test_the_suite_of_the_paper_is_named_by_one_word() -> None:
    twelve = LSAMD.references(["lsamd12"], ["timm:deit_base_patch16_224"])
    assert twelve == [task for _, task, _, _ in TABLE_5]
    assert LSAMD.references(["digits", "lsamd12"]) == ["digits", *twelve]


@pytest.mark.parametrize("preset", LSAMD.presets)
def test_the_recorded_settings_rebuild_the_extractor(preset: str) -> None:
    extractor = LSAMD.presets[preset]
    assert from_json(LsamdExtractor, to_json(extractor), "settings") == extractor
    values = {setting.name: setting.default for setting in list_settings(extractor)}
    assert with_settings(LsamdExtractor(), values) == extractor


@pytest.mark.parametrize(
    "kept", [None, [], "145", [0, 1], [1, 13], [2, 1], [1, 1], [1.0], [True], {"1": 2}]
)
def test_details_that_name_no_blocks_are_a_bad_file(kept: object) -> None:
    config = LearngeneConfig(method="lsamd", spec=DEIT, details={"kept": kept})
    with pytest.raises(BadFile, match=r"details.*kept"):
        read_kept_blocks(config)


@pytest.mark.parametrize("top", ["3", -1, 10**9, 2.5])
def test_a_foreign_outline_is_a_bad_file(top: object) -> None:
    with pytest.raises(BadFile, match="top"):
        LsamdExpander().family(LearngeneConfig(method="lsamd", spec=DEIT, details={"top": top}))


def test_the_method_file_is_cold() -> None:
    code = (
        "import sys, lgzoo_lsamd.lsamd; print([m for m in ('torch', 'timm', 'numpy', 'matplotlib')"
        " if m in sys.modules])"
    )
    message = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True
    )
    assert message.stdout.strip() == "[]"
