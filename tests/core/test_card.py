"""Cards: valid front matter for any text of the user, and no unknown facts."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import yaml

from learngene_zoo.artifacts.card import read_notes, render_descendant_card, render_learngene_card
from learngene_zoo.artifacts.records import (
    AncestryRecord,
    CardRecord,
    CardResults,
    LearngeneConfig,
    Measured,
    TaskRecord,
    list_versions,
)
from learngene_zoo.errors import BadFile, WrongCall
from learngene_zoo.families.spec import Segment
from learngene_zoo.families.vit.spec import ViTSpec
from learngene_zoo.settings import to_json

SPEC = ViTSpec(layers=3, width=32, heads=2, classes=10, image_size=16, patch_size=8)
TIMM = AncestryRecord(
    source="timm:deit_tiny_patch16_224.fb_in1k",
    spec=SPEC,
    revision="a" * 40,
    sha256="b" * 64,
    licence="apache-2.0",
)
HUB = AncestryRecord(source="hf-hub:org/repo@v1", spec=SPEC, licence="mit")
LOCAL = AncestryRecord(source="/somewhere/model", spec=SPEC)
TASK = TaskRecord(name="cifar", source="hf:org/cifar:plain", classes=10, images=500, licence="mit")
NASTY = 'x"\n---\nlicense: mit\n`|[a]: {b}\x85\u2028\ud800```'


def front(card: str) -> dict[str, Any]:
    _, matter, _ = card.split("---\n", 2)
    return yaml.safe_load(matter)


def config(*ancestries: AncestryRecord, **rest: Any) -> LearngeneConfig:
    return LearngeneConfig(method="lsamd", spec=SPEC, ancestries=ancestries, **rest)


def test_a_learngenes_card_says_what_it_was_made_from() -> None:
    card = render_learngene_card(
        config(TIMM, tasks=(TASK,), settings={"top": 2}, seed=7, metrics={"accuracy": 0.5})
    )
    matter = front(card)
    assert matter["license"] == "apache-2.0"
    assert matter["library_name"] == "learngene_zoo"
    assert matter["pipeline_tag"] == "image-classification"
    assert matter["base_model"] == ["timm/deit_tiny_patch16_224.fb_in1k"]
    assert matter["datasets"] == ["org/cifar"]
    assert "lsamd" in matter["tags"]
    for text in ("a" * 40, "b" * 64, '"top": 2', '"seed": 7', '"accuracy": 0.5', "lgzoo expand"):
        assert text in card


@pytest.mark.parametrize(
    ("ancestries", "licence", "name"),
    [
        ((), "unknown", None),
        ((LOCAL,), "unknown", None),
        ((TIMM, LOCAL), "unknown", None),
        ((TIMM, HUB), "other", "apache-2.0 AND mit"),
        ((HUB,), "mit", None),
    ],
)
def test_a_licence_that_is_not_known_stays_unknown(
    ancestries: tuple[AncestryRecord, ...], licence: str, name: str | None
) -> None:
    matter = front(render_learngene_card(config(*ancestries)))
    assert matter["license"] == licence
    assert matter.get("license_name") == name


def test_only_the_hubs_models_are_named_as_such() -> None:
    assert front(render_learngene_card(config(HUB, LOCAL)))["base_model"] == ["org/repo"]
    assert "base_model" not in front(render_learngene_card(config(LOCAL)))
    elsewhere = [
        replace(LOCAL, source=source) for source in ("org/repo", "file:org/repo", "https://x.org/y")
    ]
    assert "base_model" not in front(render_learngene_card(config(*elsewhere)))


@pytest.mark.parametrize(
    ("ancestries", "said"),
    [
        ((), "## Licence\n\nUnknown."),
        ((TIMM, LOCAL), "## Licence\n\nUnknown, because that of an ancestry model is unknown."),
        ((HUB,), "## Licence\n\n`mit`, the licence of the ancestry models."),
    ],
)
def test_a_card_ends_with_its_licence(ancestries: tuple[AncestryRecord, ...], said: str) -> None:
    assert render_learngene_card(config(*ancestries)).rstrip().endswith(said)


def test_metrics_of_no_task_are_not_in_the_model_index() -> None:
    ours = {"format": 1, "spec": to_json(SPEC), "metrics": {"test_accuracy": 0.5}}
    card = render_descendant_card({"learngene": ours})
    assert "model-index" not in front(card)
    assert '"test_accuracy": 0.5' in card


def test_nothing_a_user_typed_escapes_the_front_matter() -> None:
    nasty = AncestryRecord(source=NASTY, spec=SPEC, licence=NASTY)
    task = TaskRecord(name=NASTY, source=NASTY, licence=NASTY)
    card = render_learngene_card(
        LearngeneConfig(
            method=NASTY, spec=SPEC, ancestries=(nasty,), tasks=(task,), details={NASTY: [NASTY]}
        )
    )
    matter = front(card)
    assert set(matter) == {"license", "license_name", "library_name", "pipeline_tag", "tags"}
    assert matter["license"] == "other"
    assert card.count("\n---\n") == 1
    assert card.count("```") % 2 == 0
    card.encode("utf-8")


def test_a_descendants_card_has_its_metrics_as_the_hub_reads_them() -> None:
    metrics = {"task": "cifar", "validation_accuracy": 0.75, "test_accuracy": 0.5}
    ours = {
        "format": 1,
        "spec": SPEC,
        "inherited": ["cls_token"],
        "method": "lsamd",
        "ancestries": [TIMM],
        "metrics": metrics,
        "trained_on": TASK,
    }
    card = render_descendant_card(
        {"architecture": "vit_base_patch16_224", "learngene": to_json(ours)}
    )
    matter = front(card)
    [index] = matter["model-index"]
    assert [result["metrics"][0]["value"] for result in index["results"]] == [0.75, 0.5]
    assert {result["dataset"]["type"] for result in index["results"]} == {"org/cifar"}
    assert {result["dataset"]["split"] for result in index["results"]} == {"validation", "test"}
    assert matter["metrics"] == ["accuracy"]
    assert matter["library_name"] == "timm"
    [block] = re.findall(r"```python\n(.*?)```", card, re.S)
    assert [line.split("(")[0] for line in block.splitlines() if line] == [
        "import timm",
        "model = timm.create_model",
        "data = timm.data.resolve_model_data_config",
        "transform = timm.data.create_transform",
    ]
    assert "1 tensor is inherited" in card
    assert "| `cifar` | validation | accuracy | 75.0 |  |" in card
    assert "| `cifar` | test | accuracy | 50.0 |  |" in card


@pytest.mark.parametrize(
    ("metric", "word"), [("matthews", "matthews_correlation"), ("F1", "f1"), ("mIoU", "mean_iou")]
)
def test_other_metrics_than_accuracy_are_results(metric: str, word: str) -> None:
    ours = {
        "format": 1,
        "spec": SPEC,
        "method": "lsamd",
        "metrics": {"task": "cola", f"test_{metric}": 0.5},
        "trained_on": TASK,
    }
    card = render_descendant_card(
        {"architecture": "vit_base_patch16_224", "learngene": to_json(ours)}
    )
    [result] = front(card)["model-index"][0]["results"]
    assert result["metrics"][0]["type"] == word
    assert f"| test | {metric} | 50.0 |" in card
    assert "not evaluated" not in card


def test_a_descendant_of_which_nothing_is_known_still_has_a_card() -> None:
    card = render_descendant_card(
        {"learngene": {"format": 1, "spec": to_json(SPEC), "inherited": [], "task": None}}
    )
    assert front(card)["license"] == "unknown"
    assert "model-index" not in front(card)


def test_a_card_names_the_package_of_a_method_that_is_not_of_this_project() -> None:
    ours = {"format": 1, "spec": to_json(SPEC), "method": "first_blocks"}
    package = {"lgzoo-first-blocks": "0.1.0"}
    cards = [
        render_descendant_card({"learngene": {**ours, "method_package": package}}),
        render_learngene_card(config(versions={"learngene_zoo": "1", "torch": "2", **package})),
    ]
    for card in cards:
        assert "part of the package `lgzoo-first-blocks` (version `0.1.0`)" in card
        assert "```\npip install lgzoo-first-blocks\n```" in card
        assert "\n\n\n" not in card.partition("## How it was made")[2]
    for card in (
        render_descendant_card({"learngene": ours}),
        render_learngene_card(config(versions=list_versions())),
    ):
        assert "part of the package" not in card


def test_usage_installs_the_package_of_the_method() -> None:
    made = replace(config(versions={**list_versions(), "lgzoo-halves": "0.1.0"}), method="halves")
    assert "The method:" not in render_learngene_card(made)
    title = "keep [half](x) of <b>it</b>"
    ours = {"spec": to_json(SPEC), "method_title": title}
    card = render_learngene_card(replace(made, method_title=title))
    for text in (card, render_descendant_card({"learngene": ours})):
        assert "\n\nThe method: keep half(x) of bit/b.\n\n## Intended use" in text
    usage = card.partition("## Usage")[2].partition("## How")[0]
    assert "pip install learngene-zoo\npip install lgzoo-halves   # the method\n" in usage
    assert "without an installation" not in card
    assert "without an installation" in render_learngene_card(config(versions=list_versions()))
    nasty = render_learngene_card(
        config(versions={**list_versions(), "--index-url=https://a.b": "1"})
    )
    assert "pip install --index" not in nasty


@pytest.mark.parametrize("name", [NASTY, "--index-url=https://a.b", "a b", "a; b", "é", "a/b", ""])
def test_a_card_shows_no_command_for_a_name_that_is_not_a_packages(name: str) -> None:
    ours = {"format": 1, "spec": to_json(SPEC), "method_package": {name: NASTY}}
    card = render_descendant_card({"learngene": ours})
    assert "part of the package" in card
    assert "pip install" not in card
    assert front(card)["license"] == "unknown"


def test_a_model_that_timm_lacks_is_listed_under_this_library() -> None:
    ours = {
        "format": 1,
        "spec": to_json(SPEC.with_(dense=True)),
        "metrics": {"task": "x", "test_mIoU": 0.25},
    }
    card = render_descendant_card({"learngene": ours})
    matter = front(card)
    assert (matter["library_name"], matter["pipeline_tag"]) == (
        "learngene_zoo",
        "image-segmentation",
    )
    [result] = matter["model-index"][0]["results"]
    assert result["dataset"] == {"name": "x", "type": "x", "split": "test"}
    assert result["metrics"] == [{"type": "mean_iou", "name": "test mIoU", "value": 0.25}]
    assert (
        "import timm\n\nimport learngene_zoo.timm  # registers the model with timm\n\nmodel = "
        in card
    )


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"attention_width": 16}, "Its heads together have 16 channels, not the 32 of the model."),
        (
            {"front": (Segment(layers=1, width=32, heads=1, attention_width=16, stitch=False),)},
            "differ between its blocks",
        ),
    ],
)
def test_a_card_states_why_timm_has_no_such_model(changes: dict[str, Any], reason: str) -> None:
    ours = {"format": 1, "spec": to_json(SPEC.with_(**changes)), "inherited": [], "task": None}
    assert reason in render_descendant_card({"learngene": ours})


def test_a_model_trained_from_scratch_has_the_licence_its_maker_gave_it() -> None:
    ours = {"format": 1, "spec": to_json(SPEC), "inherited": [], "task": None}
    assert (
        front(render_descendant_card({"learngene": {**ours, "licence": "apache-2.0"}}))["license"]
        == "apache-2.0"
    )
    assert front(render_descendant_card({"learngene": ours}))["license"] == "unknown"
    heir = {**ours, "licence": "apache-2.0", "ancestries": to_json([LOCAL])}
    assert front(render_descendant_card({"learngene": heir}))["license"] == "unknown"


WORTH = CardResults(
    command="python measure.py",
    split="test",
    how="Each model after one epoch.",
    datasets={"clothes": "org/clothes", "digits": "scans"},
    rows=(
        Measured(
            task="clothes",
            layers=3,
            width=32,
            params=1234,
            flops=5678,
            images=100,
            accuracy={"descendant": 0.75, "shuffled": 0.5, "scratch timm": 0.25},
            gains={"scratch": (0.5, 0.375, 0.625)},
        ),
        Measured(
            task="digits",
            layers=6,
            width=64,
            size={"low": 3},
            params=9,
            flops=9,
            images=10,
            accuracy={"descendant": 1.0},
        ),
    ),
)


def test_what_a_learngene_is_worth_is_a_table_and_the_hubs_model_index() -> None:
    about = CardRecord(
        command="lgzoo extract lsamd --top 2", paper="Somebody. Something. 2024", worth=WORTH
    )
    card = render_learngene_card(config(TIMM, card=about))
    assert (
        "| `clothes` | 3 | 32 |  | 1,234 | 5,678 | 75.0 | 50.0 | 25.0 | +50.0 (+37.5 to +62.5) |"
        in card
    )
    assert "| `digits` | 6 | 64 | low 3 | 9 | 9 | 100.0 |  |  |  |" in card
    for text in (
        "`python measure.py`",
        "lgzoo extract lsamd --top 2",
        "- Somebody. Something. 2024",
    ):
        assert text in card
    matter = front(card)
    [index] = matter["model-index"]
    clothes, digits = index["results"]
    assert clothes["dataset"] == {"name": "clothes", "type": "org/clothes", "split": "test"}
    assert [(item["type"], item["value"]) for item in clothes["metrics"]] == [("accuracy", 0.75)]
    assert digits["dataset"]["type"] == "digits"
    assert (index["name"], matter["metrics"]) == ("learngene-lsamd", ["accuracy"])


def test_a_card_says_what_was_not_measured() -> None:
    assert "were not evaluated" in render_learngene_card(config(TIMM))
    assert "Evaluation results" not in render_learngene_card(config(TIMM))


def test_an_impossible_accuracy_is_refused_and_nothing_of_a_table_escapes() -> None:
    row = WORTH.rows[0]
    with pytest.raises(WrongCall, match="accuracy of 'descendant' on 'clothes'"):
        replace(row, accuracy={"descendant": 1.5})
    nasty = replace(
        WORTH,
        command=NASTY,
        split=NASTY,
        how=NASTY,
        rows=(replace(row, task=NASTY, accuracy={NASTY: 0.5}, gains={}),),
    )
    card = render_learngene_card(
        config(TIMM, card=CardRecord(command=NASTY, paper=NASTY, worth=nasty))
    )
    assert card.count("\n---\n") == 1
    assert card.split("\n---\n")[1].count("```") % 2 == 0
    assert front(card)["license"] == "apache-2.0"


def test_what_people_wrote_into_a_card_is_found_again(tmp_path: Path) -> None:
    page = tmp_path / "README.md"
    assert read_notes(page) == ""
    page.write_text("---\n---\nold\n\n<!-- notes -->\nMine.\n<!-- /notes -->\n")
    assert read_notes(page) == "\n<!-- notes -->\nMine.\n<!-- /notes -->\n"
    page.write_bytes(b"\xff")
    with pytest.raises(BadFile, match="cannot be read"):
        read_notes(page)
