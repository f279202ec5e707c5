"""Decisions of the lifecycle's verbs: seeds of parts, order of a plan, precedence of controls,
refusals.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import learngene_zoo as lg
from learngene_zoo import lifecycle
from learngene_zoo.artifacts.descendant import assemble
from learngene_zoo.artifacts.learngene import Learngene
from learngene_zoo.artifacts.records import LearngeneConfig, TargetTask
from learngene_zoo.errors import WrongCall
from learngene_zoo.families.tensors import initialise
from learngene_zoo.families.vit.spec import ViTSpec
from learngene_zoo.lifecycle.analyse import parse_shots
from learngene_zoo.method.checks import list_members
from learngene_zoo.method.installed import METHODS
from learngene_zoo.method.sizes import Budget, Target
from learngene_zoo.runs.run import Run
from learngene_zoo.seeds import derive_seed
from learngene_zoo.settings import Recipe, with_settings
from lgzoo_lsamd.blocks import select_base_blocks

SPEC = ViTSpec(layers=3, width=32, heads=2, classes=4, image_size=16, patch_size=8)
DEIT = ("timm:deit_base_patch16_224",)


def learngene(**fields: object) -> Learngene:
    config = LearngeneConfig(method="lsamd", spec=SPEC, details={"kept": [1, 3]}, **fields)  # type: ignore[arg-type]
    return Learngene(config=config, state=select_base_blocks(initialise(SPEC, 0), SPEC, [1, 3]))


@pytest.mark.parametrize("init", ["timm", "fan_in"])
def test_a_model_from_scratch_starts_from_a_seed_of_its_own(init: str) -> None:
    model = lifecycle.train(
        "digits", spec=SPEC, recipe=Recipe(epochs=0), init=init, run=Run(seed=3)
    )  # type: ignore[arg-type]
    initial_state = initialise(SPEC.with_(classes=10), derive_seed(3, "init"), init)  # type: ignore[arg-type]
    assert model.spec == SPEC.with_(classes=10)
    assert all(torch.equal(model.state[name], initial_state[name]) for name in initial_state)


def test_a_plan_takes_settings_as_an_extraction_does() -> None:
    fewer = lifecycle.plan("lsamd", ancestry=DEIT, top=2)
    assert fewer == lifecycle.plan("lsamd", ancestries=DEIT, top=2)
    assert {member.spec.width for member in fewer} == {768}
    assert min(member.spec.layers for member in fewer) == 2
    more = lifecycle.plan("lsamd", ancestries=DEIT, top=3)
    assert min(member.spec.layers for member in more) == 3
    with pytest.raises(WrongCall, match="no setting named 'tpo'; did you mean top"):
        lifecycle.plan("lsamd", tpo=2)
    with pytest.raises(WrongCall, match=r"lsamd-mini is a learngene, .*; leave out top"):
        lifecycle.plan("lsamd-mini", top=2)
    with pytest.raises(WrongCall, match="one meaning"):
        lifecycle.plan("lsamd", ancestry=DEIT, ancestries=DEIT)


@pytest.mark.parametrize(
    ("word", "value"),
    [("ancestries", DEIT), ("ancestry", DEIT), ("preset", "smoke"), ("pool", "avg")],
)
def test_a_plan_of_a_learngene_refuses_what_only_an_extraction_takes(word: str, value: str) -> None:
    wrong: Any = {word: value}
    with pytest.raises(WrongCall, match=rf"lsamd-mini is a learngene.*; leave out {word[:7]}"):
        lifecycle.plan("lsamd-mini", **wrong)
    with pytest.raises(WrongCall, match=r"this is a learngene.*; leave out extractor"):
        lifecycle.plan(learngene(), extractor=METHODS.load("lsamd").extractor)


def test_a_plan_takes_sizes_and_bounds_by_name() -> None:
    target = Target(layers=7, image_size=64)
    assert lifecycle.plan("lsamd", depth=7, img_size=64) == lifecycle.plan("lsamd", target=target)
    bounds = Budget(max_params=1_000_000)
    assert lifecycle.plan("lsamd-mini", max_params="1M") == lifecycle.plan(
        "lsamd-mini", budget=bounds
    )
    with pytest.raises(WrongCall, match="no setting named 'layer'; did you mean layers"):
        lifecycle.plan("lsamd", layer=7)
    with pytest.raises(WrongCall, match="closed_form lists no size of 99 layers; its sizes have 1"):
        lifecycle.plan("closed_form", layers=99)
    with pytest.raises(WrongCall, match="closed_form lists no size of width 50; leave out width"):
        lifecycle.plan("closed_form", width=50)


def test_a_plan_of_a_folder_is_of_its_learngene_whatever_its_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    gene = learngene()
    expected = lifecycle.plan(gene)
    gene.save(Path("pool"))
    assert lifecycle.plan(Path("pool")) == lifecycle.plan("./pool") == expected
    assert lifecycle.plan("pool") != expected, "a word is the name of a method first"
    with pytest.raises(WrongCall, match="no method named 'poool'; did you mean pool"):
        lifecycle.plan("poool")


CHOICES: dict[str, Callable[[lg.Descendant], Any]] = {
    "no kind of probe named 'KNN'; did you mean knn": lambda model: lifecycle.probe(
        model, task="digits", kind="KNN"
    ),
    "no split for a probe named 'train'": lambda model: lifecycle.probe(
        model, task="digits", split="train"
    ),
    "no fit named 'squash'": lambda model: lifecycle.probe(model, task="digits", fit="squash"),
    "shots is 'few'; expected whole numbers, or \"all\"": lambda model: lifecycle.probe(
        model, task="digits", shots="few"
    ),
    "no dtype named 'int4'; did you mean int8": lambda model: lg.export(
        model, "x.onnx", dtype="int4"
    ),
    "no resolution named 'orig'; did you mean original": lambda model: lg.evaluate(
        model, "digits", resolution="orig"
    ),
    "no initialisation named 'he'": lambda model: lg.train("digits", spec=model.spec, init="he"),
    "no precision named 'fp8'": lambda model: Run(precision="fp8"),
    "no convention named 'thopp'; did you mean thop": lambda model: lg.plan(
        "lsamd", convention="thopp"
    ),
    "no setting named 'patiense'; did you mean patience": lambda model: lg.finetune(
        model, "digits", patiense=1
    ),
    "no setting named 'image_sze'; did you mean image_size": lambda model: lg.shrink(image_sze=64),
    "no setting named 'epoch'; did you mean epochs": lambda model: lg.heal(
        model, "digits", epoch=1
    ),
    "recommend does not measure latency": lambda model: lg.recommend(
        "digits", ["first_k"], max_latency="1us"
    ),
    "sizes is '1'; expected a whole number": lambda model: lg.recommend(
        "digits", ["first_k"], sizes="1"
    ),
    "learngene is of type NoneType; expected": lambda model: lg.recommend("digits", None),
    "no split named 'None'": lambda model: lg.evaluate(model, "digits", split=None),
    """no split named "['test']\"""": lambda model: lg.evaluate(model, "digits", split=["test"]),
    "no split named 'valid'; did you mean validation": lambda model: lg.compare(
        model, model, split="valid"
    ),
    "top is '3'; expected a whole number": lambda model: lg.predict(model, [], top="3"),
    "tuning is of type NoneType; expected one of the class FinetuneConfig": lambda model: (
        lg.finetune(model, tuning=None)
    ),
    "healing is of type NoneType; expected one of the class HealConfig": lambda model: lg.heal(
        model, "digits", healing=None
    ),
    "no format named 'None'; did you mean none": lambda model: lg.shrink(
        task="digits", max_params="100K", export=None
    ),
    "extractor is of type str; expected one of the class Extractor": lambda model: lg.extract(
        "first_k", extractor="mini"
    ),
    "target is of type dict; expected one of the class Target": lambda model: lg.expand(
        "lsamd-mini", target={"layers": 3}
    ),
    "no fit named 'foo'; known: crop, pad, stretch": lambda model: model.with_fit("foo"),
    "model is of type NoneType; expected": lambda model: lg.convert(None, "x"),
    "model is of type Identity; expected": lambda model: lg.convert(torch.nn.Identity(), "x"),
    "model is of type Learngene; expected": lambda model: lg.convert(learngene(), "x"),
    "ancestry is of type int; expected": lambda model: lg.convert(model, "x", ancestry=3),
    "nowhere": lambda model: lg.convert(model, "x", ancestry=Path("nowhere")),
    "None is not the name of a Hub repository": lambda model: lg.fetch(None),
    "is not the name of a Hub repository": lambda model: lg.fetch(Path("a/b")),
    "no argument named 'license'; did you mean licence": lambda model: lg.publish(
        "folder", "a/b", license="mit"
    ),
    "folder is of type Learngene; expected the path": lambda model: lg.publish(learngene(), "a/b"),
    "sizes is 0; expected at least 1": lambda model: lg.recommend("digits", ["first_k"], sizes=0),
}


@pytest.mark.parametrize("expected", CHOICES)
def test_a_value_that_is_none_of_the_choices_is_refused(
    expected: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(WrongCall, match=re.escape(expected)):
        CHOICES[expected](assemble(SPEC.with_(classes=10), {}, seed=0, task="digits"))


def test_shots_of_a_probe_may_be_one_number_or_all() -> None:
    assert parse_shots(5) == [5]
    assert parse_shots(None) == parse_shots("all") == [None]
    assert parse_shots([1, "all", None]) == [1, None, None]
    numbers = parse_shots(list(np.array([1, 5])))
    assert numbers == [1, 5]
    assert {type(number) for number in numbers} == {int}
    wrong: Any = 1.5
    with pytest.raises(WrongCall, match=r"shots is 1\.5; expected whole numbers"):
        parse_shots(wrong)


def test_a_probe_takes_a_model_at_another_image_size(tmp_path: Path) -> None:
    model = assemble(SPEC.with_(classes=10), {}, seed=0, task="digits")
    model.save(tmp_path / "model")
    probe = partial(lifecycle.probe, images=40)
    (resized,) = probe(model.with_image_size(32))
    assert probe(model, image_size=32) == [resized]
    # The task is the folder's, so it need not be named.
    assert probe(tmp_path / "model", image_size=np.int64(32)) == [resized]
    assert probe(model) != [resized]


@pytest.mark.parametrize("model", [None, 3, learngene(), torch.nn.Identity()])
def test_a_probe_refuses_what_is_no_model(model: Any) -> None:
    with pytest.raises(WrongCall, match=r"model is of type .*; expected"):
        lifecycle.probe(model, task="digits")


@pytest.mark.parametrize("size", ["32", 32.5, True, -1, 10**9])
def test_an_impossible_image_size_is_refused_everywhere(size: Any) -> None:
    model = assemble(SPEC.with_(classes=10), {}, seed=0, task="digits")
    calls: list[Callable[[], Any]] = [
        lambda: lg.extract("first_k", image_size=size),
        lambda: lg.shrink(task="digits", max_params="100K", image_size=size),
        lambda: lifecycle.probe(model, image_size=size),
        lambda: model.with_image_size(size),
        lambda: lg.finetune(model, image_size=size),
        lambda: SPEC.with_(image_size=size),
    ]
    for call in calls:
        with pytest.raises(WrongCall, match="image_size is"):
            call()


def test_image_sizes_of_numpy_are_numbers() -> None:
    wrong: Any = np.int64(40)
    gene = lg.extract("first_k", image_size=wrong)
    assert gene.config == lg.extract("first_k", image_size=40).config
    assert type(SPEC.with_(image_size=np.int64(32)).image_size) is int


def test_learngenes_to_recommend_from_may_be_open() -> None:
    gene = lg.extract("first_k")
    found = lg.recommend("digits", gene, sizes=1, images=50)
    assert found == lg.recommend("digits", [gene], sizes=1, images=50)
    other = lg.extract("first_k", image_size=40)
    both = lg.recommend("digits", [gene, other], sizes=1, images=50)
    assert [item.learngene for item in found] == ["in memory"]
    assert {item.learngene for item in both} == {"in memory", "in memory 2"}
    with pytest.raises(WrongCall):
        lg.load("in memory")
    with pytest.raises(WrongCall, match="none of first_k has a descendant"):
        lg.recommend("digits", gene, max_params=10)


def test_a_plan_begins_with_the_smallest() -> None:
    members = lifecycle.plan("pool", ancestries=DEIT)
    costs = [member.cost() for member in members]
    assert costs == sorted(costs)
    method = METHODS.load("pool")
    outlined = method.extractor.outline(
        [lifecycle.plan("scratch", ancestries=DEIT)[-1].spec.with_(layers=12)]
    )
    assert [
        member.cost() for member in list_members(outlined, method.expander, Target())
    ] != sorted(costs), "or it shows nothing"


@pytest.mark.parametrize(
    ("own", "named", "under"),
    [(None, None, None), ("stem", None, "stem"), ("stem", "shuffled", "shuffled")],
)
def test_a_control_that_is_named_counts_before_the_learngenes_own(
    own: str | None, named: str | None, under: str | None
) -> None:
    descendant = lifecycle.expand(learngene(control=own), layers=3, control=named)  # type: ignore[arg-type]
    assert descendant.provenance.get("control") == under


def test_a_plan_within_a_budget_is_the_part_of_the_plan_that_fits() -> None:
    everything = lifecycle.plan("lsamd", ancestries=DEIT)
    bounds = Budget(max_params=60_000_000, max_flops=12_000_000_000)
    within = lifecycle.plan("lsamd", ancestries=DEIT, budget=bounds)
    assert within == [m for m in everything if m.cost().params <= 60e6 and m.cost().flops <= 12e9]
    assert 0 < len(within) < len(everything)
    with pytest.raises(WrongCall, match="the smallest has"):
        lifecycle.plan("lsamd", ancestries=DEIT, budget=Budget(max_params=1000))
    with pytest.raises(WrongCall, match="does not measure latency"):
        lifecycle.plan("lsamd", ancestries=DEIT, budget=Budget(max_latency=1.0))


def test_a_task_that_is_named_twice_is_refused() -> None:
    with pytest.raises(WrongCall, match="the task digits is given twice"):
        lifecycle.extract("lsamd", tasks=("digits", "digits"), preset="smoke")


PURPOSE = TargetTask(task="folder:mine", classes=2, class_names=("cat", "dog"))


def test_classes_that_contradict_the_task_are_refused() -> None:
    with pytest.raises(WrongCall, match="digits has 10 classes, but classes is 5"):
        lifecycle.expand(learngene(purpose=PURPOSE), layers=3, classes=5, task="digits")


@pytest.mark.parametrize(
    ("asked", "task", "classes", "names"),
    [
        ({}, "folder:mine", 2, ("cat", "dog")),
        ({"classes": 2}, "folder:mine", 2, ("cat", "dog")),
        ({"classes": 5}, None, 5, ()),
        ({"task": "digits"}, "digits", 10, ()),
    ],
)
def test_descendants_are_for_the_task_of_the_learngene(
    asked: dict[str, Any], task: str | None, classes: int, names: tuple[str, ...]
) -> None:
    descendant = lifecycle.expand(learngene(purpose=PURPOSE), layers=3, **asked)
    assert (descendant.task, descendant.spec.classes, descendant.class_names) == (
        task,
        classes,
        names,
    )


def test_an_extraction_at_another_image_size_is_the_one_that_was_planned(tmp_path: Path) -> None:
    for name, spec in {"narrow": SPEC, "wide": SPEC.with_(width=48, image_size=32)}.items():
        assemble(spec, {}, seed=0).save(tmp_path / name)
    both, small = [str(tmp_path / "narrow"), str(tmp_path / "wide")], Target(image_size=24)
    extractor = with_settings(METHODS.load("lsamd").extractor, {"keep": (1, 2)})
    learngene = lifecycle.extract(
        "lsamd", ancestries=both[0], extractor=extractor, image_size=24, out=tmp_path / "gene"
    )
    planned = lifecycle.plan("lsamd", ancestries=both[0], extractor=extractor, target=small)
    assert planned == lifecycle.plan(tmp_path / "gene")
    assert lifecycle.expand(learngene).spec.image_size == 24
    assert {
        member.spec.image_size for member in lifecycle.plan("snnet", ancestries=both, target=small)
    } == {24}
    with pytest.raises(WrongCall, match="image size"):
        lifecycle.plan("snnet", ancestries=both)


def test_one_task_may_be_named_without_a_list() -> None:
    with pytest.raises(WrongCall, match="did you mean digits"):
        lifecycle.extract("lsamd", tasks="digit", preset="smoke")


def test_a_learngene_without_a_picture_is_not_drawn(tmp_path: Path) -> None:
    scratched = Learngene(config=LearngeneConfig(method="scratch", spec=SPEC), state={})
    with pytest.raises(WrongCall, match="the method scratch cannot draw its learngenes"):
        lifecycle.plot(scratched, tmp_path / "x.png")


def test_an_extraction_takes_the_words_of_the_command_line() -> None:
    by_word = lg.extract("first_k", ancestry="bundled", task="digits", img_size=40)
    by_argument = lg.extract("first_k", ancestries=["bundled"], tasks=["digits"], image_size=40)
    assert by_word.config == by_argument.config
    with pytest.raises(WrongCall, match="top is 0; it must be at least 1"):
        lg.extract("lsamd", top=0)


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"tops": 3}, "no setting named 'tops'; did you mean top?"),
        ({"ancestris": "bundled"}, "no setting named 'ancestris'; did you mean ancestry?"),
        ({"task": "objects", "tasks": "signs"}, "have one meaning; give one of them"),
        ({"top": "three"}, "top is 'three'; expected a value of type int"),
    ],
)
def test_wrong_settings_of_an_extraction_are_refused(settings: Any, words: str) -> None:
    with pytest.raises(WrongCall, match=re.escape(words)):
        lg.extract("lsamd", **settings)


def test_a_ranking_takes_bounds_by_name() -> None:
    with pytest.raises(WrongCall, match="has a descendant within these budgets"):
        lg.recommend(task="digits", learngenes="lsamd", max_params="1K")
    with pytest.raises(WrongCall, match=r"no bound named 'max_parms'; did you mean max_params\?"):
        lg.recommend("digits", max_parms="1K")


def test_the_sizes_of_a_learngene_are_those_that_it_builds_for_its_task(tmp_path: Path) -> None:
    lifecycle.extract("first_k", tasks="digits", out=tmp_path / "gene", run=Run(threads=1))
    built = lifecycle.expand(tmp_path / "gene", layers=2)
    (member,) = lifecycle.plan(tmp_path / "gene", target=Target(layers=2))
    assert (built.classes, member.spec.classes) == (10, 10)
    assert member.cost() == built.cost()
    (other,) = lifecycle.plan(tmp_path / "gene", target=Target(layers=2, classes=3))
    assert other.spec.classes == 3
