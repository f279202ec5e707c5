"""LSAMD's searches on toy data: unchanged parts, results, resuming, and the learngene."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from learngene_zoo.artifacts.learngene import Learngene, load_learngene
from learngene_zoo.artifacts.records import AncestryRecord
from learngene_zoo.errors import WrongCall
from learngene_zoo.families.tensors import initialise
from learngene_zoo.families.vit.spec import TABLE, ViTSpec
from learngene_zoo.method.sizes import Target
from learngene_zoo.pretrained.ancestry import Ancestry
from learngene_zoo.runs.cache import Part
from learngene_zoo.runs.folder import produce
from learngene_zoo.runs.run import Run
from learngene_zoo.settings import Recipe, to_json, with_settings
from learngene_zoo.storage import load_result
from learngene_zoo.tasks.task import Samples, Task
from learngene_zoo.training import loop
from lgzoo_lsamd import lsamd
from lgzoo_lsamd.blocks import SearchResult
from lgzoo_lsamd.lsamd import LSAMD, LsamdExtractor, search
from lgzoo_lsamd.modules import supernet
from lgzoo_lsamd.modules.supernet import (
    BASE,
    SPECIFIC,
    attach_head,
    build_super_net,
    group_parameters,
    iterate_routed_blocks,
    measure_preferences,
)
from lgzoo_lsamd.settings import SearchSettings

SPEC = ViTSpec(layers=3, width=32, heads=2, classes=7, image_size=16, patch_size=8)
RECIPE = Recipe(epochs=2, batch_size=16, lr=1e-3, schedule="poly", augment="none")
EACH = SearchSettings(training=RECIPE)
SEARCH = LsamdExtractor(each=EACH)


class Noise:
    """Images of uniform noise, brighter with their class."""

    def __init__(self, count: int, classes: int, seed: int) -> None:
        generator = np.random.default_rng(seed)
        self.labels = np.arange(count) % classes
        noise = generator.integers(0, 60, (count, 3, 16, 16))
        self.images = torch.from_numpy(
            (noise + 180 * self.labels[:, None, None, None] // classes).astype(np.uint8)
        )

    def __len__(self) -> int:
        return len(self.labels)

    def __getitems__(self, indices: Sequence[int]) -> torch.Tensor:
        return self.images[list(indices)]


def task(name: str, classes: int = 4, **changes: object) -> Task:
    sizes = {"train": 48, "validation": 20, "test": 8}
    seed = sum(map(ord, name))
    full = Task(
        name=name,
        title=name,
        classes=classes,
        class_names=tuple(map(str, range(classes))),
        image_size=16,
        sizes=sizes,
        open_split=lambda split: Noise(sizes[split], classes, seed + len(split)),
    )
    return replace(full, **changes)


TASKS = [task("one"), task("two", classes=3), task("three", classes=2)]


@pytest.fixture(scope="module")
def ancestry() -> Ancestry:
    torch.set_num_threads(1)
    record = AncestryRecord(source="test", spec=SPEC, licence="MIT")
    return Ancestry(record=record, state=dict(initialise(SPEC, 0, "fan_in")))


def test_a_search_leaves_the_ancestry_model_and_its_base_blocks_as_they_were(
    ancestry, monkeypatch
) -> None:
    before = {name: tensor.clone() for name, tensor in ancestry.state.items()}
    nets = []
    monkeypatch.setattr(
        supernet,
        "build_super_net",
        lambda *given, **more: nets.append(build_super_net(*given, **more)) or nets[-1],
    )
    search(EACH, ancestry, TASKS[0], None, Run())
    assert all(torch.equal(ancestry.state[name], tensor) for name, tensor in before.items())
    (net,) = nets
    weights = net.state_dict()
    for name, tensor in before.items():
        if TABLE.is_head(name):
            continue
        trained = name.replace("blocks.", "") if name.startswith("blocks.") else None
        if trained is None:
            assert torch.equal(weights[name], tensor), name
        else:
            layer, inner = trained.split(".", 1)
            assert torch.equal(weights[f"blocks.{layer}.base.{inner}"], tensor), name
    for block in iterate_routed_blocks(net):
        assert block.router.preference.abs().max() > 0, "a router did not move"
    moved = [
        not torch.equal(block.base.mlp.fc1.weight, block.specific.mlp.fc1.weight)
        for block in iterate_routed_blocks(net)
    ]
    assert all(moved)


def test_a_search_records_what_it_found(ancestry) -> None:
    state, record = search(EACH, ancestry, TASKS[1], None, Run())
    assert state == {}
    assert record["paths"] == [int(share >= 0.5) for share in record["shares"]]
    assert (record["training_images"], record["validation_images"], record["lr"]) == (48, 20, 1e-3)
    assert 0 <= record["validation_accuracy"] <= 1
    assert len(record["shares"]) == 3


def test_a_search_is_a_function_of_its_seed(ancestry) -> None:
    records = [search(EACH, ancestry, TASKS[0], None, Run(seed=seed))[1] for seed in (5, 5)]
    assert records[0] == records[1]


def test_preferences_are_counted_over_the_whole_split(ancestry) -> None:
    net = build_super_net(attach_head(ancestry, TASKS[0], Run()))
    asked = measure_preferences(net, TASKS[0], ancestry.input_format, Run(), batch_size=6)
    assert asked.shares == (
        1.0,
        1.0,
        1.0,
    ), "an undecided router is a tie, and a tie prefers the base block"
    assert asked.validation_images == 20
    pixels = TASKS[0].split("validation").images.float() / 255
    mean, std = (
        torch.tensor(values).view(3, 1, 1)
        for values in (ancestry.input_format.mean, ancestry.input_format.std)
    )
    with torch.no_grad():
        right = (
            net((pixels - mean) / std).argmax(dim=1).numpy() == TASKS[0].split("validation").labels
        )
    assert (asked.metric, asked.validation_accuracy) == ("accuracy", pytest.approx(right.mean()))
    for side, share in ((SPECIFIC, 0.0), (BASE, 1.0)):
        # The class token before the first block is the same for all images: it can be made to
        # prefer one side.
        token = net.cls_token[0, 0] + net.pos_embed[0, 0]
        router = next(iter(iterate_routed_blocks(net))).router
        router.preference.data.zero_()[:, side] = token.detach()
        assert measure_preferences(net, TASKS[0], ancestry.input_format, Run()).shares[0] == share


def test_what_an_undecided_router_counts_for_is_a_setting(ancestry) -> None:
    """Untrained routers are tied for every image: by the paper's >= all prefer the base block,
    otherwise the seed decides.
    """
    untrained = replace(EACH, training=replace(RECIPE, epochs=0))
    printed = [
        search(untrained, ancestry, TASKS[0], None, Run(seed=seed))[1]["paths"] for seed in range(4)
    ]
    assert printed == [[1, 1, 1]] * 4
    drawing = replace(untrained, tie="random")
    draws = [search(drawing, ancestry, TASKS[0], None, Run(seed=seed))[1] for seed in range(16)]
    assert draws[:3] == [
        search(drawing, ancestry, TASKS[0], None, Run(seed=seed))[1] for seed in range(3)
    ]
    assert len({tuple(record["paths"]) for record in draws}) > 4
    assert [record["shares"] for record in draws] == [
        [float(path) for path in record["paths"]] for record in draws
    ]


def test_equally_used_blocks_are_drawn_from_the_runs_seed(ancestry, monkeypatch, caplog) -> None:
    record = to_json(SearchResult(paths=(1, 1, 1), shares=(1.0, 1.0, 1.0), validation_accuracy=0.5))
    monkeypatch.setattr(lsamd, "compute_once", lambda *_: Part({}, record, ""))
    details = [
        replace(SEARCH, top=1)([ancestry], TASKS[:2], Run(seed=seed)).config.details
        for seed in range(12)
    ]
    assert {detail["kept"][0] for detail in details} == {1, 2, 3}
    assert all(detail["tied"] == [1, 2, 3] for detail in details)
    assert caplog.messages == [detail["note"] for detail in details]


def test_routers_have_a_learning_rate_of_their_own_and_no_decay(ancestry) -> None:
    net = build_super_net(attach_head(ancestry, TASKS[0], Run()))
    groups = group_parameters(net, RECIPE, router_lr=1e-2)
    routers = {id(p) for block in iterate_routed_blocks(net) for p in block.router.parameters()}
    apart = [group for group in groups if "lr_scale" in group]
    assert [{id(p) for p in group["params"]} for group in apart] == [routers]
    assert apart[0]["lr_scale"] * RECIPE.lr == pytest.approx(1e-2)
    assert apart[0]["weight_decay"] == 0
    everything = [id(p) for group in groups for p in group["params"]]
    assert sorted(everything) == sorted(id(p) for p in net.parameters() if p.requires_grad)


def test_the_learngene_of_a_search(ancestry) -> None:
    learngene = SEARCH([ancestry], TASKS, Run())
    details = learngene.config.details
    assert list(details["datasets"]) == ["one", "two", "three"]
    paths = [record["paths"] for record in details["datasets"].values()]
    assert details["usage"] == [sum(layer) for layer in zip(*paths)]
    assert (details["threshold_asked"], learngene.config.spec) == (1.5, SPEC)
    assert set(learngene.config.metrics["validation_accuracy"]) == {"one", "two", "three"}
    held = {int(name.split(".")[1]) + 1 for name in learngene.state if name.startswith("blocks.")}
    assert held == set(details["kept"])
    assert all(tensor is ancestry.state[name] for name, tensor in learngene.state.items())
    descendant = LSAMD.expander(learngene, Target(layers=4, classes=5), Run())
    assert descendant.model()(torch.zeros(1, 3, 16, 16)).shape == (1, 5)


def test_a_search_that_selects_nothing_says_so_and_loses_nothing(
    ancestry, monkeypatch, caplog
) -> None:
    record = to_json(SearchResult(paths=(1, 0, 0), shares=(1.0, 0.0, 0.0), validation_accuracy=0.5))
    monkeypatch.setattr(lsamd, "compute_once", lambda *_: Part({}, record, ""))
    details = replace(SEARCH, threshold=2.0)([ancestry], TASKS[:2], Run()).config.details
    assert details["kept"] == [1]
    assert (details["degenerate"], details["threshold_asked"], details["threshold"]) == (
        True,
        2.0,
        1.5,
    )
    assert "G = 2 0 0" in details["note"]
    assert caplog.messages == [details["note"]]


def test_keep_needs_no_search(ancestry) -> None:
    learngene = LsamdExtractor(keep=(3, 1))([ancestry], [], Run())
    assert learngene.config.details == {"kept": [1, 3]}


def test_without_a_task_there_is_no_search(ancestry) -> None:
    with pytest.raises(WrongCall, match="name at least one with tasks, or"):
        SEARCH([ancestry], [], Run())


class Halves:
    """Images and masks whose left half is class 0 and whose right half is the image's class."""

    labels = np.zeros(40, dtype=np.int64)

    def __len__(self) -> int:
        return 40

    def __getitems__(self, indices: Sequence[int]) -> Samples:
        masks = torch.zeros(len(indices), 16, 16, dtype=torch.uint8)
        masks[:, :, 8:] = torch.tensor([1 + index % 2 for index in indices], dtype=torch.uint8)[
            :, None, None
        ]
        return Samples((masks[:, None] * 120).expand(-1, 3, -1, -1), masks=masks)


def test_a_segmentation_task_is_searched_with_a_dense_head(ancestry) -> None:
    halves = task("halves", classes=3, kind="segmentation", open_split=lambda split: Halves())
    learngene = with_settings(SEARCH, {"epochs": 4})([ancestry], [halves, TASKS[0]], Run())
    result = learngene.config.details["datasets"]
    assert (result["halves"]["metric"], result["one"]["metric"]) == ("mIoU", "accuracy")
    assert (
        result["halves"]["validation_accuracy"] > 0.4
    )  # one class everywhere: at most half of that class, and no other
    assert result["halves"]["validation_images"] == 40
    assert not learngene.config.spec.dense
    assert not any(TABLE.is_head(name) for name in learngene.state)


def test_a_task_has_its_own_learning_rate(ancestry, monkeypatch) -> None:
    seen = {}
    real = loop.train

    def spy(objective, loader, recipe, run, **rest):
        seen[loader.task.name] = recipe.lr
        return real(objective, loader, recipe, run, **rest)

    monkeypatch.setattr(loop, "train", spy)
    replace(SEARCH, task_lr=("two=0.25e-3",))([ancestry], TASKS[:2], Run())
    assert seen == {"one": 1e-3, "two": 0.25e-3}


def test_a_finished_search_is_not_repeated(ancestry, tmp_path, monkeypatch) -> None:
    run = Run(folder=tmp_path / "run")
    first = SEARCH([ancestry], TASKS[:2], run)
    calls = []
    monkeypatch.setattr(loop, "train", lambda *_, **__: calls.append(1))
    again = SEARCH([ancestry], TASKS[:2], replace(run, resume=True))
    assert not calls
    assert again.config == first.config


@pytest.mark.slow
def test_another_choice_in_the_same_place_takes_over_the_searches(
    ancestry, tmp_path, monkeypatch
) -> None:
    calls, real = [], loop.train

    def spy(objective, loader, recipe, run, **rest):
        calls.append(loader.task.name)
        return real(objective, loader, recipe, run, **rest)

    def searches(**changes) -> tuple[list[str], Learngene]:
        """Run `lgzoo extract lsamd --force`; return the tasks it searches on, and the learngene."""
        calls.clear()
        extractor = with_settings(SEARCH, changes)
        made = produce(
            lambda run: extractor([ancestry], TASKS[:2], run).with_config(method="lsamd"),
            load_learngene,
            out=tmp_path / "learngene",
            verb="extract",
            settings=to_json(extractor),
            run=Run(),
            force=True,
        )
        return calls[:], made

    monkeypatch.setattr(loop, "train", spy)
    result, first = searches()
    assert result == ["one", "two"]
    for changes in ({"top": 1}, {"top": 2}, {"threshold": 0.5}, {"threshold": 1.0}):
        result, other = searches(**changes)
        assert result == [], changes
        assert other.config.details["datasets"] == first.config.details["datasets"]
    assert (
        len(searches(top=1)[1].config.details["kept"]),
        len(searches(top=2)[1].config.details["kept"]),
    ) == (1, 2)
    assert searches(top=2)[0] == ["one", "two"], "the same call again starts over"
    assert searches(top=2, task_lr=("two=2e-3",))[0] == ["two"]
    assert searches(top=2, noise="none")[0] == ["one", "two"]


def test_runs_that_share_parts_search_once_for_every_selection(
    ancestry, tmp_path, monkeypatch
) -> None:
    """The key of a search has neither the selection nor other tasks' rates, but its settings and
    its task.
    """
    shared = tmp_path / "parts"
    calls, real = [], loop.train

    def spy(objective, loader, recipe, run, **rest):
        calls.append(loader.task.name)
        return real(objective, loader, recipe, run, **rest)

    monkeypatch.setattr(loop, "train", spy)
    first = SEARCH([ancestry], TASKS[:2], Run(folder=tmp_path / "first", shared=shared))
    assert calls == ["one", "two"]
    for changes in ({"top": 1}, {"threshold": 0.5}):
        other = with_settings(SEARCH, changes)(
            [ancestry], TASKS[:2], Run(folder=tmp_path / str(changes), shared=shared)
        )
        assert other.config.details["datasets"] == first.config.details["datasets"]
    SEARCH([ancestry], TASKS[1::-1], Run(folder=tmp_path / "reversed", shared=shared))
    assert calls == ["one", "two"], "the order of the searches does not matter"
    with_settings(SEARCH, {"task_lr": ("two=2e-3",)})(
        [ancestry], TASKS[:2], Run(folder=tmp_path / "r", shared=shared)
    )
    assert calls == ["one", "two", "two"]
    with_settings(SEARCH, {"noise": "none"})(
        [ancestry], TASKS[:1], Run(folder=tmp_path / "noise", shared=shared)
    )
    assert calls == ["one", "two", "two", "one"]


def test_a_stopped_search_goes_on_and_ends_the_same(ancestry, tmp_path, monkeypatch) -> None:
    full = SEARCH([ancestry], TASKS[:2], Run(folder=tmp_path / "whole"))
    run = Run(folder=tmp_path / "stopped")
    real, taken = loop.train, []

    def stopping(objective, loader, recipe, run, **rest):
        for step in real(objective, loader, recipe, run, seconds_between_checkpoints=0, **rest):
            yield step
            taken.append(loader.task.name)
            if len(taken) == 8:  # 3 steps an epoch, 2 epochs: in the second search
                raise KeyboardInterrupt

    monkeypatch.setattr(loop, "train", stopping)
    with pytest.raises(KeyboardInterrupt):
        SEARCH([ancestry], TASKS[:2], run)
    result = load_result(run.folder / "parts" / "search" / "one" / "done")
    resumed = SEARCH([ancestry], TASKS[:2], replace(run, resume=True))
    assert result[1] == full.config.details["datasets"]["one"]
    assert resumed.config == full.config
    assert taken.count("one") == 6, "the finished search was repeated"


def test_shared_carries_the_specific_set_and_private_does_not(
    ancestry, tmp_path, monkeypatch
) -> None:
    received = []

    def spy(model, *, specific, **choices):
        received.append({name: tensor.clone() for name, tensor in specific.items()})
        return build_super_net(model, specific=specific, **choices)

    monkeypatch.setattr(supernet, "build_super_net", spy)
    SEARCH([ancestry], TASKS[:2], Run())
    assert received == [{}, {}]
    received.clear()
    shared = with_settings(SEARCH, {"shared": True})
    run = Run(folder=tmp_path / "run")
    shared([ancestry], TASKS[:2], run)
    assert received[0] == {}
    assert any(".router." in name for name in received[1])
    assert not torch.equal(
        received[1]["blocks.0.specific.mlp.fc1.weight"], ancestry.state["blocks.0.mlp.fc1.weight"]
    )
    stored = load_result(run.folder / "parts" / "search" / "one" / "done")[0]
    assert all(torch.equal(stored[name], tensor) for name, tensor in received[1].items())


@pytest.mark.parametrize(
    "changes", [{"routing": "image"}, {"gate": "both"}, {"gate": "stream"}, {"balance_weight": 0.1}]
)
def test_every_variant_searches(ancestry, changes: dict) -> None:
    learngene = with_settings(SEARCH, {"epochs": 1, **changes})([ancestry], TASKS[:1], Run())
    assert learngene.config.details["kept"]


def test_a_model_without_class_token_and_with_a_norm_after_pooling(tmp_path) -> None:
    spec = SPEC.with_(layers=2, pool="avg", registers=2).with_(class_token=False)
    bare = Ancestry(
        record=AncestryRecord(source="test", spec=spec), state=dict(initialise(spec, 0))
    )
    learngene = with_settings(SEARCH, {"epochs": 1, "top": 1})([bare], TASKS[:1], Run())
    assert {"fc_norm.weight", "reg_token"} <= set(learngene.state)
    assert LSAMD.expander(learngene, Target(layers=2), Run()).model()(
        torch.zeros(1, 3, 16, 16)
    ).shape == (1, 7)


PROCESS = """
import json, sys
sys.path.insert(0, {folder!r})
import torch
import test_lsamd_search as toys
from learngene_zoo.runs.run import join, rank

join("cpu")
torch.set_num_threads(1)
record = toys.AncestryRecord(source="test", spec=toys.SPEC)
ancestry = toys.Ancestry(record=record, state=dict(toys.initial(toys.SPEC, 0, "fan_in")))
# 21 images in batches of 4 leave the last batch to one process: the other has to vote all the same.
import lgzoo_lsamd.modules.supernet as searching
asked = toys.measure_preferences
searching.measure_preferences = lambda *a, **more: asked(*a, batch_size=4, **more)
sizes = dict(train=48, validation=21, test=8)
task = toys.task("one")
task = toys.replace(task, open_split=lambda split: toys.Noise(sizes[split], 4, len(split)), sizes=sizes)
learngene = toys.SEARCH([ancestry], [task], toys.Run(folder=toys.Path({out!r}), workers=0))
# Into a file each: what two processes print may come out mixed.
toys.Path({place!r}, f"found-{{rank()}}.json").write_text(json.dumps(learngene.config.details["datasets"]))
"""


@pytest.mark.exhaustive
def test_two_processes_search_together_and_find_the_same(tmp_path, torchrun) -> None:
    script, out = tmp_path / "search.py", tmp_path / "run"
    folder = str(Path(__file__).parent)
    script.write_text(
        PROCESS.format(folder=folder, out=str(out), place=str(tmp_path)), encoding="utf-8"
    )
    torchrun([str(script)], began=lambda output: any(out.rglob("metrics.jsonl")))
    data = [
        json.loads((tmp_path / f"found-{rank}.json").read_text(encoding="utf-8"))
        for rank in range(2)
    ]
    assert data[0] == data[1]
    assert data[0]["one"]["validation_images"] == 21
    assert load_result(out / "parts" / "search" / "one" / "done")[1] == data[0]["one"]
