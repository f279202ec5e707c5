"""Learning rates of presets are lowered for wide pretrained models, but for nothing that a user or
a paper names.
"""

from __future__ import annotations

from dataclasses import replace

import pytest

from learngene_zoo.families.gpt2.spec import Gpt2Spec
from learngene_zoo.families.spec import Spec
from learngene_zoo.method.contract import METHODS, Extractor
from learngene_zoo.method.rates import FLAT_LR, INHERITED_DECAY, INHERITED_LR, adapt_rates
from learngene_zoo.settings import settings_of
from learngene_zoo.testing.laws import tiny_ancestry

WIDE = tiny_ancestry().spec.with_(width=384, heads=6)


def rates_of(extractor: Extractor) -> dict[str, object]:
    """Return the settings of an extractor by name."""
    return {setting.name: setting.default for setting in settings_of(extractor)}


def test_up_to_the_width_of_the_bundled_model_a_preset_is_as_it_is() -> None:
    for name in METHODS.references():
        method = METHODS.load(name)
        assert method.adapted_preset(None, [tiny_ancestry(width=96).spec]) == method.extractor


def test_from_random_weights_the_rate_falls_with_the_width() -> None:
    tleg = METHODS.load("tleg").extractor
    before, adapted = rates_of(tleg), rates_of(adapt_rates(tleg, [WIDE], random=["lr"]))
    assert adapted["lr"] == pytest.approx(before["lr"] / 4)  # type: ignore[operator]
    unchanged = before.keys() - {"lr", "teaching_lr", "teaching_layer_decay"}
    assert all(adapted[name] == before[name] for name in unchanged)


@pytest.mark.parametrize("name", ["heur_lg", "lsamd", "nested", "snnet"])
def test_the_weights_of_a_wide_model_are_trained_at_a_low_rate(name: str) -> None:
    method = METHODS.load(name)
    assert rates_of(method.adapted_preset("mini", [WIDE]))["lr"] == FLAT_LR
    assert method.adapted_preset("paper", [WIDE]) == method.presets["paper"]


@pytest.mark.parametrize(
    "name", ["distillation", "fine", "lets", "nested", "pool", "sweet", "sws", "tleg", "wave"]
)
def test_a_wide_teacher_has_the_rates_of_fine_tuning(name: str) -> None:
    rates = rates_of(METHODS.load(name).adapted_preset(None, [WIDE]))
    assert rates["teaching_lr"] == INHERITED_LR
    assert rates["teaching_layer_decay"] == INHERITED_DECAY


def test_teachers_of_texts_have_no_layer_decay() -> None:
    rates = rates_of(METHODS.load("tleg").adapted_preset(None, [make_text_spec()]))
    assert (rates["teaching_lr"], rates["teaching_layer_decay"]) == (INHERITED_LR, 1.0)


def test_a_lower_rate_of_a_preset_stays() -> None:
    snnet = METHODS.load("snnet")
    low = replace(snnet.extractor, training=replace(snnet.extractor.training, lr=1e-6))  # type: ignore[attr-defined, type-var, call-arg]
    assert rates_of(low.adapt([WIDE]))["lr"] == 1e-6


def make_text_spec() -> Spec:
    """Return the shape of a wide model of texts."""
    return Gpt2Spec(layers=2, width=384, heads=6, classes=0, vocabulary=50, positions=16)
