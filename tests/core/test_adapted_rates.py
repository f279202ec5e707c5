"""Learning rates of presets are lowered for wide pretrained models, but for nothing that a user or
a paper names.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from learngene_zoo import lifecycle
from learngene_zoo.artifacts.descendant import assemble
from learngene_zoo.artifacts.learngene import load_learngene
from learngene_zoo.cli.main import main
from learngene_zoo.errors import WrongCall
from learngene_zoo.families.gpt2.spec import Gpt2Spec
from learngene_zoo.families.spec import Spec
from learngene_zoo.method.contract import Extractor
from learngene_zoo.method.installed import METHODS
from learngene_zoo.method.rates import FLAT_LR, INHERITED_DECAY, INHERITED_LR, adapt_rates
from learngene_zoo.runs.run import Run
from learngene_zoo.settings import list_settings
from learngene_zoo.testing.laws import make_tiny_ancestry

WIDE = make_tiny_ancestry().spec.with_(width=384, heads=6)
TEACHERS = ["distillation", "fine", "lets", "nested", "pool", "sweet", "sws", "tleg", "wave"]
SMOKE = {"images": 8, "batch_size": 8, "teaching_images": 8, "teaching_batch_size": 8}


def make_text_spec() -> Spec:
    """Return the shape of a wide text model."""
    return Gpt2Spec(layers=2, width=384, heads=6, classes=0, vocabulary=50, positions=16)


def rates_of(extractor: Extractor) -> dict[str, object]:
    """Return the settings of an extractor by name."""
    return {setting.name: setting.default for setting in list_settings(extractor)}


def test_up_to_the_width_of_the_bundled_model_a_preset_is_as_it_is() -> None:
    for name in METHODS.references():
        method = METHODS.load(name)
        assert method.adapt_preset(None, [make_tiny_ancestry(width=96).spec]) == method.extractor


@pytest.mark.parametrize(
    ("name", "setting"),
    [
        *((name, "lr") for name in [*TEACHERS, "auto_lg", "pretrain_finetune"] if name != "nested"),
        ("pool", "tuning_lr"),
    ],
)
def test_from_random_weights_the_rate_falls_with_the_width(name: str, setting: str) -> None:
    method = METHODS.load(name)
    before, adapted = rates_of(method.extractor), rates_of(method.adapt_preset("mini", [WIDE]))
    assert adapted[setting] == pytest.approx(before[setting] / 4)  # type: ignore[operator]
    changed = {"lr", "tuning_lr", "teaching_lr", "teaching_layer_decay"}
    assert all(adapted[other] == before[other] for other in before.keys() - changed)


@pytest.mark.parametrize("name", ["heur_lg", "lsamd", "nested"])
def test_the_weights_of_a_wide_model_are_trained_at_a_low_rate(name: str) -> None:
    method = METHODS.load(name)
    assert rates_of(method.adapt_preset("mini", [WIDE]))["lr"] == FLAT_LR
    assert method.adapt_preset("paper", [WIDE]) == method.presets["paper"]


@pytest.mark.parametrize("name", [*TEACHERS, "snnet"])
def test_a_wide_teacher_has_the_rates_of_fine_tuning(name: str) -> None:
    rates = rates_of(METHODS.load(name).adapt_preset(None, [WIDE]))
    assert rates["teaching_lr"] == INHERITED_LR
    assert rates["teaching_layer_decay"] == INHERITED_DECAY


def test_teachers_of_texts_have_no_layer_decay() -> None:
    rates = rates_of(METHODS.load("tleg").adapt_preset(None, [make_text_spec()]))
    assert (rates["teaching_lr"], rates["teaching_layer_decay"]) == (INHERITED_LR, 1.0)


@pytest.mark.parametrize(
    ("name", "setting"), [("lsamd", "layer_decay"), ("tleg", "teaching_layer_decay")]
)
def test_an_extraction_from_a_model_of_texts_refuses_a_layer_decay(name: str, setting: str) -> None:
    with pytest.raises(WrongCall, match=rf"^{setting} is 0\.75, but text models"):
        lifecycle.extract(name, ancestries="ancestry-words", tasks="topic", **{setting: 0.75})


def test_a_lower_rate_of_a_preset_stays() -> None:
    nested = METHODS.load("nested").extractor
    low = replace(nested, teaching=replace(nested.teaching, lr=1e-6))  # type: ignore[attr-defined, type-var, call-arg]
    assert rates_of(low.adapt([WIDE]))["teaching_lr"] == 1e-6


def test_a_teacher_needs_only_a_rate() -> None:
    @dataclass(frozen=True, kw_only=True)
    class Taught:
        teaching_lr: float = 1.0

    taught: Any = Taught()
    assert rates_of(adapt_rates(taught, [WIDE])) == {"teaching_lr": INHERITED_LR}


def test_a_misspelt_setting_is_refused_for_every_width() -> None:
    with pytest.raises(WrongCall, match="lrr"):
        adapt_rates(
            METHODS.load("tleg").extractor, [make_tiny_ancestry().spec], random_rates=["lrr"]
        )


@pytest.fixture(scope="module")
def wide(tmp_path_factory: pytest.TempPathFactory) -> str:
    """Write a model that is wider than the bundled one."""
    spec = make_tiny_ancestry(layers=1, width=100, heads=2).spec
    return str(assemble(spec, {}, seed=0).save(tmp_path_factory.mktemp("wide") / "model"))


def test_an_extraction_adapts_what_is_not_named_and_prints_and_records_it(
    wide: str, tmp_path: Path
) -> None:
    words = ["--preset", "smoke", "--task", "digits", "--threads", "1", "--images", "none"]
    words += ["--epochs", "0", "--teaching-epochs", "0", "--teaching-lr", "0.002"]
    call = ["extract", "tleg", "--ancestry", wide, *words, "-o", str(tmp_path / "out")]
    result = CliRunner().invoke(main, call)
    assert result.exit_code == 0, result.stderr
    line = "for this ancestry model: --lr 0.00096 instead of 0.001, --teaching-layer-decay 0.75"
    assert line in result.stderr
    settings = load_learngene(tmp_path / "out").config.settings
    assert (settings["training"]["lr"], settings["teaching"]["lr"]) == (9.6e-4, 2e-3)
    assert settings["training"]["images"] is None


def test_an_extractor_that_is_given_is_not_changed(wide: str) -> None:
    extractor = METHODS.load("tleg").presets["smoke"]
    with_epochs = lifecycle.extract(
        "tleg", ancestries=wide, tasks="digits", preset="smoke", run=Run(threads=1), **SMOKE
    )
    assert with_epochs.config.settings["training"]["lr"] == pytest.approx(9.6e-4)
    assert with_epochs.config.settings["training"]["images"] == 8
    given = lifecycle.extract(
        "tleg", ancestries=wide, tasks="digits", extractor=extractor, run=Run(threads=1), **SMOKE
    )
    assert given.config.settings["training"]["lr"] == 1e-3
