"""The three methods: their stages, LoGAH's protocols, their learngenes, and refused settings."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from tal_toy import (
    RECIPE,
    SIZE,
    VARIANTS,
    build_ancestry,
    build_extractor,
    build_source_task,
    build_tasks,
    change_settings,
    extract_learngene,
)

from learngene_zoo.artifacts.learngene import Learngene
from learngene_zoo.cli.description import show
from learngene_zoo.errors import WrongCall
from learngene_zoo.method.installed import METHODS, parse_details
from learngene_zoo.pretrained.ancestry import Ancestry
from learngene_zoo.runs.run import Run
from learngene_zoo.settings import list_settings, with_settings
from learngene_zoo.tasks.task import Task
from learngene_zoo.testing import make_tiny_task
from lgzoo_tal import logah, tal
from lgzoo_tal.architectures import draw_training_set
from lgzoo_tal.config import Curriculum, MetaStep
from lgzoo_tal.ghn3 import GHN3
from lgzoo_tal.hypernet_spec import (
    HypernetDetails,
    is_encoder,
    select_hypernet_names,
    to_learngene_name,
    to_official_name,
)
from lgzoo_tal.logah import LOGAH
from lgzoo_tal.meta_training import MetaTraining
from lgzoo_tal.modules.embedding import compute_embedding
from lgzoo_tal.modules.hypernet import Hypernet, build_frozen_hypernet
from lgzoo_tal.tal import TAL

SPEC = build_ancestry().spec
# LoGAH's protocols as table 6 of TAL's paper has them: first on the source task, one hypernetwork
# for each task.
PROTOCOLS: dict[str, dict[str, Any]] = {
    "v1": {"source": None, "joint": False},
    "v2": {"source": "tiny-source", "joint": False},
    "v3": {"source": None, "joint": True},
    "v4": {"source": "tiny-source", "joint": True},
}


def build_logah(**changes: Any) -> logah.LogahExtractor:
    curriculum, step = Curriculum(source=None), MetaStep(judged=0)
    small = logah.LogahExtractor(
        curriculum=curriculum, step=step, hypernet=SIZE, training=RECIPE, tuning=RECIPE
    )
    return change_settings(small, changes)


@pytest.fixture(scope="module")
def tal_learngene() -> Learngene:
    """TAL with both stages."""
    return extract_learngene()


def test_the_learngene_holds_encoder_decoder_and_the_tasks_embeddings(
    tal_learngene: Learngene,
) -> None:
    parts = {name.partition(".")[0] for name in tal_learngene.state}
    assert parts == {"encoder", "decoder", "tasks"}
    details = parse_details(tal_learngene.config, HypernetDetails)
    assert details.tasks == ("tiny-a", "tiny-b")
    assert details.embedded == ("tiny-source", "tiny-a", "tiny-b")
    assert details.source is not None
    assert (details.source.name, details.source.images) == ("tiny-source", 48)
    assert details.hypernet == SIZE.build_spec().with_(task=32)
    model = build_ancestry()
    expected = compute_embedding(
        model.model(), make_tiny_task("tiny-a"), model.input_format, Run(), 16
    )
    assert torch.equal(tal_learngene.state["tasks.tiny-a"], expected)


def test_show_lists_its_sizes_under_its_own_facts(
    tal_learngene: Learngene, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The method's record of `tasks` differs from the artifact's facts and hides none of them."""
    records = tuple(task.record for task in build_tasks())
    show._print_learngene(
        tal_learngene.with_config(tasks=records).save(tmp_path / "learngene"),
        "exact",
        show_all=False,
        as_json=False,
    )
    output = capsys.readouterr().out
    assert "tiny-source,tiny-a,tiny-b" in output
    assert "rank 4" in output


def test_its_names_are_the_released_ones_behind_what_they_belong_to(
    tal_learngene: Learngene,
) -> None:
    names = select_hypernet_names(tal_learngene.state, None)
    assert list(names) == list(Hypernet(SIZE.build_spec().with_(task=32), None).state_dict())
    assert names["gnn.0.TEN.fc_gamma.weight"] == "encoder.gnn.0.TEN.fc_gamma.weight"
    assert names["decoder.l2.weight"] == "decoder.decoder.l2.weight"
    assert all(to_official_name(to_learngene_name(name)) == name for name in names)
    assert {name for name in names if not is_encoder(name)} == {
        name for name in names if name.startswith("decoder.")
    }
    conv = Hypernet(VARIANTS["ghn3-t"], None).state_dict()
    outside = {name.partition(".")[0] for name in conv if not is_encoder(name)}
    assert outside == {"decoder", "decoder_1d", "bias_class"}


def test_stage_2_starts_where_stage_1_ended_and_its_task_layers_as_the_identity() -> None:
    """With no step in stage 2 the learngene is stage 1's hypernetwork, whatever the task."""
    still = replace(RECIPE, epochs=0)
    untrained = extract_learngene(tuning=still)
    alone = build_extractor()([build_ancestry()], [build_source_task()], Run(seed=3))
    for name in alone.state:
        assert torch.equal(alone.state[name], untrained.state[name])
    added = (
        set(untrained.state)
        - set(alone.state)
        - {name for name in untrained.state if name.startswith("tasks.")}
    )
    assert added
    assert all(".TEN." in name for name in added)
    assert all(not untrained.state[name].any() for name in added)


def test_one_task_is_the_source_task_alone() -> None:
    alone = build_extractor()([build_ancestry()], [build_source_task()], Run(seed=3))
    details = parse_details(alone.config, HypernetDetails)
    assert (details.tasks, details.embedded, details.hypernet) == ((), (), SIZE.build_spec())
    assert set(alone.config.metrics) == {"stage_1"}


@pytest.mark.parametrize("name", PROTOCOLS)
def test_logahs_protocols_are_settings(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Which trainings there are, on what, and what each starts from."""
    trained: list[tuple[str, ...]] = []
    real = MetaTraining.__init__

    def watch(
        self: Any,
        stage: Any,
        hypernet: Any,
        spec: Any,
        view: Any,
        tasks: Any,
        *rest: Any,
        **others: Any,
    ) -> None:
        trained.append(tuple(task.name for task in tasks))
        real(self, stage, hypernet, spec, view, tasks, *rest, **others)

    monkeypatch.setattr(MetaTraining, "__init__", watch)
    learngene = build_logah(**PROTOCOLS[name])(
        [build_ancestry()],
        build_tasks()[1:] if name in ("v1", "v3") else build_tasks(),
        Run(seed=3),
    )
    source, apart = name in ("v2", "v4"), name in ("v1", "v2")
    seconds = [("tiny-a",), ("tiny-b",)] if apart else [("tiny-a", "tiny-b")]
    assert trained == [*([("tiny-source",)] if source else []), *seconds]
    assert parse_details(learngene.config, HypernetDetails).apart == apart
    for task in ("tiny-a", "tiny-b") if apart else (None,):
        names = select_hypernet_names(learngene.state, task)
        build_frozen_hypernet(
            SIZE.build_spec(), {official: learngene.state[ours] for official, ours in names.items()}
        )


def test_what_each_of_several_hypernetworks_learns_is_its_own_tasks() -> None:
    learngene = build_logah(joint=False)([build_ancestry()], build_tasks()[1:], Run(seed=3))
    alone = build_logah(joint=False)([build_ancestry()], build_tasks()[1:2], Run(seed=3))
    name = "decoder.decoder.l2.weight"
    assert torch.equal(
        learngene.state[f"hypernets.tiny-a.{name}"], alone.state[f"hypernets.tiny-a.{name}"]
    )
    assert not torch.equal(
        learngene.state[f"hypernets.tiny-a.{name}"], learngene.state[f"hypernets.tiny-b.{name}"]
    )


def test_a_frozen_encoder_stays_as_stage_1_left_it_but_for_its_task_layers() -> None:
    frozen, start = (
        extract_learngene(freeze=True),
        extract_learngene(tuning=replace(RECIPE, epochs=0)),
    )
    changed = {
        name for name in frozen.state if not torch.equal(frozen.state[name], start.state[name])
    }
    assert all(name.startswith("decoder.") or ".TEN." in name for name in changed)
    assert any(".TEN." in name for name in changed)
    assert any(name.startswith("decoder.") for name in changed)


def test_without_guidance_the_ancestry_is_not_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Ancestry, "model", lambda self: pytest.fail("the ancestry was asked"))
    learngene = build_extractor(guidance=False, task_layer=False)(
        [build_ancestry()], build_tasks(), Run(seed=3)
    )
    assert not any(name.startswith("tasks.") for name in learngene.state)


@pytest.mark.slow
def test_with_guidance_it_is_and_the_hypernetwork_is_another(tal_learngene: Learngene) -> None:
    unguided = extract_learngene(guidance=False)
    name = "decoder.decoder.l2.weight"
    assert not torch.equal(tal_learngene.state[name], unguided.state[name])
    swapped = extract_learngene(direction="teacher-student")
    assert not torch.equal(tal_learngene.state[name], swapped.state[name])


@pytest.mark.parametrize("method", [GHN3, LOGAH], ids=["ghn3", "logah"])
def test_task_information_is_a_setting_of_the_others_too(method: Any) -> None:
    extractor = with_settings(method.presets["smoke"], {"task_layer": True})
    learngene = extractor([build_ancestry()], build_tasks()[1:], Run(seed=3))
    assert {"tasks.tiny-a", "tasks.tiny-b", "encoder.gnn.0.TEN.fc_beta.weight"} <= set(
        learngene.state
    )


class Stopped(Exception):
    """An interruption."""


def stop(*rest: Any) -> Any:
    """Take the place of a stage."""
    raise Stopped


def test_an_interrupted_extraction_ends_with_the_same_learngene(
    tal_learngene: Learngene, tmp_path: Path
) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(tal, "train_stage_2", stop)
        with pytest.raises(Stopped):
            extract_learngene(Run(seed=3, folder=tmp_path / "run"))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(tal, "train_stage_1", stop)  # stage 1 is loaded, not repeated
        resumed = extract_learngene(Run(seed=3, folder=tmp_path / "run", resume=True))
    assert all(
        torch.equal(resumed.state[name], tal_learngene.state[name]) for name in tal_learngene.state
    )
    assert resumed.config.metrics == tal_learngene.config.metrics


@pytest.mark.slow
def test_extractions_that_need_the_same_stage_1_share_it(tmp_path: Path) -> None:
    shared = tmp_path / "parts"
    first = build_extractor()(
        [build_ancestry()], build_tasks(), Run(seed=3, folder=tmp_path / "a", shared=shared)
    )
    parts = {path.name for path in shared.iterdir() if path.is_dir()}
    assert len(parts) == 5  # three embeddings and both stages
    again = build_extractor(task_layer=False)(
        [build_ancestry()], build_tasks(), Run(seed=3, folder=tmp_path / "b", shared=shared)
    )
    assert len({path.name for path in shared.iterdir() if path.is_dir()} - parts) == 1  # stage 2
    assert first.config.metrics["stage_1"] == again.config.metrics["stage_1"]
    assert not torch.equal(first.state["encoder.ln.weight"], again.state["encoder.ln.weight"])


def test_some_predicted_models_are_judged() -> None:
    record = build_logah(judged=12)(
        [build_ancestry()], build_tasks()[1:2], Run(seed=3)
    ).config.metrics["stage_2"]
    accuracies = record["untrained"]["tiny-a"]
    assert [int(size.partition("x")[0]) for size in accuracies] == [3, 6, 9]
    assert all(0 <= value <= 1 for value in accuracies.values())


def test_a_mean_of_the_weights_can_be_what_is_kept() -> None:
    recipe = replace(RECIPE, ema=0.5)
    averaged, last = (
        build_logah(tuning=choice)([build_ancestry()], build_tasks()[1:], Run(seed=3))
        for choice in (recipe, RECIPE)
    )
    name = "decoder.decoder.l2.weight"
    assert not torch.equal(averaged.state[name], last.state[name])


def test_sizes_are_in_the_ancestrys_measure_and_can_be_held_out() -> None:
    sizes = {
        (spec.layers, spec.width, spec.heads)
        for spec in draw_training_set("tal+", ("12", "x16"), SPEC)
    }
    assert sizes == {(layers, 32, 2) for layers in range(3, 12)}


def test_the_outline_says_what_is_written(tal_learngene: Learngene) -> None:
    outline = build_extractor().outline([SPEC])
    assert (
        parse_details(outline, HypernetDetails).hypernet
        == parse_details(tal_learngene.config, HypernetDetails).hypernet
    )
    assert outline.spec == tal_learngene.config.spec


def test_a_descendant_of_an_ancestry_with_frills_is_a_plain_vit() -> None:
    frills = SPEC.with_(layer_scale=1e-5, registers=4, pool="avg")
    outline = build_extractor().outline([frills])
    assert (outline.spec.layer_scale, outline.spec.registers, outline.spec.pool) == (
        None,
        0,
        "token",
    )


def test_an_ancestry_of_224_pixels_needs_more_rows_which_the_preset_gets() -> None:
    spec = replace(SPEC, layers=12, width=192, heads=3, image_size=224, patch_size=16)
    with pytest.raises(WrongCall, match=r"would need 2048 rows .* larger hypernet_chunk"):
        TAL.presets["mini"].outline([spec])
    assert TAL.adapt_preset("mini", [spec]).outline([spec]).spec.image_size == 224
    assert TAL.presets["paper"].outline([spec]).spec.image_size == 224


@pytest.mark.parametrize("method", [GHN3, LOGAH], ids=lambda method: method.name)
def test_a_refusal_names_the_rows_only_where_they_help(method: Any) -> None:
    with pytest.raises(WrongCall) as caught:
        method.presets["mini"].outline([SPEC.with_(patch_size=SPEC.image_size)])
    assert "is a single patch" in str(caught.value)
    assert "--hypernet-chunk" not in str(caught.value)


def test_presets_have_the_published_sizes() -> None:
    sizes = {
        name: (spec.hidden, spec.layers, spec.heads, spec.rank, spec.widest)
        for name, spec in VARIANTS.items()
    }
    assert sizes == {
        "ghn3-t": (64, 3, 8, None, 64),
        "ghn3-s": (128, 5, 16, None, 128),
        "ghn3-l": (256, 12, 16, None, 256),
        "ghn3-xl": (384, 24, 16, None, 384),
        "logah-tiny": (64, 3, 8, 32, 2048),
        "logah-small": (128, 5, 16, 90, 2048),
        "logah-base": (256, 5, 16, 128, 2048),
        "logah-large": (256, 12, 16, 256, 2048),
    }
    paper = {setting.name: setting.default for setting in list_settings(TAL.presets["paper"])}
    assert (paper["hypernet_layers"], paper["hypernet_rank"]) == (5, 90)
    assert (paper["alpha"], paper["sampling"], paper["lr"], paper["tuning_epochs"]) == (
        0.2,
        2.0,
        3e-4,
        100,
    )


def test_options_of_the_hypernetwork_and_of_both_recipes_have_names_of_their_own() -> None:
    names = {setting.name for setting in list_settings(TAL.extractor)}
    assert {
        "epochs",
        "tuning_epochs",
        "hypernet_layers",
        "hypernet_rank",
        "task_layer",
        "guidance",
    } <= names


def test_work_counts_both_stages() -> None:
    first, second = build_extractor().work([SPEC], [48, 48])
    assert (first.images, second.images) == (32, 64)
    assert (first.frozen, second.frozen) == (3, 0)
    assert build_extractor(joint=False).work([SPEC], [48, 48]) == [first, second]
    (only,) = build_logah().work([SPEC], [20])
    assert (only.images, only.frozen) == (20, 0)


WRONG: list[tuple[dict[str, Any], str]] = [
    ({"alpha": 0.0}, "alpha is 0.0; it must be above 0 and at most 1"),
    ({"alpha": 1.5}, "alpha is 1.5"),
    ({"temperature": 0.0}, "temperature is 0.0"),
    ({"source": None}, "there is no stage 1 to guide without a source task"),
    ({"meta_batch": 0}, "meta_batch is 0"),
    ({"norm_weight": -1.0}, "norm_weight is -1.0"),
    ({"sampling": 0.0}, "sampling is 0.0"),
    ({"judged": -1}, "judged is -1"),
    ({"embedding_images": 0}, "embedding_images is 0"),
    ({"training": replace(RECIPE, mixup=0.8)}, "mixup of the training is 0.8; it must be 0"),
    ({"tuning": replace(RECIPE, drop_path=0.1)}, "drop_path of the tuning is 0.1; it must be 0"),
    (
        {"training": replace(RECIPE, layer_decay=0.75)},
        "layer_decay of the training is 0.75; it must be 1",
    ),
    ({"tuning": replace(RECIPE, compile=True)}, "compile of the tuning is on; it must be off"),
    ({"hypernet_hidden": 18}, "must be a multiple of 4"),
]


@pytest.mark.parametrize(("wrong", "says"), WRONG, ids=[says for _, says in WRONG])
def test_settings_that_cannot_be_meant_are_refused(wrong: dict[str, Any], says: str) -> None:
    with pytest.raises(WrongCall, match=says):
        build_extractor(**wrong)


def test_a_set_that_the_decoder_cannot_reach_is_refused_before_anything_is_computed() -> None:
    with pytest.raises(WrongCall, match="rows of the low-rank decoder's factors"):
        build_extractor(hypernet=replace(SIZE, chunk=64)).outline([SPEC])
    with pytest.raises(WrongCall, match="x16, x32 hold out every architecture"):
        build_extractor(hold_out=("x16", "x32")).outline([SPEC])


def to_dense(task: Task) -> Task:
    return replace(task, kind="segmentation")


@pytest.mark.parametrize(
    ("tasks", "says"),
    [
        ([to_dense(make_tiny_task())], "is a segmentation task"),
        ([to_dense(build_source_task()), make_tiny_task()], "is a segmentation task"),
    ],
)
def test_tasks_that_ask_for_pixels_are_refused(tasks: list[Task], says: str) -> None:
    with pytest.raises(WrongCall, match=says):
        build_extractor()([build_ancestry()], tasks, Run(seed=3))


def test_without_any_task_there_is_nothing_to_train_on() -> None:
    with pytest.raises(WrongCall, match="there is no task to train on"):
        build_logah()([build_ancestry()], [], Run(seed=3))


def test_a_released_checkpoint_takes_the_place_of_training(tmp_path: Path) -> None:
    hypernet = Hypernet(SIZE.build_spec(), 5)
    config = {
        "hid": 16,
        "layers": 2,
        "heads": 2,
        "max_shape": (64, 64, 16, 16),
        "num_classes": 1000,
    }
    torch.save(
        {"state_dict": hypernet.state_dict(), "config": config, "epoch": 3}, tmp_path / "logah.pt"
    )
    extractor = build_logah(released=str(tmp_path / "logah.pt"))
    assert not extractor.needs_tasks()
    learngene = extractor([build_ancestry()], [], Run())
    for name, tensor in hypernet.state_dict().items():
        assert torch.equal(learngene.state[to_learngene_name(name)], tensor)
    assert parse_details(learngene.config, HypernetDetails).hypernet == SIZE.build_spec()
    assert len(learngene.config.details["released"]["sha256"]) == 64
    wrong = with_settings(GHN3.presets["smoke"], {"released": str(tmp_path / "logah.pt")})
    with pytest.raises(WrongCall, match="read it with `lgzoo extract logah`"):
        wrong([build_ancestry()], [], Run())


def test_all_three_are_registered() -> None:
    assert [METHODS.load(name) for name in ("ghn3", "logah", "tal")] == [GHN3, LOGAH, TAL]
