"""SnapViT's board in benchmarks/: the cells, one resumable run with random weights, and its table."""

from __future__ import annotations

import json
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from learngene_zoo.artifacts.descendant import Descendant
from learngene_zoo.families.family import load_family
from learngene_zoo.families.picture_spec import PictureSpec
from learngene_zoo.families.tensors import initialise
from learngene_zoo.runs.run import Run
from learngene_zoo.testing import make_tiny_task
from learngene_zoo.training.probes import Features

sys.path.append(str(Path(__file__).resolve().parents[2] / "benchmarks"))
board = pytest.importorskip("snapvit_board")

VIT = load_family("vit").examples[0].with_(layers=4, width=48, heads=3)
DINOV3 = load_family("eva").examples[0].with_(layers=4, width=48, heads=3, rope_type="dinov3")
SIGLIP = VIT.with_(class_token=False, pool="map")
SMALL = {"images": 6, "crops": 1, "evaluations": 2, "compared": 6, "calibration_images": 8}


@pytest.fixture(autouse=True)
def tiny_in_the_catalogue(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        "learngene_zoo.tasks.catalogue._open_named", lambda name, offline: make_tiny_task(name)
    )


def save_model(folder: Path, spec: PictureSpec) -> str:
    """Save a model with random weights as a folder of timm, and return its path."""
    state = initialise(spec, 0, "fan_in")
    Descendant(spec=spec, state=state, provenance={"method": "scratch"}).save(folder)
    return str(folder)


def make_study(folder: Path, spec: PictureSpec, **changes: Any) -> Any:
    study = board.Study(
        models={"toy": (save_model(folder / "toy", spec), "toy-scores")},
        tasks={"a": "first", "b": "second"},
        calibration="first",
        settings=SMALL,
        folder=folder / "rankings",
        rows=folder / "rows.jsonl",
        run=Run(seed=0),
    )
    return replace(study, **changes)


def write_scores(folder: Path) -> Path:
    generator = torch.Generator().manual_seed(0)
    scores = {
        "mlp_scores": torch.rand(4, VIT.hidden, generator=generator),
        "head_scores": torch.rand(4, VIT.heads, generator=generator),
    }
    torch.save(scores, folder / "toy-scores.pt")
    return folder


@pytest.mark.slow
@pytest.mark.parametrize("spec", [VIT, DINOV3, SIGLIP], ids=["vit", "dinov3", "siglip"])
def test_a_board_is_measured_once_and_goes_on(tmp_path: Path, spec: PictureSpec) -> None:
    study = make_study(tmp_path, spec, rankings=("pruning",))
    cells = list(study.list_cells())
    assert len(cells) == 2 * (1 + 6)
    board.measure_study(study)
    rows = board.read_rows(study.rows)
    assert [row["task"] for row in rows[:2]] == ["a", "b"]
    assert len(rows) == len(cells)
    assert all(0 <= row["value"] <= 100 for row in rows)
    params = [row["params"] for row in rows if row["task"] == "a"]
    assert params == sorted(params, reverse=True)
    assert params[0] > params[-1]
    before = study.rows.read_bytes()
    board.measure_study(study)
    assert study.rows.read_bytes() == before
    study.rows.write_bytes(b"".join(before.splitlines(keepends=True)[:-1]))
    board.measure_study(study)
    again = board.read_rows(study.rows)[-1]
    assert {**again, "seconds": 0} == {**rows[-1], "seconds": 0}


@pytest.mark.slow
def test_scores_of_the_authors_are_a_ranking(tmp_path: Path) -> None:
    scores = write_scores(tmp_path)
    study = make_study(
        tmp_path, VIT, rankings=("scores",), scores=scores, with_cut=True, tasks={"a": "first"}
    )
    board.measure_study(study)
    rows = board.read_rows(study.rows)
    arms = [board.Cell(**{name: row[name] for name in board._KEY}).arm for row in rows]
    assert arms == ["full"] + ["scores"] * 6 + ["scores cut"] * 6
    assert not any("error" in row for row in rows)


def test_a_size_that_fails_is_a_row(tmp_path: Path) -> None:
    study = make_study(tmp_path, VIT.with_(post_norm=True), tasks={"a": "first"})
    study = replace(study, rankings=("pruning",))
    board.measure_study(study)
    rows = board.read_rows(study.rows)
    assert len(rows) == 7
    assert all("norms after attention and MLP" in row["error"] for row in rows)
    assert str(tmp_path) not in study.rows.read_text()


def test_neighbours_vote_equally(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(board, "NEIGHBOURS", 3)
    angles = np.array([0.0, 0.1, 0.2, 2.0, 2.1])
    values = 5 * np.stack([np.cos(angles), np.sin(angles)], axis=1).astype(np.float32)
    train = Features(values, np.array([0, 1, 1, 2, 2]))
    assert board.classify_equally(train, values[[0, 4]], 3).tolist() == [1, 2]
    few = Features(values[:2], train.labels[:2])
    assert board.classify_equally(few, values[:1], 3).tolist() == [0]  # of equal ones the first


def test_published_numbers_stand_beside_ours() -> None:
    published = json.loads(board.PUBLISHED.read_text(encoding="utf-8"))
    assert set(published["models"]) == set(board.MODELS)
    assert published["columns"] == list(board.TASKS)
    for model in published["models"].values():
        assert list(model) == [
            f"{mlp:.2f},{heads:.1f}" for mlp, heads in ((0, 0), *board.SPARSITIES)
        ]
        assert all(len(values) == 7 for values in model.values())
    row = {
        "model": "dinov3-b16",
        "ranking": "elastic",
        "compensated": True,
        "mlp": 0.25,
        "heads": 0.1,
        "task": "imagenet",
        "value": 70.0,
    }
    tables = board.make_tables([row, {**row, "model": "toy", "compensated": False}])
    assert (
        "| 0.25, 0.1 | published | 29.1 | 75.0 | 52.8 | 92.8 | 54.0 | 73.2 | 62.8 |"
        in tables["snapvit-board"]
    )
    assert "| 0.25, 0.1 | elastic |  |  |  |  | 70.0 |  |  |" in tables["snapvit-board"]
    assert tables["snapvit-other"].splitlines()[-1] == "| 0.25, 0.1 | elastic cut | 70.0 |"


def test_models_are_named() -> None:
    assert board._choose_models([]) == board.MODELS
    assert board._choose_models(["dino-b16", "x=folder"]) == {
        "dino-b16": board.MODELS["dino-b16"],
        "x": ("folder", ""),
    }
    with pytest.raises(SystemExit, match="nothing is none of augreg-b16"):
        board._choose_models(["nothing"])
