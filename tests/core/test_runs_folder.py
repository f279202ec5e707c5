"""A run's folder is begun, resumed or refused; nothing that exists is lost."""

from pathlib import Path

import pytest

from learngene_zoo.errors import Refused
from learngene_zoo.runs.folder import begin, finish
from learngene_zoo.runs.run import Run
from learngene_zoo.storage import read_json

SETTINGS = {"settings": {"training": {"lr": 0.1}}}


def test_a_run_without_an_output_keeps_nothing() -> None:
    assert begin(None, "extract", SETTINGS, Run(), force=False).folder is None


def test_an_unfinished_run_is_refused_resumed_or_started_over(tmp_path: Path) -> None:
    out = tmp_path / "deep" / "learngene"
    run = begin(out, "extract", SETTINGS, Run(), force=False)
    assert run.folder == tmp_path / "deep" / "learngene.run"
    (run.folder / "metrics.jsonl").write_text("{}\n")
    with pytest.raises(Refused, match="--resume"):
        begin(out, "extract", SETTINGS, Run(), force=False)
    assert begin(out, "extract", SETTINGS, Run(resume=True), force=False).folder == run.folder
    assert (run.folder / "metrics.jsonl").exists()
    begin(out, "extract", SETTINGS, Run(), force=True)
    assert not (run.folder / "metrics.jsonl").exists()


@pytest.mark.parametrize(
    ("verb", "settings", "run", "named"),
    [
        ("extract", {"settings": {"training": {"lr": 0.2}}}, Run(resume=True), "training.lr: 0.1 then, 0.2 now"),
        ("extract", SETTINGS, Run(resume=True, seed=1), "seed: 0 then, 1 now"),
        ("finetune", SETTINGS, Run(resume=True), "verb"),
    ],
)
def test_resuming_with_other_settings_names_the_one_that_differs(tmp_path, verb, settings, run, named) -> None:
    out = tmp_path / "learngene"
    begin(out, "extract", SETTINGS, Run(), force=False)
    with pytest.raises(Refused, match=named):
        begin(out, verb, settings, run, force=False)


def test_a_finished_run_keeps_its_record_and_metrics_only(tmp_path: Path) -> None:
    out = tmp_path / "learngene"
    run = begin(out, "extract", SETTINGS, Run(), force=False)
    for name in ("checkpoint-7", "parts/a/done"):
        (run.folder / name).mkdir(parents=True)
    (run.folder / "metrics.jsonl").write_text("{}\n")
    finish(run)
    assert read_json(run.folder / "run.json")["finished"] is True
    assert sorted(p.name for p in run.folder.rglob("*") if p.is_file()) == ["metrics.jsonl", "run.json"]
    begin(out, "extract", SETTINGS, Run(), force=False)
    assert read_json(run.folder / "run.json")["finished"] is False


def test_a_strangers_folder_is_left_alone(tmp_path: Path) -> None:
    (tmp_path / "learngene.run").mkdir()
    (tmp_path / "learngene.run" / "thesis.txt").write_text("mine")
    with pytest.raises(Refused, match="not the folder of a run"):
        begin(tmp_path / "learngene", "extract", SETTINGS, Run(), force=True)
    assert (tmp_path / "learngene.run" / "thesis.txt").read_text() == "mine"
