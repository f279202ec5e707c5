"""`shrink` of text models: candidates, both ways of comparison, and messages."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from click.testing import CliRunner, Result
from text_models_toy import SPECS, WORDS, write_tokenizer

import learngene_zoo as lg
from learngene_zoo import lifecycle
from learngene_zoo.artifacts.descendant import Descendant, load_descendant
from learngene_zoo.cli.main import main
from learngene_zoo.errors import WrongCall
from learngene_zoo.families.tensors import build_model, initialise
from learngene_zoo.lifecycle.analyse import assemble_ancestry
from learngene_zoo.lifecycle.shrinking import building, estimate, finishing, request
from learngene_zoo.lifecycle.shrinking.candidates import ShrinkCandidate
from learngene_zoo.lifecycle.shrinking.ranking import rank_by_probe
from learngene_zoo.method.installed import METHODS
from learngene_zoo.method.sizes import Member
from learngene_zoo.pretrained.ancestry import open_ancestry
from learngene_zoo.runs.run import Run
from learngene_zoo.settings import with_settings
from learngene_zoo.storage import fingerprint_of_state
from learngene_zoo.tasks.catalogue import open_task
from learngene_zoo.tasks.splits.cutting import ensure_validation
from learngene_zoo.tasks.task import Task
from learngene_zoo.training.probes import compute_features, is_right_left_out

transformers = pytest.importorskip("transformers")

RUN = Run(threads=1, device="cpu")
TEXTS = [f"{a} {b} {c}" for a in WORDS[4:7] for b in WORDS[2:9] for c in WORDS[3:9]]
BUDGET = {"gpt2": 25_000, "bert": 26_000}
SMALL: dict[str, Any] = {"candidates": 3, "epochs": 1, "batch_size": 16, "probe_images": 40}
OWN_FILE = {"gpt2": None, "bert": Path("small.onnx")}


@pytest.fixture(autouse=True)
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Write a model of each family, texts with and without labels, and a folder of texts."""
    monkeypatch.chdir(tmp_path)
    for name, spec in SPECS.items():
        shape = spec.with_(classes=0)
        module = build_model(shape, initialise(shape, 0, "fan_in"))
        getattr(module, module.base_model_prefix).save_pretrained(name)
        write_tokenizer(Path(name))
    labels = ["yes" if "dog" in text else "no" for text in TEXTS]
    rows = [f"{text},{label}" for text, label in zip(TEXTS, labels)]
    Path("mine.csv").write_text("\n".join(["text,label", *rows]))
    Path("plain.csv").write_text("\n".join(["text", *TEXTS]))
    for label in ("yes", "no"):
        Path("two", label).mkdir(parents=True)
        Path("two", label, "1.txt").write_text("the cat sees a dog")
    return tmp_path


def call(line: str) -> Result:
    return CliRunner().invoke(main, [*line.split(), "--device", "cpu", "--threads", "1"])


@pytest.mark.slow
@pytest.mark.parametrize("family", SPECS)
def test_the_winner_is_what_the_verbs_make_by_hand(family: str) -> None:
    export = "none" if OWN_FILE[family] is None else "onnx"
    given: dict[str, Any] = {"max_params": BUDGET[family], "export": export, "out": "small"}
    result = lg.shrink(family, task="csv:mine.csv", run=RUN, **given, **SMALL)
    table, winner = result.table, result.table.winner
    assert (table.noun, result.exported) == ("text", OWN_FILE[family])
    assert winner.params == result.model.cost().params <= BUDGET[family]
    assert {row.method for row in table.rows} >= {"original", "closed_form", "first_k"}
    page = Path("small.html").read_text()
    assert "ms are those of one text of the largest length on this machine" in page
    assert "on validation texts with 95 % intervals: of candidates after fine-tuning" in page
    assert "validation images" not in page
    probe = "a linear probe of the features that it has without a head"
    assert f"of the original, validation and test are those of {probe}" in page
    names = {"layers": winner.layers, "width": winner.width}
    sizes = names if winner.width != SPECS[family].width else {"layers": winner.layers}
    method = METHODS.load(winner.method)
    extractor = with_settings(method.extractor, building.keep_streams(method.extractor))
    tasks = [] if method.tasks == "none" else ["csv:mine.csv"]
    settings: dict[str, Any] = {"tasks": tasks, "extractor": extractor, "run": RUN}
    lifecycle.extract(winner.method, ancestries=family, out="gene", **settings)
    start = lifecycle.expand("gene", task="csv:mine.csv", run=RUN, **sizes)
    tuned = lifecycle.finetune(start, task="csv:mine.csv", run=RUN, epochs=1, batch_size=16)
    assert fingerprint_of_state(tuned.state) == fingerprint_of_state(result.model.state)
    opened = transformers.AutoModelForSequenceClassification.from_pretrained("small")
    assert opened.config.id2label == {0: "no", 1: "yes"}
    if result.exported:
        texts = TEXTS[:9]
        answers = [lifecycle.predict(each, texts, run=RUN) for each in (tuned, result.exported)]
        assert len({tuple(row.classes[0] for row in rows) for rows in answers}) == 1


def test_the_probe_of_the_original_reads_what_those_of_candidates_read(
    capsys: pytest.CaptureFixture[str],
) -> None:
    take_mean("bert")
    ancestry, run = open_ancestry("bert"), replace(RUN, progress=True, lines=True)
    original = assemble_ancestry(ancestry, 0)
    pooler = "bert.pooler.dense.weight"  # at 0 a head sees the same features for all texts
    original.state[pooler].zero_()
    task = ensure_validation(open_task("csv:mine.csv"))
    config = request.ShrinkConfig(probe_images=40)
    call_of: Any = SimpleNamespace(task=task, config=config)
    same = original.for_task(task.name, task.class_names, seed=1)
    candidate = ShrinkCandidate(method="copy", member=Member(spec=same.spec), number=1)
    ranking = rank_by_probe(call_of, original, [(candidate, same)], run)
    assert ranking.candidates[0].probe == ranking.probe
    module, form = original.model(), original.input_format
    headless = compute_features(module, task, "train", form, RUN, images=40)
    value = is_right_left_out(headless).mean()
    assert ranking.probe < value == 1
    assert f"(of its features without a head {value:.3f})" in capsys.readouterr().err


def take_mean(folder: str) -> None:
    """Make the mean of the tokens the features of a model, as sentence-transformers does."""
    Path(folder, "1_Pooling").mkdir()
    Path(folder, "1_Pooling/config.json").write_text('{"pooling_mode_mean_tokens": true}')


@pytest.mark.slow
def test_without_labels_the_best_candidate_is_healed() -> None:
    take_mean("bert")
    names = {"candidates": 2, "tries": 1, "probe_images": 40, "heal_epochs": 1, "export": "none"}
    result = lg.shrink(
        "bert", images="csv:plain.csv", max_params=26_000, out="small", run=RUN, **names
    )
    assert isinstance(result.model, Descendant)
    record: Any = result.model.provenance["healed"]
    assert record["images"]["kind"] == "text"
    assert result.model.spec.classes == 0
    assert getattr(result.model.spec, "pool", None) == "mean"  # the features of the original
    assert result.table.task is None
    probes = [row.probe for row in result.table.rows]
    assert probes == sorted(probes, reverse=True)


@pytest.mark.slow
def test_an_interrupted_call_is_resumed(monkeypatch: pytest.MonkeyPatch) -> None:
    words = "shrink gpt2 --task csv:mine.csv --max-params 25K --candidates 2 --epochs 1 "
    words += "--export none -o"

    def interrupt(*arguments: Any, **named: Any) -> Any:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(finishing, "finetune", interrupt)
        assert call(f"{words} small").exit_code != 0
    assert not Path("small").exists()
    resumed, whole = call(f"{words} small --resume"), call(f"{words} whole")
    assert resumed.exit_code == whole.exit_code == 0, resumed.stderr
    assert "transformers opens" in whole.stderr
    assert "next: lgzoo predict whole --text TEXT" in whole.stderr
    models = [load_descendant(name) for name in ("small", "whole")]
    assert len({fingerprint_of_state(model.state) for model in models}) == 1
    again = call(f"{words} whole --resume --json")
    (winner,) = (row for row in json.loads(again.stdout) if row["kept"])
    assert (winner["exported"], winner["report"]) == (None, "whole.html")


@pytest.mark.slow
def test_a_task_with_another_metric_is_compared_by_it(monkeypatch: pytest.MonkeyPatch) -> None:
    open_labelled = request._open_labelled

    def open_other(*arguments: Any) -> Task:
        task = open_labelled(*arguments)
        return Task(**{**vars(task), "metric": "matthews"})

    monkeypatch.setattr(request, "_open_labelled", open_other)
    tune = finishing.finetune

    def tune_for_accuracy(*arguments: Any, **named: Any) -> Any:
        model = tune(*arguments, **named)
        metrics: Any = model.provenance["metrics"]
        for split in ("validation", "test"):
            metrics[f"{split}_matthews"] = metrics.pop(f"{split}_accuracy") / 2
        return model

    monkeypatch.setattr(finishing, "finetune", tune_for_accuracy)
    given: dict[str, Any] = {"max_params": 25_000, "export": "none", "out": "s"}
    result = lg.shrink("gpt2", task="csv:mine.csv", run=RUN, **given, **SMALL)
    assert result.table.describe_test().startswith("matthews 0.")
    validation, probe = result.table.rows[0].validation, result.table.rows[0].probe
    assert validation is not None
    assert -1 <= validation < probe


def test_the_plan_counts_copies_of_texts() -> None:
    rows = Path("mine.csv").read_text().splitlines()
    Path("twice.csv").write_text("\n".join([*rows, *rows[1:]]))
    result = call("shrink bert --task csv:twice.csv --max-params 26K --plan")
    assert result.exit_code == 0, result.stderr
    copies = [line for line in result.stderr.splitlines() if "copies" in line]
    assert len(copies) == 2
    assert "test texts are also in train, so that test results are too good" in copies[0]


def test_the_estimate_counts_the_tokens_of_texts(monkeypatch: pytest.MonkeyPatch) -> None:
    measured = []

    def measure(model: Any, spec: Any, run: Run, seconds: float) -> float:
        measured.append(spec.positions)
        return 1e9

    monkeypatch.setattr(estimate, "measure_rate", measure)
    lifecycle.plan_shrink("bert", task="csv:mine.csv", max_params=26_000, run=RUN)
    assert measured == [8]  # three words, padded to 8 of at most 12 tokens
    Path("long.csv").write_text(Path("mine.csv").read_text().replace("cat", "cat " * 9))
    lifecycle.plan_shrink("bert", task="csv:long.csv", max_params=26_000, run=RUN)
    assert measured[1:] == [12]


@pytest.mark.parametrize(
    ("line", "code", "message"),
    [
        ("gpt2 --task digits --max-params 25K", 2, "digits is an image task, and the model "),
        ("bert --images digits --max-params 25K", 2, "digits is an image task, and the model "),
        ("--task csv:mine.csv --max-params 25K", 2, "csv:mine.csv is a text task, and the "),
        ("--task sentiment --max-params 25K", 2, "sentiment is a text task, and the model "),
        ("--images csv:plain.csv --max-params 25K", 2, "csv:plain.csv is a text task, and "),
        ("bert --task csv:mine.csv --max-params 9", 2, "no descendant fits within 9 parameters; "),
        ("bert --task csv:mine.csv --max-params 9M", 2, "the model itself is within the budget"),
        ("bert --task folder:two --max-params 25K", 1, "folder:two has too few training texts"),
        (
            "bert --images folder:two --max-params 25K",
            1,
            "folder:two has 2 texts outside its test split",
        ),
        ("bert --max-params 25K", 2, "no texts are given; give --task csv:PATH, or --images "),
        ("bert --task csv:plain.csv --max-params 25K", 1, "csv:plain.csv has no label column"),
        (
            "bert --task csv:mine.csv --max-params 25K --image-size 32",
            2,
            "models of the family 'bert' have no image_size",
        ),
    ],
)
def test_a_wrong_call_is_one_line_and_writes_nothing(
    line: str, code: int, message: str, place: Path
) -> None:
    before = sorted(path.name for path in place.iterdir())
    result = call(f"shrink {line}")
    errors = result.stderr.splitlines()
    assert len(errors) == 1, result.stderr
    assert errors[0].startswith(f"error: {message}")
    assert result.exit_code == code
    assert sorted(path.name for path in place.iterdir()) == before


@pytest.mark.parametrize(
    ("setting", "message"),
    [
        ({"augment": "light"}, "augment is 'light', but texts are not augmented"),
        ({"mixup": 0.2}, "mixup and cutmix cannot mix texts"),
    ],
)
def test_settings_of_images_are_refused_before_anything_is_extracted(
    setting: dict[str, Any], message: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("learngene_zoo.pretrained.ancestry.open_ancestry", None)
    with pytest.raises(WrongCall, match=message):
        lg.shrink("gpt2", task="csv:mine.csv", max_params=25_000, out="s", run=RUN, **setting)
