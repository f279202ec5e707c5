"""The three methods: their stages, LoGAH's protocols, what a learngene of theirs holds, and what cannot be meant."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from tal_toy import RECIPE, SIZE, ancestry, extracted, meta_train, source_task, tasks

from learngene_zoo import registry
from learngene_zoo.artifacts.ancestry import Ancestry
from learngene_zoo.artifacts.learngene import Learngene
from learngene_zoo.cli import show
from learngene_zoo.errors import WrongCall
from learngene_zoo.runs.run import Run
from learngene_zoo.settings import settings_of, with_settings
from learngene_zoo.tasks.task import Task
from learngene_zoo.testing import tiny_task
from lgzoo_tal import logah, stages
from lgzoo_tal.details import read_details
from lgzoo_tal.embedding import embed
from lgzoo_tal.ghn3 import GHN3
from lgzoo_tal.hypernet import Hypernet, hypernet_of
from lgzoo_tal.logah import LOGAH
from lgzoo_tal.tal import TAL
from lgzoo_tal.tensors import hypernet_names, is_encoder, learngene_name, official_name
from lgzoo_tal.variants import VARIANTS

SPEC = ancestry().spec
# LoGAH's protocols as table 6 of TAL's paper has them: first on the source task, one hypernetwork for each task.
PROTOCOLS: dict[str, dict[str, Any]] = {
    "v1": {"source": None, "joint": False},
    "v2": {"source": "tiny-source", "joint": False},
    "v3": {"source": None, "joint": True},
    "v4": {"source": "tiny-source", "joint": True},
}


def logah_with(**changes: Any) -> logah.MetaTrain:
    settings = {"judged": 0, "hypernet": SIZE, "training": RECIPE, "tuning": RECIPE, "source": None}
    return logah.MetaTrain(**{**settings, **changes})


@pytest.fixture(scope="module")
def whole() -> Learngene:
    """TAL with both stages."""
    return extracted()


def test_the_learngene_holds_encoder_decoder_and_the_tasks_embeddings(whole: Learngene) -> None:
    parts = {name.partition(".")[0] for name in whole.state}
    assert parts == {"encoder", "decoder", "tasks"}
    details = read_details(whole.config)
    assert details.tasks == ("tiny-a", "tiny-b")
    assert details.embedded == ("tiny-source", "tiny-a", "tiny-b")
    assert details.source is not None
    assert (details.source.name, details.source.images) == ("tiny-source", 48)
    assert details.hypernet == SIZE.spec().with_(task=32)
    model = ancestry()
    wanted = embed(model.model(), tiny_task("tiny-a"), model.input_format, Run(), 16)
    assert torch.equal(whole.state["tasks.tiny-a"], wanted)


def test_show_lists_its_sizes_under_its_own_facts(
    whole: Learngene, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """What the method records under `tasks` is not what the artifact says under that name, and hides nothing of it."""
    given = tuple(task.record for task in tasks())
    show._learngene(whole.with_config(tasks=given).save(tmp_path / "learngene"), "exact", as_json=False)
    told = capsys.readouterr().out
    assert "tiny-source,tiny-a,tiny-b" in told
    assert "rank 4" in told


def test_its_names_are_the_released_ones_behind_what_they_belong_to(whole: Learngene) -> None:
    names = hypernet_names(whole.state, None)
    assert list(names) == list(Hypernet(SIZE.spec().with_(task=32), None).state_dict())
    assert names["gnn.0.TEN.fc_gamma.weight"] == "encoder.gnn.0.TEN.fc_gamma.weight"
    assert names["decoder.l2.weight"] == "decoder.decoder.l2.weight"
    assert all(official_name(learngene_name(name)) == name for name in names)
    assert {name for name in names if not is_encoder(name)} == {name for name in names if name.startswith("decoder.")}
    conv = Hypernet(VARIANTS["ghn3-t"], None).state_dict()
    outside = {name.partition(".")[0] for name in conv if not is_encoder(name)}
    assert outside == {"decoder", "decoder_1d", "bias_class"}


def test_stage_2_starts_where_stage_1_ended_and_its_task_layers_as_the_identity() -> None:
    """With no step in stage 2 the learngene is stage 1's hypernetwork, whatever the task."""
    still = replace(RECIPE, epochs=0)
    told = extracted(tuning=still)
    alone = meta_train()([ancestry()], [source_task()], Run(seed=3))
    for name in alone.state:
        assert torch.equal(alone.state[name], told.state[name])
    added = set(told.state) - set(alone.state) - {name for name in told.state if name.startswith("tasks.")}
    assert added
    assert all(".TEN." in name for name in added)
    assert all(not told.state[name].any() for name in added)


def test_one_task_is_the_source_task_alone() -> None:
    alone = meta_train()([ancestry()], [source_task()], Run(seed=3))
    details = read_details(alone.config)
    assert (details.tasks, details.embedded, details.hypernet) == ((), (), SIZE.spec())
    assert set(alone.config.metrics) == {"stage_1"}


@pytest.mark.parametrize("name", PROTOCOLS)
def test_logahs_protocols_are_settings(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Which trainings there are, on what, and what each starts from."""
    trained: list[tuple[str, ...]] = []
    real = stages._trained

    def watched(made: Any, hypernet: Any, lessons: Any, *rest: Any, **others: Any) -> Any:
        trained.append(tuple(task.name for task, _ in lessons))
        return real(made, hypernet, lessons, *rest, **others)

    monkeypatch.setattr(stages, "_trained", watched)
    made = logah_with(**PROTOCOLS[name])([ancestry()], tasks()[1:] if name in ("v1", "v3") else tasks(), Run(seed=3))
    source, apart = name in ("v2", "v4"), name in ("v1", "v2")
    seconds = [("tiny-a",), ("tiny-b",)] if apart else [("tiny-a", "tiny-b")]
    assert trained == [*([("tiny-source",)] if source else []), *seconds]
    assert read_details(made.config).apart == apart
    for task in ("tiny-a", "tiny-b") if apart else (None,):
        names = hypernet_names(made.state, task)
        hypernet_of(SIZE.spec(), {official: made.state[ours] for official, ours in names.items()})


def test_what_each_of_several_hypernetworks_learns_is_its_own_tasks() -> None:
    made = logah_with(joint=False)([ancestry()], tasks()[1:], Run(seed=3))
    alone = logah_with(joint=False)([ancestry()], tasks()[1:2], Run(seed=3))
    name = "decoder.decoder.l2.weight"
    assert torch.equal(made.state[f"hypernets.tiny-a.{name}"], alone.state[f"hypernets.tiny-a.{name}"])
    assert not torch.equal(made.state[f"hypernets.tiny-a.{name}"], made.state[f"hypernets.tiny-b.{name}"])


def test_a_frozen_encoder_stays_as_stage_1_left_it_but_for_its_task_layers() -> None:
    frozen, start = extracted(freeze=True), extracted(tuning=replace(RECIPE, epochs=0))
    changed = {name for name in frozen.state if not torch.equal(frozen.state[name], start.state[name])}
    assert all(name.startswith("decoder.") or ".TEN." in name for name in changed)
    assert any(".TEN." in name for name in changed)
    assert any(name.startswith("decoder.") for name in changed)


def test_without_guidance_the_ancestry_is_not_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Ancestry, "model", lambda self: pytest.fail("the ancestry was asked"))
    made = meta_train(guidance=False, task_layer=False)([ancestry()], tasks(), Run(seed=3))
    assert not any(name.startswith("tasks.") for name in made.state)


def test_with_guidance_it_is_and_the_hypernetwork_is_another(whole: Learngene) -> None:
    unguided = extracted(guidance=False)
    name = "decoder.decoder.l2.weight"
    assert not torch.equal(whole.state[name], unguided.state[name])
    swapped = extracted(direction="teacher-student")
    assert not torch.equal(whole.state[name], swapped.state[name])


@pytest.mark.parametrize("method", [GHN3, LOGAH], ids=["ghn3", "logah"])
def test_task_information_is_a_setting_of_the_others_too(method: Any) -> None:
    extractor = with_settings(method.presets["smoke"], {"task_layer": True})
    made = extractor([ancestry()], tasks()[1:], Run(seed=3))
    assert {"tasks.tiny-a", "tasks.tiny-b", "encoder.gnn.0.TEN.fc_beta.weight"} <= set(made.state)


def test_an_interrupted_extraction_ends_with_the_same_learngene(whole: Learngene, tmp_path: Path) -> None:
    class Stopped(Exception):
        pass

    def stopped(*rest: Any) -> Any:
        raise Stopped

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(stages, "_joint", stopped)
        with pytest.raises(Stopped):
            extracted(Run(seed=3, folder=tmp_path / "run"))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(stages, "_guided", stopped)  # stage 1 is loaded, not repeated
        resumed = extracted(Run(seed=3, folder=tmp_path / "run", resume=True))
    assert all(torch.equal(resumed.state[name], whole.state[name]) for name in whole.state)
    assert resumed.config.metrics == whole.config.metrics


def test_extractions_that_need_the_same_stage_1_share_it(tmp_path: Path) -> None:
    shared = tmp_path / "parts"
    first = meta_train()([ancestry()], tasks(), Run(seed=3, folder=tmp_path / "a", shared=shared))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(stages, "_guided", lambda *rest: pytest.fail("stage 1 was repeated"))
        again = meta_train(task_layer=False)([ancestry()], tasks(), Run(seed=3, folder=tmp_path / "b", shared=shared))
    assert first.config.metrics["stage_1"] == again.config.metrics["stage_1"]
    assert not torch.equal(first.state["encoder.ln.weight"], again.state["encoder.ln.weight"])


def test_some_predicted_models_are_judged() -> None:
    record = logah_with(judged=12)([ancestry()], tasks()[1:2], Run(seed=3)).config.metrics["stage_2"]
    found = record["untrained"]["tiny-a"]
    assert [int(size.partition("x")[0]) for size in found] == [3, 6, 9]
    assert all(0 <= value <= 1 for value in found.values())


def test_a_mean_of_the_weights_can_be_what_is_kept() -> None:
    recipe = replace(RECIPE, ema=0.5)
    kept, last = (logah_with(tuning=made)([ancestry()], tasks()[1:], Run(seed=3)) for made in (recipe, RECIPE))
    name = "decoder.decoder.l2.weight"
    assert not torch.equal(kept.state[name], last.state[name])


def test_sizes_are_in_the_ancestrys_measure_and_can_be_held_out() -> None:
    made = meta_train(architectures="tal+", hold_out=("12", "x16")).course
    drawn = {(spec.layers, spec.width, spec.heads) for spec in made.drawn(SPEC)}
    assert drawn == {(layers, 32, 2) for layers in range(3, 12)}


def test_the_outline_says_what_is_written(whole: Learngene) -> None:
    outline = meta_train().outline([SPEC])
    assert read_details(outline).hypernet == read_details(whole.config).hypernet
    assert outline.spec == whole.config.spec


def test_a_descendant_of_an_ancestry_with_frills_is_a_plain_vit() -> None:
    frills = SPEC.with_(layer_scale=1e-5, registers=4, pool="avg")
    outline = meta_train().outline([frills])
    assert (outline.spec.layer_scale, outline.spec.registers, outline.spec.pool) == (None, 0, "token")


def test_presets_have_the_published_sizes() -> None:
    sizes = {
        "logah-tiny": LOGAH.presets["tiny"],
        "logah-small": LOGAH.presets["paper"],
        "logah-base": LOGAH.presets["base"],
        "logah-large": LOGAH.presets["large"],
        "ghn3-t": GHN3.presets["t"],
        "ghn3-s": GHN3.presets["s"],
        "ghn3-l": GHN3.presets["l"],
        "ghn3-xl": GHN3.presets["paper"],
    }
    for name, extractor in sizes.items():
        assert extractor.hypernet.spec() == VARIANTS[name]  # type: ignore[attr-defined]
    tal = TAL.presets["paper"]
    assert tal.hypernet.spec() == VARIANTS["logah-small"]  # type: ignore[attr-defined]
    assert (tal.alpha, tal.sampling, tal.training.lr, tal.tuning.epochs) == (0.2, 2.0, 3e-4, 100)  # type: ignore[attr-defined]


def test_options_of_the_hypernetwork_and_of_both_recipes_have_names_of_their_own() -> None:
    names = {setting.name for setting in settings_of(TAL.extractor)}
    assert {"epochs", "tuning_epochs", "hypernet_layers", "hypernet_rank", "task_layer", "guidance"} <= names


def test_work_counts_both_stages_and_shares_the_first() -> None:
    assert TAL.work is not None
    first, second = TAL.work(meta_train(), [SPEC], [48, 48])
    assert (first.images, second.images) == (32, 64)
    assert first.asked == 3
    other, _ = TAL.work(meta_train(task_layer=False), [SPEC], [48, 48])
    assert other.depends == first.depends
    apart = meta_train(joint=False)
    assert len(TAL.work(apart, [SPEC], [48, 48])) == 3
    assert len({str(work.depends) for work in TAL.work(apart, [SPEC], [48, 48])}) == 3


WRONG: list[tuple[dict[str, Any], str]] = [
    ({"alpha": 0.0}, "alpha is 0.0"),
    ({"source": None}, "there is none without a source task"),
    ({"meta_batch": 0}, "meta_batch is 0"),
    ({"norm_weight": -1.0}, "norm_weight is -1.0"),
    ({"sampling": 0.0}, "sampling is 0.0"),
    ({"judged": -1}, "judged is -1"),
    ({"embedding_images": 0}, "embedding_images is 0"),
    ({"training": replace(RECIPE, mixup=0.8)}, "mixup of the training must be 0"),
    ({"tuning": replace(RECIPE, drop_path=0.1)}, "drop_path of the tuning must be 0"),
    ({"tuning": replace(RECIPE, compile=True)}, "compile of the tuning must be off"),
    ({"hypernet": replace(SIZE, hidden=18)}, "must be a multiple of 4"),
]


@pytest.mark.parametrize(("wrong", "says"), WRONG, ids=[says for _, says in WRONG])
def test_settings_that_cannot_be_meant_are_refused(wrong: dict[str, Any], says: str) -> None:
    with pytest.raises(WrongCall, match=says):
        meta_train(**wrong)


def test_a_set_that_the_decoder_cannot_reach_is_refused_before_anything_is_computed() -> None:
    with pytest.raises(WrongCall, match="rows of the low-rank decoder's factors"):
        meta_train(hypernet=replace(SIZE, chunk=64)).outline([SPEC])
    with pytest.raises(WrongCall, match="every architecture of the set is held out"):
        meta_train(hold_out=("x16", "x32")).outline([SPEC])


def dense(task: Task) -> Task:
    return replace(task, kind="segmentation")


@pytest.mark.parametrize(
    ("given", "says"),
    [
        ([dense(tiny_task())], "asks for the class of every pixel"),
        ([dense(source_task()), tiny_task()], "asks for the class of every pixel"),
    ],
)
def test_tasks_that_ask_for_pixels_are_refused(given: list[Task], says: str) -> None:
    with pytest.raises(WrongCall, match=says):
        meta_train()([ancestry()], given, Run(seed=3))


def test_without_any_task_there_is_nothing_to_train_on() -> None:
    with pytest.raises(WrongCall, match="there is no task to train on"):
        logah_with()([ancestry()], [], Run(seed=3))


def test_a_released_checkpoint_takes_the_place_of_training(tmp_path: Path) -> None:
    hypernet = Hypernet(SIZE.spec(), 5)
    config = {"hid": 16, "layers": 2, "heads": 2, "max_shape": (64, 64, 16, 16), "num_classes": 1000}
    torch.save({"state_dict": hypernet.state_dict(), "config": config, "epoch": 3}, tmp_path / "logah.pt")
    extractor = logah_with(released=str(tmp_path / "logah.pt"))
    assert not LOGAH.uses_tasks(extractor)
    made = extractor([ancestry()], [], Run())
    for name, tensor in hypernet.state_dict().items():
        assert torch.equal(made.state[learngene_name(name)], tensor)
    assert read_details(made.config).hypernet == SIZE.spec()
    assert len(made.config.details["released"]["sha256"]) == 64
    wrong = with_settings(GHN3.presets["smoke"], {"released": str(tmp_path / "logah.pt")})
    with pytest.raises(WrongCall, match="read it with `lgzoo extract logah`"):
        wrong([ancestry()], [], Run())


def test_all_three_are_registered() -> None:
    assert [registry.load(name) for name in ("ghn3", "logah", "tal")] == [GHN3, LOGAH, TAL]
