"""The cards on the shelf: metadata that the Hub accepts, and a snippet that opens the artifact."""

from __future__ import annotations

import json
import re
import tomllib
from collections.abc import Callable, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import yaml
from standin import StandIn
from test_stories import process

from learngene_zoo.artifacts import shelf
from learngene_zoo.artifacts.shelf import find_cards_folder, read_kind
from learngene_zoo.method.installed import METHODS

Lgzoo = Callable[..., SimpleNamespace]  # what the fixture `lgzoo` is
NAMES = shelf.list_names()
# A plain model, and a learngene of each package of methods.
ONE_OF_EACH = (
    "ancestry-mini",
    "closed_form-mini",
    "first_k-mini",
    "lsamd-mini",
    "pool-mini",
    "tal-mini",
)
# What the Hub shows for a model of the library timm: `timm` in huggingface.js,
# packages/tasks/src/model-libraries-snippets.ts.
TIMM = """
import timm

model = timm.create_model("hf-hub:ID", pretrained=True)
"""


def front(page: str) -> dict[str, Any]:
    front_matter = yaml.safe_load(page.split("---\n", 2)[1])
    assert isinstance(front_matter, dict)
    return front_matter


def snippets(checkout: Path) -> tuple[str, str]:
    """Return the snippets of this library in docs/hub.md: for a model, and for a learngene."""
    lines = re.findall(
        r"^\+(.*)$", (checkout / "docs/hub.md").read_text(encoding="utf-8"), re.MULTILINE
    )
    model, learngene = re.findall(r"`([^`]*\$\{model.id\}[^`]*)`", "\n".join(lines))
    return model.replace("${model.id}", "ID"), learngene.replace("${model.id}", "ID")


@pytest.mark.parametrize("name", NAMES)
def test_a_card_names_its_library_its_licence_and_what_was_measured(name: str) -> None:
    folder = find_cards_folder() / name
    page, config = (
        (folder / "README.md").read_text(encoding="utf-8"),
        json.loads((folder / "config.json").read_text()),
    )
    matter, ours = front(page), config.get("learngene", config)
    of_texts = "model_type" in config
    host = "transformers" if of_texts else "timm"
    assert matter["library_name"] == (host if read_kind(folder) == "model" else "learngene_zoo")
    assert matter["license"] == "apache-2.0"
    pipeline = "feature-extraction" if of_texts else "image-classification"
    assert matter["pipeline_tag"] == pipeline
    for heading in ("Intended use", "Usage", "How it was made", "Limits", "Citation", "Licence"):
        assert f"\n## {heading}\n" in page
    assert f"```\n{ours['card']['command']}\n```" in page
    assert page.rstrip().endswith("<!-- /notes -->")
    values = [
        item["value"]
        for index in matter.get("model-index", [])
        for r in index["results"]
        for item in r["metrics"]
    ]
    worth = ours["card"]["worth"]
    measured = [row["accuracy"]["descendant"] for row in worth["rows"]] if worth else []
    if read_kind(folder) == "model":  # a learngene's own are of what was trained to make it
        measured += [
            value
            for key, value in ours["metrics"].items()
            if key in ("validation_accuracy", "test_accuracy")
        ]
    assert sorted(values) == sorted(value for value in measured if isinstance(value, float))


def test_every_method_that_condenses_a_learngene_has_a_card() -> None:
    every_size_or_none = {"distillation", "pretrain_finetune", "scratch"}
    # Their learngenes are the ancestry model's name: `python tools/shelf.py` makes and
    # measures them with the next one.
    named = {
        "evenly_spaced",
        "first_k",
        "last_k",
        "middle_k",
        "pith",  # not trained yet
        "stacked",
        "weight_selection",
        "weight_subcloning",
    }
    assert {
        f"{name}-mini" for name in set(METHODS.references()) - every_size_or_none - named
    } <= set(NAMES)


def test_the_shelf_is_small_and_lists_learngenes_only(lgzoo: Lgzoo, checkout: Path) -> None:
    sizes = {path: path.stat().st_size for path in find_cards_folder().rglob("*") if path.is_file()}
    assert sum(sizes.values()) < 60e6
    project = tomllib.loads((checkout / "pyproject.toml").read_text(encoding="utf-8"))
    wheel = project["tool"]["hatch"]["build"]["targets"]["wheel"]
    left_out = {Path(name).name for name in wheel["exclude"]}
    assert left_out <= set(NAMES)
    assert sum(size for path, size in sizes.items() if path.parent.name not in left_out) < 25e6
    listed = [row["name"] for row in json.loads(lgzoo("list", "learngenes", "--json").out)]
    assert listed == [
        name for name in NAMES if read_kind(find_cards_folder() / name) == "learngene"
    ]
    assert not [name for name in listed if name.startswith("ancestry")]


@pytest.mark.parametrize("name", [name for name in NAMES if not name.startswith("ancestry")])
def test_show_tells_what_the_card_says(lgzoo: Lgzoo, name: str) -> None:
    worth = json.loads((find_cards_folder() / name / "config.json").read_text())["card"]["worth"]
    rows = json.loads(lgzoo("show", name, "--json").out)
    shown = [value for row in rows for key, value in row.items() if key.endswith("_accuracy")]
    measured = [row["accuracy"]["descendant"] for row in worth["rows"]] if worth else []
    assert sorted(shown) == sorted(measured)


@pytest.mark.slow
@pytest.mark.parametrize(
    "names",
    [
        pytest.param(ONE_OF_EACH, id="one of each"),
        pytest.param(NAMES, marks=pytest.mark.exhaustive, id="all"),
    ],
)
def test_a_card_opens_by_the_snippet_that_the_hub_shows_for_it(
    hub: StandIn, lgzoo: Lgzoo, tmp_path: Path, checkout: Path, names: Sequence[str]
) -> None:
    ours = [str(checkout), str(checkout / "plugins")]
    of_model, of_learngene = snippets(checkout)
    assert (
        lgzoo("expand", "pool-mini", "--low", "3", "--high", "3", "-o", tmp_path / "stitched").code
        == 0
    )
    calls = {name: find_cards_folder() / name for name in names} | {
        "stitched": tmp_path / "stitched"
    }
    texts: dict[bool, list[str]] = {True: [], False: []}  # by whether they open without us
    for name, folder in calls.items():
        assert lgzoo("publish", folder, f"me/{name}").code == 0
        matter = front(hub.files(f"me/{name}")["README.md"].decode())
        alone = matter["library_name"] == "timm"
        text = TIMM if alone else of_model if "timm" in matter["tags"] else of_learngene
        texts[alone].append(
            f"{text.replace('ID', f'me/{name}')}\nprint({name!r}, len(model.blocks))"
        )
    path = f"import sys\nsys.path[:0] = {ours!r}"  # of the snippets that come after it
    opened = process("\n".join([*texts[True], path, *texts[False]]), hub, tmp_path)
    assert sorted(line.split()[0] for line in opened.splitlines()) == sorted(calls)
