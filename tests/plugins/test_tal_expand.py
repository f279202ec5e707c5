"""From a learngene to a model: for known tasks, for others and for none.

Each refusal is one line.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from tal_toy import SIZE, build_ancestry, extract_learngene

from learngene_zoo import lifecycle, torch_hub
from learngene_zoo.artifacts.descendant import Descendant, assemble
from learngene_zoo.artifacts.learngene import Learngene, load_learngene
from learngene_zoo.errors import BadFile, WrongCall
from learngene_zoo.families.picture_format import InputFormat
from learngene_zoo.lifecycle import expansion
from learngene_zoo.method.sizes import Target
from learngene_zoo.pretrained.ancestry import open_ancestry
from learngene_zoo.runs.run import Run
from learngene_zoo.testing import make_tiny_task
from lgzoo_tal import predict
from lgzoo_tal.hypernet_spec import select_hypernet_names
from lgzoo_tal.modules.embedding import compute_embedding
from lgzoo_tal.modules.graph import build_graph
from lgzoo_tal.modules.hypernet import build_frozen_hypernet
from lgzoo_tal.predict import HypernetExpander


@pytest.fixture(scope="module")
def learngene() -> Learngene:
    """TAL's, with task layers that do something."""
    extracted = extract_learngene()
    draw = torch.Generator().manual_seed(0)
    state = {
        name: torch.randn(tensor.shape, generator=draw) * 0.1 if ".TEN." in name else tensor
        for name, tensor in extracted.state.items()
    }
    return replace(extracted, state=state)


@pytest.fixture(scope="module")
def separate_learngene() -> Learngene:
    """One hypernetwork for each task, without task layers."""
    return extract_learngene(joint=False, task_layer=False)


def expand(
    learngene: Learngene,
    task: str | None = "tiny-a",
    *,
    seed: int = 0,
    ancestry: str | None = None,
    **settings: Any,
) -> Descendant:
    sizes = {
        name: settings.pop(name) for name in list(settings) if name in Target.__dataclass_fields__
    }
    return HypernetExpander(**settings)(
        learngene,
        Target(**{"layers": 4, "classes": 3, "task": task, **sizes}),
        Run(seed=seed, ancestry=ancestry),
    )


def is_same(first: Descendant, second: Descendant) -> bool:
    return all(torch.equal(first.state[name], second.state[name]) for name in first.state)


def test_the_weights_are_the_hypernetworks_for_the_tasks_stored_embedding(
    learngene: Learngene,
) -> None:
    descendant = expand(learngene, width=16)
    names = select_hypernet_names(learngene.state, None)
    hypernet = build_frozen_hypernet(
        SIZE.build_spec().with_(task=32),
        {name: learngene.state[ours] for name, ours in names.items()},
    )
    expected = hypernet(build_graph(descendant.spec), task=learngene.state["tasks.tiny-a"])
    assert (
        descendant.spec.layers,
        descendant.spec.width,
        descendant.spec.heads,
        descendant.spec.classes,
    ) == (4, 16, 1, 3)
    assert set(expected) == set(descendant.state)
    assert all(
        torch.allclose(descendant.state[name], expected[name], atol=1e-6) for name in expected
    )
    assert descendant.inherited == frozenset(descendant.state) - {
        "cls_token"
    }  # zeros, whatever the learngene
    assert descendant.provenance["embedding"] == {"from": "the learngene", "task": "tiny-a"}


def test_tasks_get_weights_of_their_own_and_seeds_do_not(learngene: Learngene) -> None:
    assert not is_same(expand(learngene, "tiny-a"), expand(learngene, "tiny-b"))
    assert is_same(expand(learngene, seed=1), expand(learngene, seed=2))


def test_a_fresh_head_is_the_seeds_and_everything_else_is_predicted(learngene: Learngene) -> None:
    predicted, fresh, other = (
        expand(learngene),
        expand(learngene, head="fresh"),
        expand(learngene, head="fresh", seed=1),
    )
    assert predicted.inherited - fresh.inherited == {"head.weight", "head.bias"}
    assert torch.equal(
        fresh.state["blocks.0.attn.qkv.weight"], predicted.state["blocks.0.attn.qkv.weight"]
    )
    assert not torch.equal(fresh.state["head.weight"], other.state["head.weight"])


def test_no_task_is_the_mean_of_the_tasks(learngene: Learngene) -> None:
    mean = torch.stack([learngene.state["tasks.tiny-a"], learngene.state["tasks.tiny-b"]]).mean(
        dim=0
    )
    moved = replace(learngene, state={**learngene.state, "tasks.tiny-a": mean})
    assert is_same(expand(learngene, None), expand(moved, "tiny-a"))


@pytest.fixture
def reopened_learngene(
    learngene: Learngene, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Learngene:
    """Return the learngene in a folder, with an ancestry that can be opened.

    Every task that is opened is a tiny one that the learngene has not seen.
    """
    model = build_ancestry()
    assemble(model.spec, model.state, seed=0).save(tmp_path / "ancestry")
    record = open_ancestry(str(tmp_path / "ancestry")).record
    learngene.with_config(ancestries=(record,)).save(tmp_path / "learngene")
    for module in (expansion, predict):
        monkeypatch.setattr(
            module, "open_task", lambda reference, **_: make_tiny_task(reference, classes=5)
        )
    return load_learngene(tmp_path / "learngene")


def get_source(learngene: Learngene) -> str:
    return learngene.config.ancestries[0].source


def test_an_unseen_task_is_embedded_by_the_recorded_ancestry(reopened_learngene: Learngene) -> None:
    descendant = lifecycle.expand(
        reopened_learngene,
        layers=3,
        task="mine",
        embedding_images=20,
        run=Run(ancestry=get_source(reopened_learngene)),
    )
    model = build_ancestry()
    input_format = InputFormat(image_size=16, mean=model.record.mean, std=model.record.std)
    embedding = compute_embedding(
        model.model(), make_tiny_task("mine", classes=5), input_format, Run(), 20
    )
    changed = replace(
        reopened_learngene, state={**dict(reopened_learngene.state), "tasks.tiny-a": embedding}
    )
    assert is_same(descendant, expand(changed, "tiny-a", layers=3, classes=5))
    assert (descendant.spec.classes, descendant.task) == (5, "mine")
    assert descendant.provenance["embedding"] == {"from": "training images", "images": 20}
    assert reopened_learngene.folder is not None
    assert "tasks.mine" not in load_learngene(reopened_learngene.folder).state


def test_an_unseen_task_without_images_is_refused(
    reopened_learngene: Learngene, monkeypatch: pytest.MonkeyPatch
) -> None:
    empty = replace(make_tiny_task("mine"), sizes={"train": 0, "validation": 0, "test": 0})
    monkeypatch.setattr(predict, "open_task", lambda reference, **_: empty)
    with pytest.raises(
        WrongCall,
        match="mine has no training images to compute an embedding from; "
        "choose one of tiny-source, tiny-a",
    ):
        expand(reopened_learngene, "mine", ancestry=get_source(reopened_learngene))


def test_an_unseen_task_without_an_ancestry_is_refused(learngene: Learngene) -> None:
    with pytest.raises(WrongCall, match="records no ancestry model"):
        expand(learngene.with_config(ancestries=()), "mine")


def test_another_ancestry_is_refused(reopened_learngene: Learngene) -> None:
    record = replace(reopened_learngene.config.ancestries[0], sha256="1" * 64)
    with pytest.raises(BadFile, match="has the checksum"):
        expand(reopened_learngene.with_config(ancestries=(record,)), "mine", ancestry=record.source)


def test_an_ancestry_that_only_the_user_may_name_is_not_opened(
    reopened_learngene: Learngene,
) -> None:
    with pytest.raises(WrongCall, match="opened only if you name it: add ancestry="):
        lifecycle.expand(reopened_learngene, layers=3, task="mine")


def test_an_embedding_of_another_dimension_is_refused(learngene: Learngene) -> None:
    wrong = replace(learngene, state={**learngene.state, "tasks.tiny-a": torch.zeros(16)})
    with pytest.raises(
        BadFile, match=r"expected the embedding tasks.tiny-a to have shape \(32,\), got \(16,\)"
    ):
        expand(wrong)
    absent = {name: tensor for name, tensor in learngene.state.items() if name != "tasks.tiny-a"}
    with pytest.raises(BadFile, match=r"lacks the embedding tasks\.tiny-a"):
        expand(replace(learngene, state=absent))


def test_an_ancestry_of_another_width_is_refused(
    reopened_learngene: Learngene, tmp_path: Path
) -> None:
    other = build_ancestry(width=64, heads=4)
    assemble(other.spec, other.state, seed=0).save(tmp_path / "wide")
    record = open_ancestry(str(tmp_path / "wide")).record
    with pytest.raises(BadFile, match="has 64 features, but its task layer takes 32"):
        expand(reopened_learngene.with_config(ancestries=(record,)), "mine", ancestry=record.source)


@pytest.mark.slow
def test_of_several_hypernetworks_the_tasks_own_is_asked(separate_learngene: Learngene) -> None:
    a, b = expand(separate_learngene, "tiny-a"), expand(separate_learngene, "tiny-b")
    assert not is_same(a, b)
    swapped = {
        name.replace("tiny-b", "tiny-?")
        .replace("tiny-a", "tiny-b")
        .replace("tiny-?", "tiny-a"): tensor
        for name, tensor in separate_learngene.state.items()
    }
    assert is_same(a, expand(replace(separate_learngene, state=swapped), "tiny-b"))
    for task in ("mine", None):
        with pytest.raises(WrongCall, match="has a hypernetwork for each of tiny-a, tiny-b"):
            expand(separate_learngene, task)


def test_sizes_beyond_the_family_can_be_asked_for(learngene: Learngene) -> None:
    members = HypernetExpander().family(learngene.config)
    assert {(member.spec.layers, member.spec.width) for member in members} == {
        (layers, width) for layers in range(3, 10) for width in (16, 32)
    }
    descendant = expand(
        learngene, layers=11, width=48, image_size=32, heads=4, classes=70, mlp_ratio=2.0
    )
    assert (
        descendant.spec.layers,
        descendant.spec.width,
        descendant.spec.heads,
        descendant.spec.image_size,
    ) == (11, 48, 4, 32)
    assert tuple(descendant.state["blocks.10.mlp.fc1.weight"].shape) == (96, 48)
    with torch.no_grad():
        assert descendant.model()(torch.zeros(1, 3, 32, 32)).isfinite().all()


@pytest.mark.parametrize(
    ("sizes", "says"),
    [
        (
            {"width": 24},
            "width is 24, which is not a multiple of the head width of 16; choose 32, or give "
            "heads as well",
        ),
        ({"width": 32, "heads": 5}, "5 heads do not divide a width of 32"),
        ({"width": 512}, "rows of the low-rank decoder's factors"),
        ({"dense": True}, "predict no dense head; choose a classification task"),
    ],
)
def test_shapes_that_cannot_be_predicted_are_refused(
    learngene: Learngene, sizes: dict[str, Any], says: str
) -> None:
    with pytest.raises(WrongCall, match=says):
        expand(learngene, **sizes)


def test_tensors_of_another_variant_are_refused(learngene: Learngene) -> None:
    details = {**learngene.config.details}
    for changes, says in (
        ({"rank": 5}, "decoder"),
        ({"layers": 3}, "gnn.2"),
        ({"task": 31}, "TEN"),
    ):
        wrong = {**details, "hypernet": {**details["hypernet"], **changes}}
        with pytest.raises(BadFile, match=f"expected the hypernetwork's tensor .*{says}"):
            expand(learngene.with_config(details=wrong))
    more = {**learngene.state, "encoder.gnn.7.ln1.weight": torch.zeros(16)}
    with pytest.raises(BadFile, match=r"got a tensor 'gnn\.7\.ln1\.weight'"):
        expand(replace(learngene, state=more))


BAD_DETAILS: list[tuple[dict[str, Any], str]] = [
    ({"hypernet": None}, "describe no hypernetwork"),
    ({"hypernet": {"hidden": 16}}, "details of the tal learngene: hypernet"),
    ({"layers": [9, 3]}, r"layers is \[9, 3\]; expected two ascending numbers"),
    ({"layers": [3]}, "layers: 2 values|layers: expected 2"),
    ({"tasks": [1]}, "details of the tal learngene: tasks"),
    ({"apart": "yes"}, "details of the tal learngene: apart"),
]


@pytest.mark.parametrize(("wrong", "says"), BAD_DETAILS)
def test_details_that_cannot_be_are_refused(
    learngene: Learngene, wrong: dict[str, Any], says: str
) -> None:
    with pytest.raises(BadFile, match=says):
        expand(learngene.with_config(details={**learngene.config.details, **wrong}))


def test_a_hypernetwork_larger_than_any_is_not_built(learngene: Learngene) -> None:
    details = {**learngene.config.details}
    huge = {**details, "hypernet": {**details["hypernet"], "rank": 10**6}}
    with pytest.raises(
        BadFile, match="hypernet: rank is 1000000; it must be at least 1 and at most 4096"
    ):
        expand(learngene.with_config(details=huge))


def test_torch_hub_builds_for_the_task_that_is_named(
    reopened_learngene: Learngene, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(
        "learngene_zoo.lifecycle.expansion.open_task",
        lambda reference, **_: make_tiny_task(reference, classes=3),
    )
    model = torch_hub.method_vit("tal", "tiny-a", learngene=reopened_learngene.folder, depth=4)
    expected = expand(reopened_learngene, "tiny-a", layers=4).state
    assert all(torch.equal(tensor, expected[name]) for name, tensor in model.state_dict().items())


def test_orthogonal_weights_on_request(learngene: Learngene) -> None:
    plain, orthogonal = expand(learngene), expand(learngene, post="orthogonal")
    weight = orthogonal.state["blocks.1.attn.proj.weight"]
    assert torch.allclose(weight @ weight.mT, torch.eye(len(weight)), atol=1e-5)
    assert torch.equal(plain.state["head.weight"], orthogonal.state["head.weight"])
    assert not torch.equal(plain.state["blocks.1.attn.proj.weight"], weight)


def test_a_normalised_embedding_has_no_scale() -> None:
    normalised = extract_learngene(normalise_embeddings=True)
    assert normalised.config.details["hypernet"]["task_normalised"] is True
    name = "tasks.tiny-a"
    louder = replace(normalised, state={**normalised.state, name: 4 * normalised.state[name]})
    other = replace(normalised, state={**normalised.state, name: normalised.state["tasks.tiny-b"]})
    assert is_same(expand(normalised), expand(louder))
    assert not is_same(expand(normalised), expand(other))
