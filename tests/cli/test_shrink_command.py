"""`lgzoo shrink`: its table, its JSON, its plan and its messages."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from click.testing import CliRunner, Result
from PIL import Image

from learngene_zoo.artifacts.descendant import assemble, load_descendant
from learngene_zoo.cli.main import main
from learngene_zoo.errors import BadData
from learngene_zoo.families.vit.spec import ViTSpec
from learngene_zoo.lifecycle.shrinking import building, estimate, steps
from learngene_zoo.runs.run import Run
from learngene_zoo.text import format_count
from learngene_zoo.training import loop, speed, tuning

SPEC = ViTSpec(layers=3, width=32, heads=2, classes=3, image_size=16, patch_size=8)
SMALL = ["--candidates", "3", "--epochs", "1", "--batch-size", "16", "--export", "none"]


@pytest.fixture(autouse=True)
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Write a pretrained model and pictures into the current folder."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "160")
    assemble(SPEC, {}, seed=0, scheme="fan_in").save("model")
    draws = np.random.default_rng(0)
    for label, name in enumerate(("red", "green")):
        Path("photos", name).mkdir(parents=True)
        for number in range(24):
            pixels = draws.integers(0, 120, (16, 16, 3), dtype=np.uint8)
            pixels[..., label] += 80
            Image.fromarray(pixels).save(Path("photos", name, f"{number}.png"))
    return tmp_path


def call(*words: str) -> Result:
    line = ["shrink", "model", "--task", "folder:photos", *words]
    return CliRunner().invoke(main, [*line, "--device", "cpu", "--threads", "1"])


@pytest.mark.slow
def test_the_table_and_the_json_agree(place: Path) -> None:
    table = call("--max-params", "25K", *SMALL)
    assert table.exit_code == 0, table.stderr
    result = call("--max-params", "25K", *SMALL, "--resume", "--json")
    assert result.exit_code == 0, result.stderr
    rows: list[dict[str, Any]] = json.loads(result.stdout)
    lines = table.stdout.splitlines()
    first = next(index for index, line in enumerate(lines) if line.startswith("─")) + 1
    shown = [line.split() for line in lines[first : first + len(rows)]]
    assert len(shown) == len(rows)
    for words, row in zip(shown, rows):
        assert (words[0] == "*") == row["kept"]
        words = words[row["kept"] :]
        assert words[0] == row["method"]
        assert words[1] == f"{row['layers']}x{row['width']}"
        assert words[2] == format_count(row["params"])
        assert words[5] == f"{row['probe']:.3f}"
        assert words[8] == ("-" if row["validation"] is None else f"{row['validation']:.3f}")
        assert words[9] == ("-" if row["test"] is None else f"{row['test']:.3f}")
    (winner,) = [row for row in rows if row["kept"]]
    assert winner["params"] <= 25_000
    assert winner["model"] == "shrunk"
    assert load_descendant("shrunk").cost().params == winner["params"]
    assert "model     shrunk" in table.stdout or "model   shrunk" in table.stdout
    assert Path("shrunk.html").read_text(encoding="utf-8").endswith("</html>\n")
    assert "next: lgzoo predict shrunk PICTURE" in table.stderr


@pytest.mark.slow
def test_a_plan_starts_nothing_and_lists_the_candidates(place: Path) -> None:
    before = sorted(path.name for path in place.iterdir())
    result = call("--max-params", "25K", "--candidates", "3", "--plan", "--json")
    assert result.exit_code == 0, result.stderr
    rows = json.loads(result.stdout)
    assert 1 <= len(rows) <= 3
    assert all(row["params"] <= 25_000 for row in rows)
    assert "less than 10s to extract" in result.stderr
    assert "candidates; the original has " in call("--max-params", "25K", "--plan").stdout
    assert sorted(path.name for path in place.iterdir()) == before


@pytest.mark.parametrize(
    ("words", "code", "message"),
    [
        ([], 2, "no bound is given; give at least one of --max-params"),
        (["--max-params", "10"], 2, "no descendant fits within 10 parameters; even without a head"),
        (["--max-params", "9M"], 2, "the model itself is within the budget"),
        (["--max-megabytes", "-1"], 2, "invalid value for '--max-megabytes'"),
        (["--max-params", "20K", "--export", "tf"], 2, "invalid value for '--export'"),
        (["--max-params", "20K", "--task", "nothing"], 2, "no task named 'nothing'"),
    ],
)
def test_a_wrong_call_is_one_line_and_writes_nothing(
    words: list[str], code: int, message: str, place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # A note that no file is exported would be a second line.
    monkeypatch.setattr("learngene_zoo.lifecycle.shrinking.request.find_spec", lambda name: None)
    before = sorted(path.name for path in place.iterdir())
    result = call(*words)
    assert result.exit_code == code
    assert result.stderr.startswith(f"error: {message}")
    assert result.stderr.count("\n") == 1
    assert result.stdout == ""
    assert sorted(path.name for path in place.iterdir()) == before


@pytest.mark.slow
def test_a_broken_picture_is_found_before_anything_is_built(
    place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("LGZOO_CACHE", str(place / "cache"))
    with monkeypatch.context() as patch:
        patch.setattr(building, "extract", lambda *_, **__: pytest.fail("built"))
        find_broken_picture()
    assert not Path("shrunk.run").exists()
    again = call("--max-params", "25K", *SMALL)
    assert again.exit_code == 0, again.stderr


def find_broken_picture() -> None:
    """Check the message about a broken picture, and remove the picture."""
    Path("photos", "red", "3.png").write_bytes(b"no picture")
    result = call("--max-params", "25K", *SMALL)
    assert result.exit_code == 1
    error = result.stderr.splitlines()[-1]
    assert error.startswith("error: photos/red/3.png: ")
    assert "lgzoo doctor --task folder:photos --check-images" in error
    Path("photos", "red", "3.png").unlink()


@pytest.mark.slow
def test_a_fine_tuned_candidate_states_the_kept_epoch_and_few_images() -> None:
    result = call("--max-params", "25K", *SMALL, "--lr", "1e-9")
    assert result.exit_code == 0, result.stderr
    lines = [
        line
        for line in result.stderr.splitlines()
        if ", chosen by only 4 validation images" in line
    ]
    assert len(lines) == 2
    assert all("every epoch has a worse" in line or "epoch 1 of 1" in line for line in lines)
    assert all(line in Path("shrunk.html").read_text(encoding="utf-8") for line in lines)


@pytest.mark.slow
def test_a_long_call_states_its_time_and_a_smaller_image_size(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def stop(*_: Any) -> None:
        raise BadData("stopped before the first candidate")

    monkeypatch.setattr(steps, "_rank", stop)
    monkeypatch.setattr(estimate, "SLOWEST", 0.0)
    monkeypatch.setattr(estimate, "ADVISED_PIXELS", 9)
    advice = "images have 16 pixels: --image-size 8 needs about 1/2 of the time"

    def find_line(rate: float, *words: str) -> str:
        monkeypatch.setattr(estimate, "measure_rate", lambda *_: rate)
        result = call("--max-params", "9K", *SMALL, *words, "--force")
        assert "stopped before" in result.stderr
        return result.stderr.splitlines()[-2]

    assert find_line(1e4).startswith("about ")
    assert find_line(1e4).endswith(f" in all; {advice}")
    assert find_line(1e4, "--image-size", "16").endswith(" in all")
    assert " candidates of " in find_line(1e12)
    monkeypatch.setattr(speed, "MAX_FLOPS", 0.0)
    assert find_line(1e4) == advice


@pytest.mark.slow
@pytest.mark.parametrize(
    ("has_bf16", "speedup", "words", "is_advised"),
    [
        (True, 1.84, (), True),
        (True, 1.2, (), False),
        (False, 1.84, (), False),
        (True, 1.84, ("--precision", "bf16"), False),
    ],
)
def test_bfloat16_is_advised_where_it_is_measured_to_be_faster(
    monkeypatch: pytest.MonkeyPatch,
    has_bf16: bool,
    speedup: float,
    words: Sequence[str],
    is_advised: bool,
) -> None:
    def measure(*given: Any) -> float:
        run = next(value for value in given if isinstance(value, Run))
        return 1e4 * (speedup if run.precision == "bf16" else 1.0)

    monkeypatch.setattr(estimate, "SLOWEST", 0.0)
    monkeypatch.setattr(estimate, "has_bf16", lambda run: has_bf16)
    monkeypatch.setattr(estimate, "measure_rate", measure)
    result = call("--max-params", "25K", "--candidates", "3", "--plan", "--json", *words)
    assert result.exit_code == 0, result.stderr
    advice = "--precision bf16 computes about 1.8 times as fast here"
    assert (advice in result.stderr) == is_advised


def test_a_precision_without_a_device_for_it_is_refused_before_the_first_step() -> None:
    for words in ((), ("--plan",)):
        result = call("--max-params", "25K", "--precision", "fp16", "--device", "cpu", *words)
        assert result.exit_code == 2
        assert "fp16 needs a GPU" in result.stderr
        assert not Path("shrunk.run").exists()


@pytest.mark.slow
def test_the_plan_of_a_long_call_advises_a_smaller_image_size(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(estimate, "ADVISED_PIXELS", 9)
    for rate, is_long in ((1e4, True), (1e12, False)):
        monkeypatch.setattr(estimate, "measure_rate", lambda *_, rate=rate: rate)
        result = call("--max-params", "25K", "--candidates", "3", "--plan", "--json")
        assert result.exit_code == 0, result.stderr
        assert ("16 pixels: --image-size 8 needs about 1/2" in result.stderr) == is_long


@pytest.mark.parametrize(
    ("pixels", "patch", "advice"),
    [
        (518, 14, "images have 518 pixels: image_size=224 needs about 1/5 of the time"),
        (384, 16, "images have 384 pixels: image_size=224 needs about 1/3 of the time"),
        (450, 15, "images have 450 pixels: image_size=210 needs about 1/5 of the time"),
        (240, 16, ""),
        (224, 16, ""),
    ],
)
def test_the_advised_image_size_is_a_multiple_of_the_patch(
    pixels: int, patch: int, advice: str
) -> None:
    spec = SPEC.with_(image_size=pixels, patch_size=patch)
    ancestry = type("Ancestry", (), {"spec": spec})()
    request: Any = type("Request", (), {"ancestry": ancestry, "image_size": None})()
    assert estimate.advise_image_size(request) == advice
    request.image_size = pixels
    assert estimate.advise_image_size(request) == ""


@pytest.mark.slow
def test_the_exported_file_lies_beside_the_model(place: Path) -> None:
    words = [word if word != "none" else "pt2" for word in SMALL]
    result = call("--max-params", "25K", *words, "--json")
    assert result.exit_code == 0, result.stderr
    (winner,) = [row for row in json.loads(result.stdout) if row["kept"]]
    assert winner["exported"] == "shrunk.pt2"
    assert (place / "shrunk.pt2").stat().st_size > 4 * winner["params"]
    evaluation = CliRunner().invoke(
        main, ["evaluate", "shrunk", "--task", "folder:photos", "--json"]
    )
    assert evaluation.exit_code == 0, evaluation.stderr
    assert json.loads(evaluation.stdout)["value"] == winner["test"]


@pytest.mark.slow
def test_a_diverged_fine_tuning_has_the_advice_of_finetune(monkeypatch: pytest.MonkeyPatch) -> None:
    def diverge(objective: torch.nn.Module, *args: Any, **kwargs: Any) -> Iterator[loop.Step]:
        for step in loop.train(objective, *args, **kwargs):
            yield step
            with torch.no_grad():
                for parameter in objective.parameters():
                    parameter.fill_(float("nan"))

    def list_advice(result: Result) -> list[str]:
        return [
            line.partition("; train ")[2] or line
            for line in result.stderr.splitlines()
            if line.startswith(("try ", "warning: "))
        ]

    monkeypatch.setattr(tuning, "train", diverge)
    shrunk = call("--max-params", "25K", *SMALL, "--try", "1", "--lr", "0.02")
    lines = [line for line in shrunk.stderr.splitlines() if "the training diverged: " in line]
    assert len(lines) == 2, "one for the candidate, one for the result"
    assert all("again with a smaller lr (0.02 was used)" in line for line in lines)
    assert lines[0] in Path("shrunk.html").read_text(encoding="utf-8")
    words = ["--task", "folder:photos", "--epochs", "1", "--batch-size", "16", "--lr", "0.02"]
    line = ["finetune", "shrunk", *words, "--device", "cpu", "--threads", "1"]
    finetuned = CliRunner().invoke(main, line)
    assert list_advice(shrunk) == list_advice(finetuned) != []
    assert shrunk.exit_code == finetuned.exit_code
