"""Controls replace what a descendant inherited and leave the rest; every way to request one gives
the same model.
"""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from click.testing import CliRunner

import learngene_zoo
from learngene_zoo import torch_hub
from learngene_zoo.artifacts.descendant import (
    Descendant,
    apply_control,
    assemble,
    fingerprint_of,
    load_descendant,
)
from learngene_zoo.artifacts.learngene import Learngene
from learngene_zoo.artifacts.records import CONTROLS, Control, LearngeneConfig
from learngene_zoo.cli.main import main
from learngene_zoo.errors import WrongCall
from learngene_zoo.families import tensors
from learngene_zoo.families.tensors import initialise
from learngene_zoo.families.vit.spec import TABLE, ViTSpec
from learngene_zoo.runs.run import Run

SPEC = ViTSpec(layers=2, width=32, heads=4, image_size=32, patch_size=8, classes=3)
PARTS = tensors.remove_head(initialise(SPEC, 7), SPEC)


def make_descendant() -> Descendant:
    """Return a descendant that inherits everything except its head."""
    return assemble(SPEC, PARTS, seed=1, provenance={"method": "lsamd", "seed": 3})


def test_the_shuffled_control_keeps_every_distribution() -> None:
    start = make_descendant()
    control = apply_control(start, "shuffled", 5)
    for name, tensor in start.state.items():
        assert torch.equal(control.state[name].flatten().sort()[0], tensor.flatten().sort()[0])
    constant = {name for name in PARTS if PARTS[name].unique().numel() == 1}
    moved = {
        name for name in start.state if not torch.equal(control.state[name], start.state[name])
    }
    assert moved == start.inherited - constant
    again, other = apply_control(start, "shuffled", 5), apply_control(start, "shuffled", 6)
    assert fingerprint_of(control) == fingerprint_of(again) != fingerprint_of(other)
    assert (control.inherited, control.provenance, control.folder) == (
        start.inherited,
        start.provenance,
        None,
    )


@pytest.mark.parametrize(("name_of", "scheme"), [("stem", "timm"), ("stem_fan_in", "fan_in")])
def test_the_stem_controls_keep_stem_and_norm(name_of: Control, scheme: tensors.Scheme) -> None:
    start = make_descendant()
    control = apply_control(start, name_of, 5)
    kept = {name for name in start.inherited if TABLE.is_stem(name) or TABLE.is_final_norm(name)}
    assert control.inherited == kept
    initial_state = initialise(SPEC, 5, scheme)
    assert list(control.state) == list(start.state)
    for name in start.state:
        source = start.state if name in kept or TABLE.is_head(name) else initial_state
        assert torch.equal(control.state[name], source[name]), name


def test_a_control_that_does_not_exist_is_refused() -> None:
    with pytest.raises(WrongCall, match="no control named 'shuffle'; did you mean shuffled"):
        apply_control(make_descendant(), "shuffle", 0)  # type: ignore[arg-type]


@pytest.fixture
def learngene(tmp_path: Path) -> Path:
    """Return a learngene with all blocks of a model, as LSAMD stores them."""
    config = LearngeneConfig(method="lsamd", spec=SPEC, details={"kept": [1, 2]})
    return Learngene(config=config, state=PARTS).save(tmp_path / "learngene")


@pytest.mark.parametrize("control", CONTROLS)
def test_every_way_to_ask_for_a_control_gives_the_same_model(
    control: Control, learngene: Path, tmp_path: Path
) -> None:
    words = [
        "expand",
        str(learngene),
        "--layers",
        "3",
        "--control",
        control,
        "--seed",
        "4",
        "-o",
        str(tmp_path / "made"),
    ]
    result = CliRunner().invoke(main, words)
    assert result.exit_code == 0, result.stderr
    there = load_descendant(tmp_path / "made")
    here = learngene_zoo.expand(learngene, layers=3, control=control, run=Run(seed=4))
    plain = learngene_zoo.expand(learngene, layers=3, run=Run(seed=4))
    hub = torch_hub.build(learngene, depth=3, control=control, seed=4).state_dict()
    expected = apply_control(plain, control, 4)
    assert here.inherited == there.inherited == expected.inherited
    assert (
        fingerprint_of(here)
        == fingerprint_of(there)
        == fingerprint_of(expected)
        != fingerprint_of(plain)
    )
    body = [
        name for name in expected.state if not name.startswith("head.")
    ]  # without a task torch.hub builds no head
    assert sorted(hub) == sorted(body)
    assert all(torch.equal(hub[name], expected.state[name]) for name in body)


def test_a_descendant_says_which_control_it_is_under(learngene: Path, tmp_path: Path) -> None:
    model = learngene_zoo.expand(learngene, layers=2, control="stem", out=tmp_path / "made")
    assert (
        model.provenance["control"]
        == load_descendant(tmp_path / "made").provenance["control"]
        == "stem"
    )
    card = (tmp_path / "made" / "README.md").read_text()
    assert "initialised from a learngene of the method `lsamd`, under the control `stem`" in card
    row = json.loads(CliRunner().invoke(main, ["show", str(tmp_path / "made"), "--json"]).stdout)
    assert (row["method"], row["control"]) == ("lsamd", "stem")
    assert "control" not in learngene_zoo.expand(learngene, layers=2).provenance


def test_an_unknown_control_is_a_wrong_call(learngene: Path) -> None:
    result = CliRunner().invoke(main, ["expand", str(learngene), "--control", "stam"])
    assert result.exit_code == 2
    assert "stam" in result.stderr
