"""Scores in files of SnapViT's code, as a learngene without weights."""

import sys
from enum import StrEnum
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch
from pruning_toy import SPEC
from safetensors.torch import save_file

import learngene_zoo as lg
from learngene_zoo.errors import BadFile
from learngene_zoo.runs.run import Run
from learngene_zoo.settings import fingerprint, to_json
from learngene_zoo.testing import make_tiny_ancestry, make_tiny_task
from lgzoo_closed_form.elastic import ELASTIC, ElasticDetails, ElasticExpander, ElasticExtractor
from lgzoo_closed_form.modules.score_files import read_scores

GENERATOR = torch.Generator().manual_seed(0)
SCORES = {
    "mlp_scores": torch.rand(4, SPEC.hidden, generator=GENERATOR) * 1e-9,
    "head_scores": torch.rand(4, SPEC.heads, generator=GENERATOR) * 1e-8,
}


class OldMember:
    """A member of an enumeration that is stored as Python 3.11.0 to 3.11.3 does."""

    def __init__(self, kind: type) -> None:
        self.kind = kind

    def __reduce__(self) -> tuple[Any, ...]:
        return getattr, (self.kind, "VIT")


def write_scores(path: Path, old: bool = False) -> str:
    """Write a file in the layout of the authors', and return its path."""
    name = "src.models.enums"
    module = ModuleType(name)
    kind = StrEnum("ModelType", {"VIT": "dino_vitb16"}, module=name)
    module.ModelType = kind  # type: ignore[attr-defined]
    member = OldMember(kind) if old else kind("dino_vitb16")
    facts = {"model_type": member, "num_blocks": 4, "metadata": {"seed": 42}}
    with pytest.MonkeyPatch.context() as patch:
        for package in ("src", "src.models"):
            patch.setitem(sys.modules, package, ModuleType(package))
        patch.setitem(sys.modules, name, module)
        torch.save({**SCORES, **facts}, path)
    assert b"ModelType" in path.read_bytes()
    return str(path)


def extract_scores(path: str, store: bool = True) -> lg.Learngene:
    extractor = ElasticExtractor(scores=path, store=store)
    ancestry = make_tiny_ancestry(spec=SPEC)
    learngene = extractor([ancestry], [make_tiny_task()], Run(seed=1))
    return learngene.with_config(method="elastic", ancestries=(ancestry.record,))


@pytest.mark.parametrize("suffix", ["pt", "safetensors"])
def test_scores_of_the_authors_code_make_a_learngene(tmp_path: Path, suffix: str) -> None:
    path = str(tmp_path / f"scores.{suffix}")
    if suffix == "pt":
        write_scores(Path(path))
    else:
        save_file(SCORES, path)
    learngene = extract_scores(path)
    for name, tensor in (("heads", "head_scores"), ("hidden", "mlp_scores")):
        torch.testing.assert_close(
            learngene.state[f"importance.{name}"], SCORES[tensor] / SCORES[tensor].mean()
        )
    details = learngene.config.details
    assert len(details["scores"]) == 64
    assert details["task"] == make_tiny_task().name
    small = lg.expand(learngene, expander=ElasticExpander(keep=0.5, compensate=False))
    kept = small.provenance["kept"]
    best = SCORES["mlp_scores"].flatten().topk(2 * SPEC.hidden).values.min()
    least = SPEC.hidden // 8
    counts = (SCORES["mlp_scores"] >= best).sum(dim=1)
    assert (counts > least).all()
    assert kept["hidden"] == counts.tolist()


def test_without_stored_weights_a_learngene_is_the_scores(tmp_path: Path) -> None:
    learngene = extract_scores(write_scores(tmp_path / "scores.pt"), store=False)
    assert set(learngene.state) == {"importance.heads", "importance.hidden"}
    assert learngene.config.details["stored"] is False


def test_files_of_older_pythons_are_read(tmp_path: Path) -> None:
    heads, _ = read_scores(write_scores(tmp_path / "scores.pt", old=True), SPEC)
    assert torch.equal(heads, SCORES["head_scores"].double())


def test_learngenes_that_measure_are_recorded_as_before() -> None:
    assert "scores" not in to_json(ElasticExtractor())
    assert "scores" not in to_json(ElasticDetails(search=ElasticExtractor().each))
    assert fingerprint(ElasticExtractor()) == fingerprint(ElasticExtractor(scores=None))
    assert ElasticExtractor(scores="x").work([SPEC], [100]) == []
    assert ELASTIC.presets["mini"].scores is None  # type: ignore[attr-defined]


class Malicious:
    def __reduce__(self) -> tuple[Any, ...]:
        return (Path.touch, (Path("touched"),))


def test_a_file_that_calls_something_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    torch.save({**SCORES, "metadata": Malicious()}, "bad.pt")
    with pytest.raises(BadFile, match="torch's reader of plain tensors refuses it"):
        read_scores("bad.pt", SPEC)
    assert not Path("touched").exists()


def save_scores(path: Path, **changes: Any) -> str:
    torch.save({**SCORES, **changes}, path)
    return str(path)


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"mlp_scores": torch.ones(4, 7)}, r"mlp_scores has shape \(4, 7\); the ancestry model"),
        ({"head_scores": torch.ones(3, 3)}, r"head_scores has shape \(3, 3\)"),
        ({"head_scores": [1, 2]}, "has no tensor head_scores"),
        ({"head_scores": torch.full((4, 3), torch.nan)}, "numbers that are not finite"),
        ({"head_scores": -torch.ones(4, 3)}, "at least 0"),
        ({"head_scores": torch.zeros(4, 3)}, "at least 0"),
    ],
)
def test_scores_of_another_model_are_refused(
    tmp_path: Path, changes: dict[str, Any], said: str
) -> None:
    with pytest.raises(BadFile, match=said):
        read_scores(save_scores(tmp_path / "scores.pt", **changes), SPEC)


def test_files_that_are_none_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(BadFile, match="is not a file; name a file of scores"):
        read_scores(str(tmp_path / "none.pt"), SPEC)
    (tmp_path / "text.pt").write_text("scores")
    with pytest.raises(BadFile, match="is not a file of scores"):
        read_scores(str(tmp_path / "text.pt"), SPEC)
    torch.save([1], tmp_path / "list.pt")
    with pytest.raises(BadFile, match="contains a list; expected a dictionary"):
        read_scores(str(tmp_path / "list.pt"), SPEC)
    whole = Path(save_scores(tmp_path / "whole.pt")).read_bytes()
    for length in range(0, len(whole), 997):
        (tmp_path / "cut.pt").write_bytes(whole[:length])
        with pytest.raises(BadFile, match="is not a file of scores"):
            read_scores(str(tmp_path / "cut.pt"), SPEC)
    monkeypatch.setattr("lgzoo_closed_form.modules.score_files.MAX_BYTES", 2**20)
    save_scores(tmp_path / "large.pt", mlp_scores=torch.ones(2**19))
    with pytest.raises(BadFile, match="more than 1 MB"):
        read_scores(str(tmp_path / "large.pt"), SPEC)
