"""Learngene Pool from the ancestry model to a descendant; laws of every method are in
test_contract.py.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from learngene_zoo import lifecycle
from learngene_zoo.artifacts.learngene import Learngene, load_learngene
from learngene_zoo.errors import BadFile, WrongCall
from learngene_zoo.families.tensors import check_state
from learngene_zoo.families.timm_config import find_architecture
from learngene_zoo.families.vit.spec import ViTSpec
from learngene_zoo.method.sizes import Target
from learngene_zoo.pretrained.ancestry import Ancestry
from learngene_zoo.runs.run import Run
from learngene_zoo.settings import Recipe, with_settings
from learngene_zoo.tasks.task import Attribute, Samples
from learngene_zoo.testing import make_tiny_ancestry, make_tiny_task
from learngene_zoo.training import distillation
from learngene_zoo.training.distillation import train_teacher
from lgzoo_pool.details import read_details
from lgzoo_pool.modules.network import build_network, select_prefix
from lgzoo_pool.modules.objectives import compute_stitch_weight
from lgzoo_pool.pool import POOL, PoolExpander, PoolExtractor
from lgzoo_pool.pool_steps import distil
from lgzoo_pool.settings import PoolImages, PoolSettings

SMOKE = POOL.presets["smoke"]


def make_ancestry(**sizes: Any) -> Ancestry:
    """Return an ancestry model whose head is the tiny task's, so that it is not fine-tuned."""
    shape = {"classes": 3, **sizes}
    return replace(make_tiny_ancestry(**shape), class_names=make_tiny_task().class_names)


def extract_pool(
    run: Run | None = None, ancestry: Ancestry | None = None, **settings: Any
) -> Learngene:
    ancestry = ancestry or make_ancestry()
    learngene = with_settings(SMOKE, settings)([ancestry], [make_tiny_task()], run or Run(seed=1))
    return learngene.with_config(method="pool", ancestries=(ancestry.record,))


@pytest.fixture(scope="module")
def pool() -> Learngene:
    return extract_pool()


def same(one: Mapping[str, torch.Tensor], other: Mapping[str, torch.Tensor]) -> bool:
    return set(one) == set(other) and all(torch.equal(one[name], other[name]) for name in one)


def test_the_pool_holds_both_models_whole_and_the_stitches(pool: Learngene) -> None:
    details = read_details(pool.config)
    assert (details.task, details.classes) == ("tiny", 3)
    specs = [spec.with_(classes=3) for spec in details.derive_specs(pool.config.spec)]
    assert [(spec.layers, spec.width, spec.heads) for spec in specs] == [(2, 16, 1), (2, 32, 2)]
    for number, spec in enumerate(specs):
        prefix = f"anchors.{number}."
        anchor = {
            name.removeprefix(prefix): pool.state[name]
            for name in pool.state
            if name.startswith(prefix)
        }
        check_state(anchor, spec, "the anchor")
    stitches = {
        name: tuple(pool.state[name].shape) for name in pool.state if name.startswith("stitches")
    }
    assert stitches == {"stitches.0.0.weight": (32, 16), "stitches.0.0.bias": (32,)}


def test_every_part_says_what_it_found(pool: Learngene) -> None:
    metrics = pool.config.metrics
    assert set(metrics) == {"low", "high", "tuning", "paths"}
    assert metrics["low"]["training_images"] == metrics["tuning"]["training_images"] == 32
    assert 0 <= metrics["high"]["validation_accuracy"] <= 1
    assert metrics["tuning"]["stitches"]["norm_ratio"]["mean"] > 0
    family = [(m.settings["low"], m.settings["high"]) for m in PoolExpander().family(pool.config)]
    assert [(row["low"], row["high"]) for row in metrics["paths"]] == family
    assert all(row["images"] == 12 for row in metrics["paths"])


def test_paths_are_evaluated_on_as_many_images_as_the_setting_says() -> None:
    assert {row["images"] for row in extract_pool(judged=6).config.metrics["paths"]} == {6}
    assert "paths" not in extract_pool(judged=0).config.metrics


def test_stitches_start_as_the_matrices_say() -> None:
    """Without fine-tuning they keep their initial values. All are equal, and their biases 0."""
    run = Run(seed=1)
    result = extract_pool(run, tuning_epochs=0, blocks=3, low_levels=3)
    weights = [result.state[f"stitches.0.{window}.weight"] for window in range(2)]
    assert torch.equal(weights[0], weights[1])
    assert not any(result.state[f"stitches.0.{window}.bias"].any() for window in range(2))
    learnt = _matrices(result, low_levels=3, blocks=3)
    torch.testing.assert_close(weights[0], learnt.mean(dim=0).T)
    other = extract_pool(run, tuning_epochs=0, blocks=3, low_levels=3, stitch="pinv")
    eye = torch.eye(32, dtype=torch.float64)
    torch.testing.assert_close(
        other.state["stitches.0.0.weight"],
        compute_stitch_weight(learnt.double().mean(dim=0), eye, "pinv"),
    )


def _matrices(found: Learngene, **settings: Any) -> torch.Tensor:
    """Return the narrow model's W, (levels, d, D), from another run of its part."""
    chosen, ancestry, task, run = (
        with_settings(SMOKE, settings).settings,
        make_ancestry(),
        make_tiny_task(),
        Run(seed=1),
    )
    teacher, _ = train_teacher(ancestry, task, chosen.teaching, run)
    spec = chosen.derive_auxiliaries(ancestry.spec)[0].with_(classes=3)
    images = PoolImages(task=task, input_format=ancestry.input_format, seed=run.seed)
    state, _ = distil(chosen.derive_auxiliary_settings()[0], spec, teacher, images, run.part("low"))
    model = select_prefix("model.", state)
    anchor = {name: found.state[f"anchors.0.{name}"] for name in model}
    assert same(anchor, model), "the pool's narrow model is not the one that the part trained"
    return torch.stack(
        [state[f"matrices.blocks.{level}.weight"] for level in range(chosen.low_levels)]
    )


def test_least_squares_fits_better_than_the_matrices() -> None:
    fits = {
        stitch: extract_pool(tuning_epochs=0, stitch=stitch).config.metrics["tuning"]["stitches"]
        for stitch in ("tm", "ls")
    }
    assert fits["ls"]["missed"]["mean"] < fits["tm"]["missed"]["mean"]
    assert fits["ls"]["missed"]["mean"] < 1


def test_with_alpha_one_the_ancestry_is_never_used(monkeypatch: pytest.MonkeyPatch) -> None:
    """SN-Net at equal storage: two models trained on labels, least squares, labels again."""

    def used(*_: Any, **__: Any) -> Any:
        raise AssertionError("the ancestry was used")

    monkeypatch.setattr(distillation, "train_teacher", used)
    monkeypatch.setattr(distillation, "Teacher", used)
    settings = {"alpha": 1.0, "stitch": "ls", "low_levels": 3}
    result = extract_pool(**settings)
    other = make_tiny_ancestry(9, classes=3)
    again = extract_pool(
        ancestry=replace(other, class_names=make_tiny_task().class_names), **settings
    )
    assert same(result.state, again.state), "the ancestry's weights made a difference"
    assert "teacher" not in result.config.metrics


def test_the_ancestry_makes_a_difference_and_guidance_too(pool: Learngene) -> None:
    alone = extract_pool(guidance="none")
    assert not same(alone.state, pool.state)
    assert alone.config.metrics["low"] == pool.config.metrics["low"]
    assert not same(extract_pool(guidance="hard").state, pool.state)


@pytest.mark.slow
def test_an_ancestry_of_another_task_is_fine_tuned_first() -> None:
    assert (
        extract_pool(ancestry=make_tiny_ancestry()).config.metrics["teacher"]["training_images"]
        == 32
    )


class Described:
    """A split whose images have one attribute, their brightness."""

    def __init__(self, split: Any) -> None:
        self.split, self.labels = split, split.labels

    def __len__(self) -> int:
        return len(self.split)

    def __getitems__(self, indices: Any) -> Samples:
        images = self.split.__getitems__(indices)
        return Samples(images, attributes=images.float().mean(dim=(1, 2, 3))[:, None] / 255)


def test_attributes_are_learnt_beside_the_class_in_every_part(tmp_path: Path) -> None:
    plain = make_tiny_task()
    task = replace(
        plain,
        attributes=(Attribute("light"),),
        open_split=lambda name: Described(plain.split(name)),
    )
    run = Run(seed=1, folder=tmp_path)
    with_settings(SMOKE, {"guidance": "soft"})([make_ancestry()], [task], run)
    for part in ("low", "high", "tuning"):
        lines = (tmp_path / "parts" / part / "metrics.jsonl").read_text().splitlines()
        assert len(lines) == 2
        for line in map(json.loads, lines):
            assert line["loss/attributes/light"] > 0
            assert line["loss/cross_entropy"] > 0
            assert ("loss/block" in line) == (part != "tuning")
            assert ("loss/distillation" in line) == (part == "tuning")


@pytest.mark.slow
def test_finished_parts_are_not_repeated(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run = Run(seed=1, folder=tmp_path / "run", resume=True)
    full = extract_pool(Run(seed=1, folder=tmp_path / "whole"))

    def killed(*_: Any, **__: Any) -> Any:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr("lgzoo_pool.modules.objectives.SampledPaths.forward", killed)
        with pytest.raises(KeyboardInterrupt):
            extract_pool(run)
    monkeypatch.setattr("lgzoo_pool.modules.objectives.Imitation.forward", killed)
    assert same(extract_pool(run).state, full.state)


@pytest.mark.slow
def test_arms_that_share_parts_compute_the_auxiliary_models_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shared = {"seed": 1, "shared": tmp_path / "parts"}
    first = extract_pool(Run(folder=tmp_path / "tm", **shared))  # type: ignore[arg-type]

    def repeated(*_: Any, **__: Any) -> Any:
        raise AssertionError("trained again")

    with monkeypatch.context() as patch:
        patch.setattr("lgzoo_pool.modules.objectives.Imitation.forward", repeated)
        second = extract_pool(Run(folder=tmp_path / "ls", **shared), stitch="ls")  # type: ignore[arg-type]
    assert first.config.metrics["low"] == second.config.metrics["low"]
    assert not same(first.state, second.state)
    monkeypatch.setattr("lgzoo_pool.modules.objectives.Imitation.forward", repeated)
    with pytest.raises(AssertionError, match="trained again"):
        extract_pool(Run(folder=tmp_path / "tau", **shared), tau=2.0)  # type: ignore[arg-type]


def test_a_descendant_is_its_path_through_the_pool(pool: Learngene) -> None:
    """Bitwise for every path if it keeps the pool's head; the head of another task is fresh."""
    details = read_details(pool.config)
    specs = [spec.with_(classes=3) for spec in details.derive_specs(pool.config.spec)]
    network = build_network(specs, details.layout, pool.state)
    images = torch.randn(2, 3, 16, 16, generator=torch.Generator().manual_seed(0))
    target = Target(task="tiny", classes=3, dense=False)
    members = PoolExpander().family(pool.config)
    for member, path in zip(members, details.layout.paths, strict=True):
        descendant = PoolExpander(**member.settings)(pool, target, Run())
        with torch.no_grad():
            assert torch.equal(descendant.model()(images), network(images, path))
        fresh = PoolExpander(**member.settings)(pool, replace(target, task="other"), Run())
        assert "head.weight" in descendant.inherited
        assert "head.weight" not in fresh.inherited
        assert not torch.equal(fresh.state["head.weight"], descendant.state["head.weight"])
        wider = PoolExpander(**member.settings)(pool, replace(target, classes=5), Run())
        assert wider.spec.classes == 5
        assert "head.weight" not in wider.inherited


def test_layers_alone_take_the_largest_path(pool: Learngene) -> None:
    result = PoolExpander()(pool, Target(layers=2, classes=5), Run())
    assert (result.spec.width, result.spec.front) == (32, ())
    stitched = PoolExpander()(pool, Target(layers=3, classes=5), Run())
    assert [(s.layers, s.width) for s in stitched.spec.segments] == [(1, 16), (2, 32)]


@pytest.mark.parametrize(
    ("settings", "target", "says"),
    [
        ({"low": 2, "high": 3}, {}, "no path with low 2 and high 3"),
        ({"low": 0, "high": 1}, {}, "with low 0 high can be 2"),
        ({"low": 7}, {}, "low can be 0 to 2"),
        ({"low": 1, "high": 1}, {"layers": 3}, "with low 1 and high 1 layers can be 2"),
        ({"low": 2, "high": 0}, {"width": 32}, "with low 2 and high 0 width can be 16"),
        ({}, {"layers": 9}, "no path with layers 9"),
    ],
)
def test_paths_that_the_pool_does_not_have(
    pool: Learngene, tmp_path: Path, settings: dict[str, int], target: dict[str, int], says: str
) -> None:
    with pytest.raises(WrongCall, match=says):
        lifecycle.expand(
            pool, expander=PoolExpander(**settings), target=Target(**target), out=tmp_path / "out"
        )
    assert not list(tmp_path.iterdir())


DEIT = find_architecture("deit_base_patch16_224")
MINI = ViTSpec(layers=12, width=96, heads=3, image_size=32, patch_size=8)


@pytest.mark.parametrize(
    ("ancestry", "settings", "widths"),
    [
        (DEIT, {}, [(192, 3), (768, 12)]),
        (MINI, {}, [(32, 1), (96, 3)]),
        (DEIT, {"low_width": 384, "high_width": 768}, [(384, 6), (768, 12)]),
        (MINI, {"high_width": 64, "blocks": 20}, [(32, 1), (64, 2)]),
    ],
)
def test_widths_and_heads(
    ancestry: ViTSpec, settings: dict[str, int], widths: list[tuple[int, int]]
) -> None:
    """A quarter of the ancestry's width, in whole heads of its head width."""
    result = PoolSettings(**settings).derive_auxiliaries(ancestry)
    assert [(spec.width, spec.heads) for spec in result] == widths
    assert {spec.layers for spec in result} == {settings.get("blocks", 6)}


@pytest.mark.parametrize(
    ("settings", "says"),
    [
        ({"low_width": 96}, "low_width 96 is not below high_width 96"),
        ({"low_width": 96, "high_width": 64}, "low_width 96 is not below high_width 64"),
        (
            {"low_width": 40},
            "low_width is 40, which is not a multiple of the ancestry's head width of 32; try 32",
        ),
        (
            {"high_width": 64, "high_levels": 0},
            "leads to width 64 by the wide model's matrices, and with high_levels 0",
        ),
    ],
)
def test_widths_that_cannot_be_stitched(settings: dict[str, Any], says: str) -> None:
    with pytest.raises(WrongCall, match=says):
        with_settings(PoolExtractor(), settings).outline([MINI])


def test_an_ancestry_with_fewer_blocks_than_levels(tmp_path: Path) -> None:
    shallow = MINI.with_(layers=2)
    with pytest.raises(
        WrongCall, match="low_levels is 3, but the ancestry model has only 2 blocks"
    ):
        PoolExtractor().outline([shallow])
    assert with_settings(PoolExtractor(), {"low_levels": 2}).outline([shallow]).spec.layers == 6
    assert (
        with_settings(PoolExtractor(), {"alpha": 1.0, "stitch": "ls"})
        .outline([shallow])
        .spec.layers
        == 6
    )
    with pytest.raises(
        WrongCall, match="low_levels is 3, but the ancestry model has only 2 blocks"
    ):
        _extract(tmp_path, make_tiny_ancestry(layers=2), blocks=3, low_levels=3)
    assert not list(tmp_path.iterdir())


def _extract(place: Path, ancestry: Ancestry, **settings: Any) -> Learngene:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(
            "learngene_zoo.pretrained.ancestry.open_ancestry", lambda source, **_: ancestry
        )
        patch.setattr("learngene_zoo.lifecycle.extraction.check_source", lambda source: None)
        patch.setattr(
            "learngene_zoo.lifecycle.extraction.open_task", lambda reference, **_: make_tiny_task()
        )
        extractor = with_settings(SMOKE, settings)
        return lifecycle.extract(
            "pool", ancestries=["a"], tasks=["t"], extractor=extractor, out=place / "pool"
        )


@pytest.mark.parametrize(
    ("settings", "says"),
    [
        ({"blocks": 0}, "blocks is 0"),
        ({"judged": -1}, "judged is -1"),
        ({"alpha": 1.5}, "alpha is 1.5"),
        ({"guidance_share": -0.1}, "guidance_share is -0.1"),
        ({"tau": 0.0}, "tau is 0.0"),
        ({"low_levels": 4}, "low_levels is 4"),
        ({"blocks": 2}, "low_levels is 3, but an auxiliary model has only 2 blocks"),
        ({"alpha": 1.0}, "with alpha 1 it has none; use stitch=.ls."),
        ({"low_levels": 0, "stitch": "pinv"}, "with low_levels 0 it has none; use stitch=.ls."),
    ],
)
def test_settings_out_of_bounds(settings: dict[str, Any], says: str) -> None:
    with pytest.raises(WrongCall, match=says):
        PoolSettings(**settings)


def test_a_pool_with_a_stitch_missing_builds_what_does_not_need_it(
    pool: Learngene, tmp_path: Path
) -> None:
    holed = {name: tensor for name, tensor in pool.state.items() if name != "stitches.0.0.weight"}
    folder = replace(pool, state=holed).save(tmp_path / "pool")
    with pytest.raises(BadFile, match=r"pool lacks the tensor stitches\.0\.0\.weight"):
        lifecycle.expand(folder, low=1, high=1, out=tmp_path / "model")
    assert not (tmp_path / "model").exists()
    assert lifecycle.expand(folder, low=2, high=0).spec.width == 16


def test_torch_hub_builds_paths(pool: Learngene, tmp_path: Path, checkout: Path) -> None:
    folder = pool.save(tmp_path / "pool")
    options = {"source": "local", "learngene": folder, "seed": 3}
    model = torch.hub.load(str(checkout), "pool_vit", low=1, high=2, classes=7, **options)
    assert [block.attn.qkv.in_features for block in model.blocks] == [16, 32, 32]
    assert model(torch.zeros(1, 3, 16, 16)).shape == (1, 7)
    expected = lifecycle.expand(folder, low=1, high=2, classes=7, run=Run(seed=3)).model()
    assert same(model.state_dict(), expected.state_dict())
    with pytest.raises(WrongCall, match="no path with low 5"):
        torch.hub.load(str(checkout), "pool_vit", low=5, **options)


@pytest.mark.parametrize("anchors", [1, 3])
def test_details_of_another_number_of_models_are_refused(pool: Learngene, anchors: int) -> None:
    anchor = pool.config.details["anchors"]
    every = [{"layers": 2, "width": 8, "heads": 1}, *anchor][-anchors:]
    config = replace(pool.config, details={**pool.config.details, "anchors": every})
    with pytest.raises(BadFile, match="details of the pool learngene"):
        PoolExpander().family(config)


def test_the_paths_survive_the_folder(pool: Learngene, tmp_path: Path) -> None:
    loaded = load_learngene(pool.save(tmp_path / "pool"))
    assert PoolExpander().family(loaded.config) == PoolExpander().family(pool.config)
    assert loaded.config.metrics["paths"] == pool.config.metrics["paths"]


def test_the_work_is_known_beforehand() -> None:
    """Two auxiliary models and the fine-tuning, with the teacher where one guides."""
    recipe = Recipe(epochs=3, images=100)
    arms: dict[str, dict[str, Any]] = {
        "tm": {},
        "ls": {"stitch": "ls"},
        "labels": {"stitch": "ls", "alpha": 1.0},
    }
    base = {"training": recipe, "tuning": recipe}
    works = {
        name: PoolExtractor(settings=PoolSettings(**base, **arm)).work([MINI], [1000])
        for name, arm in arms.items()
    }
    assert all([part.images for part in parts] == [300] * 3 for parts in works.values())
    assert [part.frozen for part in works["labels"]] == [0, 0, 0]
    assert [part.frozen for part in works["tm"]] == [12, 12, 12]
    low, high, both = (part.trained for part in works["tm"])
    assert (low, high) == (2, 6)
    assert low < both < high
