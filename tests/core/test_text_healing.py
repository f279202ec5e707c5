"""`heal` of text models: tokens without padding, features as the head reads them."""

from __future__ import annotations

from pathlib import Path
from typing import Any, cast

import numpy as np
import pytest
import torch
from text_models_toy import SPECS, WORDS, write_tokenizer
from training_toy import check_split

from learngene_zoo import lifecycle
from learngene_zoo.artifacts.descendant import Descendant
from learngene_zoo.errors import BadData, WrongCall
from learngene_zoo.families.family import get_table
from learngene_zoo.families.forward import compute_logits, pool_words
from learngene_zoo.families.tensors import build_model, initialise
from learngene_zoo.families.text_format import Tokens
from learngene_zoo.runs.run import Run
from learngene_zoo.tasks.catalogue import open_task
from learngene_zoo.tasks.task import stamp_task
from learngene_zoo.tasks.unlabelled.opening import open_images
from learngene_zoo.training.distillation import Distilled, LossSum, Teacher, TokenLoss
from learngene_zoo.training.healing.objective import COSINE, PATCHES, STREAMS, TOKEN
from learngene_zoo.training.healing.recovery import build_objective
from learngene_zoo.training.healing.settings import HEALING
from learngene_zoo.training.probes import compute_features

transformers = pytest.importorskip("transformers")
RUN = Run(threads=1, device="cpu")
TEXTS = [f"{a} {b} {c}" + " cat" * (len(c) % 3) for a in WORDS for b in WORDS[2:9] for c in WORDS]


@pytest.fixture
def table(tmp_path: Path) -> str:
    rows = [f"{text},{'yes' if 'dog' in text else 'no'}" for text in TEXTS]
    (tmp_path / "mine.csv").write_text("\n".join(["text,label", *rows]))
    return f"csv:{tmp_path / 'mine.csv'}"


@pytest.fixture(params=SPECS)
def pair(request: pytest.FixtureRequest, tmp_path: Path) -> tuple[Descendant, Descendant]:
    """The first two blocks of an ancestry model, and all of them."""
    folder = tmp_path / "ancestry"
    spec = SPECS[request.param].with_(classes=0)
    module = build_model(spec, initialise(spec, 0, "fan_in"))
    getattr(module, module.base_model_prefix).save_pretrained(folder)
    write_tokenizer(folder)
    if spec.pool == "mean":
        (folder / "1_Pooling").mkdir()
        (folder / "1_Pooling/config.json").write_text('{"pooling_mode_mean_tokens": true}')
    learngene = lifecycle.extract("first_k", ancestries=str(folder), run=RUN)
    small, whole = (lifecycle.expand(learngene, layers=layers, run=RUN) for layers in (2, 3))
    return small, whole


def measure_agreement(model: Descendant, whole: Descendant, table: str) -> float:
    """Return the correlation of the cosine similarities of texts by both models."""
    rows = []
    for each in (model, whole):
        features = compute_features(
            each.model(), open_task(table), "test", each.input_format, RUN
        ).values
        features = features / np.linalg.norm(features, axis=1, keepdims=True)
        rows.append((features @ features.T)[np.triu_indices(len(features), 1)])
    return float(np.corrcoef(*rows)[0, 1])


@pytest.mark.slow
def test_similarities_of_texts_come_nearer(
    pair: tuple[Descendant, Descendant], table: str, tmp_path: Path
) -> None:
    small, whole = pair
    healed = lifecycle.heal(
        small, table, epochs=4, lr=3e-3, batch_size=16, out=tmp_path / "healed", run=RUN
    )
    record: Any = healed.provenance["healed"]
    assert record["recipe"]["augment"] == "none"
    losses = [epoch["held_out_loss"] for epoch in record["metrics"]["history"]]
    assert min(losses) < 0.7 * losses[0]
    before, after = (measure_agreement(model, whole, table) for model in (small, healed))
    assert after > before


def test_features_of_equal_width_are_compared_without_a_map(
    pair: tuple[Descendant, Descendant],
) -> None:
    small, _ = pair
    objective = build_objective(small, open_teacher(small), HEALING, RUN, {})
    assert objective.names[:2] == [PATCHES, TOKEN]
    assert not {PATCHES, TOKEN} & set(objective.maps)
    mask = torch.tensor([[1, 1, 0], [1, 1, 1]])
    ids = torch.tensor([[2, 3, 0], [4, 5, 6]])
    batch: Any = open_batch(Tokens(ids, mask))
    student, teacher = objective.read_tokens(batch)
    assert [len(student[name]) for name in (PATCHES, TOKEN)] == [5, 2]
    assert all(student[name].shape == teacher[name].shape for name in student)


def test_pieces_of_a_batch_have_its_gradient(pair: tuple[Descendant, Descendant]) -> None:
    """Texts of 5, 2, 1 and 4 tokens; tokens are compared for recovery, and beside labels."""
    small, whole = pair
    ids = torch.tensor([[2, 3, 4, 5, 6], [4, 5, 0, 0, 0], [6, 0, 0, 0, 0], [5, 4, 3, 2, 0]])
    batch = open_batch(Tokens(ids, (ids != 0).long()))
    objective = build_objective(small, open_teacher(small), HEALING, RUN, {})
    for each in objective.maps.values():
        torch.nn.init.eye_(each.weight), torch.nn.init.zeros_(each.bias)
    check_split(objective, batch, PATCHES, TOKEN, COSINE, STREAMS)
    imitation = LossSum([(2.0, TokenLoss(small.spec, whole.spec, 0))])
    student = small.model()
    objective = Distilled(Silent(student), student, Teacher(whole.model()), imitation, (1.0, 0.5))
    check_split(objective, batch, "tokens")


class Silent(torch.nn.Module):
    """An objective without losses."""

    def __init__(self, model: Any) -> None:
        super().__init__()
        self.model = model

    def forward(self, batch: Any) -> dict[str, torch.Tensor]:
        compute_logits(self.model, batch.inputs)
        return {}


def open_teacher(model: Descendant) -> Any:
    ancestries = lifecycle.healing._read_ancestries(model, None)
    return lifecycle.healing._open_teacher(model, ancestries, None, RUN).ancestry


def open_batch(inputs: Tokens) -> Any:
    from learngene_zoo.tasks.loader import Batch

    zeros = torch.zeros(len(inputs), dtype=torch.int64)
    absent: Any = dict.fromkeys(Batch._fields)
    return Batch(**absent)._replace(inputs=inputs, labels=zeros)


def test_a_text_is_pooled_as_its_head_reads_it() -> None:
    tokens, mask = torch.arange(6.0).reshape(1, 3, 2), torch.tensor([[1, 1, 0]])
    assert pool_words(tokens, mask, "mean").tolist() == [[1, 2]]
    assert pool_words(tokens, mask, "last").tolist() == [[2, 3]]
    assert pool_words(tokens, mask, "pooler").tolist() == [[0, 1]]


@pytest.mark.slow
def test_rounds_go_through_sizes_between(
    pair: tuple[Descendant, Descendant], table: str, tmp_path: Path
) -> None:
    source = str(tmp_path / "ancestry")
    method = "closed_form" if pair[0].spec.pool == "mean" else "first_k"
    gene = lifecycle.extract(method, ancestries=source, tasks=table, run=RUN)
    start = lifecycle.expand(gene, layers=1, task=table, run=RUN)
    settings: dict[str, Any] = {"lr": 3e-3, "batch_size": 16, "max_images": 100, "run": RUN}
    settings["teacher"] = source
    once = lifecycle.heal(start, table, epochs=0, **settings)
    healed = lifecycle.heal(start, table, rounds=2, epochs=1, out=tmp_path / "healed", **settings)
    record, other = (cast(Any, model.provenance["healed"]) for model in (healed, once))
    assert [(entry["layers"], entry["width"]) for entry in record["rounds"]] == [(2, 32), (1, 32)]
    first, alone = (entry["metrics"]["history"][0]["held_out_loss"] for entry in (record, other))
    assert first < alone  # the weights come from the healed model of two layers
    assert healed.spec == start.spec
    assert healed.files == start.files
    table_of_start = get_table(start.spec)
    head = [name for name in start.state if table_of_start.is_head(name)]
    assert head
    assert all(torch.equal(healed.state[name], start.state[name]) for name in head)
    kind = transformers.AutoModelForSequenceClassification
    opened = kind.from_pretrained(tmp_path / "healed").state_dict()
    assert all(torch.equal(opened[name], healed.state[name]) for name in healed.state)


@pytest.mark.parametrize("settings", [{"fit": "pad"}, {"max_patches": 4}])
def test_settings_of_images_are_refused(
    pair: tuple[Descendant, Descendant], table: str, settings: dict[str, Any]
) -> None:
    (name,) = settings
    with pytest.raises(WrongCall, match=f"{name} is .*has texts; leave it out"):
        lifecycle.heal(pair[1], table, run=RUN, **settings)


def test_augmentations_are_refused(pair: tuple[Descendant, Descendant], table: str) -> None:
    with pytest.raises(WrongCall, match="augment is 'light', but texts are not augmented"):
        lifecycle.heal(pair[0], table, augment="light", run=RUN)


@pytest.mark.slow
def test_tables_without_labels_are_taken(
    pair: tuple[Descendant, Descendant], tmp_path: Path
) -> None:
    (tmp_path / "plain.csv").write_text("\n".join(["id,text", *(f"7,{text}" for text in TEXTS)]))
    lines = (f'{{"first": "{text}", "second": "a dog"}}' for text in TEXTS)
    (tmp_path / "plain.jsonl").write_text("\n".join(lines))
    for source in ("csv:plain.csv", "jsonl:plain.jsonl:text=first"):
        kind, _, rest = source.partition(":")
        healed = lifecycle.heal(
            pair[0], f"{kind}:{tmp_path / rest}", epochs=1, max_images=40, run=RUN
        )
        record: Any = healed.provenance["healed"]
        assert record["metrics"]["training_images"] == 40
    with pytest.raises(BadData, match="has no label column"):
        open_task(f"csv:{tmp_path / 'plain.csv'}")
    with pytest.raises(BadData, match="several columns of texts"):
        lifecycle.heal(pair[0], f"jsonl:{tmp_path / 'plain.jsonl'}", run=RUN)


def test_a_folder_of_texts_needs_no_labels(tmp_path: Path) -> None:
    for name in ("flat", "few"):
        (tmp_path / name).mkdir()
        for number, text in enumerate(TEXTS[: 30 if name == "flat" else 2]):
            (tmp_path / name / f"{number}.txt").write_text(text)
    task = open_images(f"folder:{tmp_path / 'flat'}")
    assert (task.kind, task.is_labelled) == ("text", False)
    assert task.sizes == {"train": 27, "validation": 3, "test": 0}
    assert set(task.split("train").__getitems__(range(27))) < set(TEXTS[:30])
    stamp = stamp_task(task)
    (tmp_path / "flat" / "0.txt").write_text("another text")
    assert stamp_task(open_images(f"folder:{tmp_path / 'flat'}")) != stamp
    with pytest.raises(BadData, match="few has 2 texts outside its test split; give at least 20"):
        open_images(f"folder:{tmp_path / 'few'}")
