"""Recovery without labels: the losses fall, the start competes, the head stays, resuming is exact."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch.nn import functional

import learngene_zoo as lg
from learngene_zoo.artifacts import own_data
from learngene_zoo.artifacts.descendant import Descendant, assemble, load_descendant
from learngene_zoo.errors import BadFile, TrainingFailed, WrongCall
from learngene_zoo.families.family import load_family
from learngene_zoo.families.vit.spec import Segment
from learngene_zoo.runs.run import Run
from learngene_zoo.tasks.loader import Batch
from learngene_zoo.tasks.task import Task
from learngene_zoo.tasks.unlabelled import opening
from learngene_zoo.testing import make_tiny_ancestry, make_tiny_task
from learngene_zoo.training import loop
from learngene_zoo.training.healing import fitting, recovery, watching
from learngene_zoo.training.healing.blocks import match_blocks
from learngene_zoo.training.healing.maps import TokenMoments, solve_map
from learngene_zoo.training.healing.settings import HealConfig

RUN = Run(threads=1, device="cpu")
SETTINGS: dict[str, Any] = {"epochs": 3, "batch_size": 16, "lr": 1e-3, "run": RUN}


class Killed(BaseException):
    pass


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return a folder with an ancestry model and a descendant of 2 of its 3 blocks."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(opening, "open_task", lambda *_, **__: make_tiny_task())
    monkeypatch.setattr(
        "learngene_zoo.lifecycle.healing.open_task", lambda *_, **__: make_tiny_task()
    )
    ancestry = make_tiny_ancestry()
    assemble(ancestry.spec, ancestry.state, seed=0).save(tmp_path / "ancestry")
    lg.extract("first_k", ancestries="ancestry", out="gene", run=RUN)
    lg.expand("gene", layers=2, out="two", run=RUN)
    return tmp_path


def find_losses(model: Descendant) -> list[float]:
    record: Any = model.provenance["healed"]
    return [epoch["held_out_loss"] for epoch in record["metrics"]["history"]]


@pytest.fixture(scope="module")
def two_layers() -> Descendant:
    """Return the first 2 of the 12 blocks of the bundled model."""
    return lg.expand("first_k", layers=2, run=RUN)


@pytest.mark.slow
@pytest.mark.parametrize("maps", ["learnt", "fixed", "refit"])
def test_the_held_out_loss_falls_and_is_a_function_of_the_seed(
    two_layers: Descendant, maps: str
) -> None:
    call = partial(lg.heal, two_layers, "digits", maps=maps, run=RUN, batch_size=16, lr=1.5e-3)
    healed = call(epochs=3, max_images=192, map_images=256)
    losses = find_losses(healed)
    assert losses[3] < losses[2] < losses[1] < 0.98 * losses[0]
    record: Any = healed.provenance["healed"]
    assert record["metrics"]["kept_epoch"] == 3
    one, other = (call(epochs=1, max_images=32, map_images=64, keep="last") for _ in range(2))
    assert all(torch.equal(one.state[name], other.state[name]) for name in one.state)
    assert any(not torch.equal(one.state[name], two_layers.state[name]) for name in one.state)


@pytest.mark.slow
def test_the_head_the_final_norm_and_the_records_stay(place: Path) -> None:
    start = load_descendant("two")
    healed = lg.heal("two", "tiny", keep="last", **SETTINGS)
    changed = {
        name for name in start.state if not torch.equal(start.state[name], healed.state[name])
    }
    assert {"head.weight", "head.bias", "norm.weight", "norm.bias"} <= set(start.state) - changed
    assert any(name.startswith("blocks.1.") for name in changed)
    record: Any = healed.provenance["healed"]
    assert {**healed.provenance} == {**start.provenance, "healed": record}
    assert (healed.task, healed.view, healed.inherited) == (
        start.task,
        start.view,
        start.inherited,
    )
    for name in ("source", "sha256"):
        assert record["teacher"][name] == start.provenance["ancestries"][0][name]
    assert record["images"]["name"] == "tiny"
    twice: Any = lg.heal(healed, "tiny", **SETTINGS).provenance["healed"]
    assert twice["before"] == record


@pytest.mark.parametrize("task", [None, "tiny"])
def test_the_start_is_kept_if_no_epoch_is_better(
    place: Path, task: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    values = iter([0.9, 0.9, *[0.8] * 6])  # two probes of the start, then of three epochs
    probe = watching.run_probe
    monkeypatch.setattr(
        watching, "run_probe", lambda *given: replace(probe(*given), value=next(values))
    )
    healed = lg.heal("two", "tiny", task=task, **{**SETTINGS, "lr": 10.0})
    start = load_descendant("two")
    record: Any = healed.provenance["healed"]
    assert record["metrics"]["kept_epoch"] == 0
    assert all(torch.equal(start.state[name], healed.state[name]) for name in start.state)


def test_probes_of_a_task_are_recorded_for_every_epoch(
    place: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = replace(RUN, lines=True)
    healed = lg.heal("two", "tiny", task="tiny", **{**SETTINGS, "run": run, "epochs": 1})
    record: Any = healed.provenance["healed"]
    for epoch in record["metrics"]["history"]:
        assert 0 <= epoch["knn_accuracy"] <= 1
        assert 0 <= epoch["ridge_accuracy"] <= 1
    assert record["metrics"]["task"] == "tiny"
    assert ", 5-NN " in capsys.readouterr().err


def test_a_diverged_training_leaves_the_last_good_weights(
    place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*args: Any, **kwargs: Any) -> Iterator[loop.Step]:
        yield from (step for step in loop.train(*args, **kwargs) if step.epoch < 1)
        raise TrainingFailed("the loss patches is nan; try a lower --lr")

    monkeypatch.setattr(recovery, "train", fail)
    for keep, epoch, model in (("last", 1, "of epoch 1"), ("best", 0, "before it")):
        record: Any = lg.heal("two", "tiny", keep=keep, **SETTINGS).provenance["healed"]
        metrics = record["metrics"]
        assert metrics["diverged"]
        assert metrics["kept_epoch"] == epoch
        assert f"the loss patches is nan; the model {model} is kept" in metrics["warning"]


def test_maps_are_not_fitted_to_tokens_that_are_not_finite(
    place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    read = fitting.read_moments

    def spoil_judged(*args: Any) -> Iterator[tuple[bool, dict[str, TokenMoments]]]:
        for is_judged, parts in read(*args):
            for part in parts.values() if is_judged else ():
                part.squares.fill_(float("nan"))
            yield is_judged, parts

    monkeypatch.setattr(fitting, "read_moments", spoil_judged)
    with pytest.raises(TrainingFailed, match=r"the tokens of .* are not finite"):
        lg.heal("two", "tiny", **SETTINGS)


def killed_after(steps: int) -> Any:
    """Return a `train` that saves after every step and raises `Killed` at the given step."""

    def train(*args: Any, **kwargs: Any) -> Iterator[loop.Step]:
        for number, step in enumerate(loop.train(*args, **kwargs, seconds_between_checkpoints=0)):
            if number == steps:
                raise Killed
            yield step

    return train


@pytest.mark.slow
@pytest.mark.parametrize(
    "settings",
    [{}, {"maps": "refit"}, {"ema": 0.9, "max_patches": 2}, {"task": "tiny", "keep": "last"}],
    ids=str,
)
def test_a_killed_recovery_ends_as_if_it_had_not_been(
    place: Path, monkeypatch: pytest.MonkeyPatch, settings: dict[str, Any]
) -> None:
    call = partial(lg.heal, "two", "tiny", **{**SETTINGS, **settings})
    call(out="whole", run=RUN)

    def refuse(*args: Any) -> None:
        raise AssertionError("the first maps are fitted again")

    for deaths in ((0,), (4,), (3, 3)):
        out = f"killed {deaths}"
        for number, steps in enumerate(deaths):
            with monkeypatch.context() as patch:
                patch.setattr(recovery, "train", killed_after(steps))
                with pytest.raises(Killed):
                    call(out=out, run=replace(RUN, resume=number > 0))
        with monkeypatch.context() as patch:
            patch.setattr(recovery, "fit_maps", refuse)
            call(out=out, run=replace(RUN, resume=True))
        for name in ("config.json", "model.safetensors", "README.md"):
            assert Path(out, name).read_bytes() == Path("whole", name).read_bytes(), deaths


@pytest.mark.slow
def test_the_weights_fit_any_tool_that_opened_the_start(place: Path) -> None:
    import timm

    healed = lg.heal("two", "tiny", out="healed", **SETTINGS)
    theirs = timm.create_model("local-dir:healed", pretrained=True).eval()
    images = torch.randn(2, 3, 16, 16, generator=torch.Generator().manual_seed(0))
    assert torch.equal(theirs(images), healed.model()(images))


def test_the_losses_are_those_of_the_docstring(place: Path) -> None:
    start, ancestry = load_descendant("two"), make_tiny_ancestry()
    healing = HealConfig(blocks=1, patch_weight=2.0, stream_weight=3.0)
    objective = recovery.build_objective(start, ancestry, healing, RUN, {}).eval()
    fitting.fit_maps(objective, make_tiny_task(), 48, 0, RUN)
    assert objective.student_side.blocks == (0,)
    assert objective.teacher_side.blocks == (1,)
    images = torch.randn(4, 3, 16, 16, generator=torch.Generator().manual_seed(0))
    none = torch.zeros(4, dtype=torch.int64)
    with torch.no_grad():
        losses = objective(Batch(images, none, none))
        streams = [run_blocks(model.model().eval(), images) for model in (start, ancestry)]
        student, teacher = ([functional.layer_norm(x, (32,)) for x in xs] for xs in streams)

        def compare(name: str, given: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
            return functional.smooth_l1_loss(objective.maps[name](given), target, beta=2.0)

        expected = {
            "patches": 2 * compare("patches", student[-1][:, 1:], teacher[-1][:, 1:]),
            "token": compare("token", student[-1][:, 0], teacher[-1][:, 0]),
            "streams": 3 * compare("stream0", student[0], teacher[1]),
        }
        answers = objective.maps["token"](student[-1][:, 0])
        cosine = functional.cosine_similarity(answers, teacher[-1][:, 0], dim=-1)
    expected["cosine"] = 1 - cosine.mean()
    assert {name: float(loss) for name, loss in losses.items()} == pytest.approx(
        {name: float(loss) for name, loss in expected.items()}, rel=1e-4
    )


def run_blocks(model: Any, images: torch.Tensor) -> list[torch.Tensor]:
    """Return the stream after every block."""
    tokens, streams = model._pos_embed(model.patch_embed(images)), []
    for block in model.blocks:
        tokens = block(tokens)
        streams.append(tokens)
    return streams


def test_a_map_is_the_least_squares_solution() -> None:
    generator = torch.Generator().manual_seed(0)
    given = torch.randn(200, 5, generator=generator) + 3
    target = given @ torch.randn(5, 4, generator=generator) + 7
    noisy = target + 0.01 * torch.randn(200, 4, generator=generator)
    halves = [
        TokenMoments.of(*(part[half] for part in (given, noisy)))
        for half in (slice(120), slice(120, None))
    ]
    fitted, judged = halves
    weight, bias, _ = solve_map(fitted, judged)
    columns = np.column_stack([given.double().numpy(), np.ones(200)])
    expected, *_ = np.linalg.lstsq(columns, noisy.double().numpy(), rcond=None)
    assert np.allclose(weight.T.numpy(), expected[:5], atol=1e-3)
    assert np.allclose(bias.numpy(), expected[5], atol=1e-2)
    errors = given[120:].double() @ weight.T + bias - noisy[120:].double()
    assert judged.measure_error(weight, bias) == pytest.approx(float(errors.square().sum()))
    few = TokenMoments.of(*(torch.randn(6, width, generator=generator) for width in (40, 3)))
    weight, _, penalty = solve_map(few, few)
    assert bool(torch.isfinite(weight).all()), "with fewer tokens than channels, too"
    assert penalty > 0


@pytest.mark.parametrize(
    ("layers", "teacher", "count", "records", "pairs"),
    [
        (6, 12, 3, {}, ((1, 2, 3), (3, 5, 7))),
        (6, 12, 9, {}, ((0, 1, 2, 3, 4), (1, 3, 5, 7, 9))),
        (6, 12, 0, {}, ((), ())),
        (1, 12, 3, {}, ((), ())),
        (3, 12, 2, {"runs": [0, 2, 9]}, ((0, 1), (1, 8))),
        (3, 12, 2, {"runs": [0, 1, 2], "teacher_depth": 3}, ((0, 1), (0, 1))),
        (3, 12, 2, {"teacher_depth": 6}, ((0, 1), (1, 3))),
        (3, 12, 2, {"runs": [0, "x", 2]}, ((0, 1), (3, 7))),
        (3, 12, 2, {"runs": [0, 5, 50], "teacher_depth": 99}, ((0, 1), (3, 7))),
        (3, 2, 2, {}, ((0, 1), (0, 0))),
    ],
)
def test_blocks_are_matched(
    layers: int, teacher: int, count: int, records: dict[str, Any], pairs: Any
) -> None:
    assert match_blocks(layers, teacher, count, records) == pairs


def spoil_weights() -> None:
    ancestry = make_tiny_ancestry(seed=5)
    assemble(ancestry.spec, ancestry.state, seed=0).save("ancestry", force=True)


def test_another_model_in_the_place_of_the_teacher_is_refused(place: Path) -> None:
    spoil_weights()
    with pytest.raises(BadFile, match="it is another model than the one before"):
        lg.heal("two", "tiny", **SETTINGS)
    assert find_losses(lg.heal("two", "tiny", teacher="ancestry", **SETTINGS))


@pytest.mark.slow
def test_a_model_from_elsewhere_needs_its_teacher_named(
    place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(own_data, "_session", own_data.OrderedDict())
    (own_data._find_folder() / own_data.FILE).unlink()
    with pytest.raises(WrongCall, match=r"opened only if you name it: add teacher=.ancestry"):
        lg.heal("two", "tiny", **SETTINGS)
    healed = lg.heal("two", "tiny", teacher="ancestry", **SETTINGS)
    assert find_losses(lg.heal(healed, "tiny", **SETTINGS)), "it is known from then on"


@pytest.mark.slow
def test_the_teacher_of_a_finetuned_model_is_known(place: Path) -> None:
    lg.finetune("two", task="digits", epochs=1, images=40, out="tuned", run=RUN)
    assert find_losses(lg.heal("tuned", "tiny", **SETTINGS))


@pytest.mark.slow
def test_results_of_a_training_before_are_not_those_of_the_healed_model(place: Path) -> None:
    tuned = lg.finetune("two", task="digits", epochs=1, images=40, out="tuned", run=RUN)
    healed = lg.heal("tuned", "tiny", keep="last", **SETTINGS)
    assert "metrics" not in healed.provenance
    assert healed.provenance["trained_on"] == tuned.provenance["trained_on"]
    record: Any = healed.provenance["healed"]
    assert record["trained_before"]["metrics"] == tuned.provenance["metrics"]
    healed.save("healed")
    tuned_card, healed_card = (Path(name, "README.md").read_text() for name in ("tuned", "healed"))
    assert "model-index" in tuned_card
    assert "model-index" not in healed_card


def change(model: Descendant, **changes: Any) -> Descendant:
    return replace(model, provenance={**model.provenance, **changes}, folder=None)


def rebuild(**sizes: Any) -> Descendant:
    return assemble(make_tiny_ancestry(**sizes).spec, {}, seed=0)


@pytest.mark.parametrize(
    ("build", "settings", "words"),
    [
        (
            lambda m: change(m, ancestries=[]),
            {},
            "records no ancestry model; name one: add teacher=.SOURCE.",
        ),
        (
            lambda m: change(m, ancestries=2 * m.provenance["ancestries"]),
            {},
            "records 2 ancestry models",
        ),
        (lambda m: rebuild(dense=True), {}, "has a class for every pixel"),
        (
            lambda m: rebuild(front=(Segment(layers=1, width=16, heads=2),)),
            {},
            "stitched from several widths",
        ),
        (lambda m: rebuild(patch_size=4), {"teacher": "ancestry"}, "into 4 patches and the desc"),
        (lambda m: m, {"mixup": 0.5}, "mixup is 0.5; it needs labels"),
        (lambda m: m, {"epoch": 1}, "no setting named 'epoch'; did you mean epochs"),
        (
            lambda m: m,
            {"patch_weight": 0.0, "token_weight": 0.0, "cosine_weight": 0.0, "blocks": 0},
            "no loss is left",
        ),
    ],
)
def test_wrong_calls_have_one_line(
    place: Path, build: Any, settings: dict[str, Any], words: str
) -> None:
    with pytest.raises(WrongCall, match=words) as caught:
        lg.heal(build(load_descendant("two")), "tiny", **{**SETTINGS, **settings})
    assert "\n" not in str(caught.value)


def test_a_task_with_masks_has_no_probes(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    masks: Task = replace(make_tiny_task(), kind="segmentation")
    monkeypatch.setattr("learngene_zoo.lifecycle.healing.open_task", lambda *_, **__: masks)
    with pytest.raises(WrongCall, match="the probes need one for every image"):
        lg.heal("two", "tiny", task="tiny", **SETTINGS)


@pytest.mark.parametrize(
    ("family", "sizes"),
    [
        ("vit", {"class_token": False, "pool": "avg"}),
        ("vit", {"registers": 2, "layer_scale": 0.1, "no_embed_class": True}),
        ("vit", {"class_token": False, "pool": "map"}),
        ("vit", {"pool": "avg", "fc_norm": True, "final_norm": False}),
        ("vit", {"pre_norm": True, "classes": 0}),
        ("eva", {}),
    ],
    ids=str,
)
def test_every_trained_parameter_has_a_gradient(family: str, sizes: dict[str, Any]) -> None:
    ancestry = make_tiny_ancestry(spec=load_family(family).examples[0].with_(layers=3), **sizes)
    start = assemble(ancestry.spec.with_(layers=2), {}, seed=1, scheme="fan_in")
    objective = recovery.build_objective(start, ancestry, HealConfig(), RUN, {})
    task = make_tiny_task(image_size=ancestry.spec.image_size)
    fitting.fit_maps(objective, task, 20, 0, RUN)
    assert ("token" in objective.maps) == ancestry.spec.class_token
    size = ancestry.spec.image_size
    images = torch.randn(2, 3, size, size, generator=torch.Generator().manual_seed(0))
    none = torch.zeros(2, dtype=torch.int64)
    torch.stack(list(objective.train()(Batch(images, none, none)).values())).sum().backward()
    trained = {name for name, value in objective.named_parameters() if value.requires_grad}
    assert any(name.startswith("model.blocks.1.") for name in trained)
    assert not [name for name in trained if objective.get_parameter(name).grad is None]


def test_a_pruned_model_is_healed(place: Path) -> None:
    spec = make_tiny_ancestry().spec
    pruned = spec.with_(
        layers=2,
        front=(Segment(layers=1, width=32, heads=1, attention_width=16, stitch=False),),
    )
    start = assemble(pruned, {}, seed=0, scheme="fan_in")
    healed = lg.heal(start, "tiny", teacher="ancestry", **SETTINGS)
    assert find_losses(healed)
