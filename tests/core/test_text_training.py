"""A module of texts is trained and evaluated by the parts that image models use."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from text_toy import word_tokenizer
from torch import nn

from learngene_zoo.errors import WrongCall
from learngene_zoo.families.text_format import TextFormat, Tokens, make_text_format
from learngene_zoo.runs.run import Run
from learngene_zoo.settings import Recipe
from learngene_zoo.tasks.catalogue import open_task
from learngene_zoo.tasks.loader import Batch
from learngene_zoo.tasks.task import Task
from learngene_zoo.tasks.texts.encoding import Encoder
from learngene_zoo.training.evaluate import evaluate, judge
from learngene_zoo.training.loop import _split_batch, train
from learngene_zoo.training.objectives import Classification, choose_batch_size, choose_metric
from learngene_zoo.training.objectives import load_training_images as open_batches
from learngene_zoo.training.probes import compute_features
from learngene_zoo.training.report import _describe_images

RECIPE = Recipe(epochs=4, batch_size=8, lr=0.05, warmup=0.0, augment="light")


class Bag(nn.Module):
    """Logits of the mean embedding of the tokens."""

    def __init__(self, classes: int = 2) -> None:
        super().__init__()
        generator = torch.Generator().manual_seed(0)
        self.embedding = nn.Embedding(16, 8)
        self.head = nn.Linear(8, classes)
        with torch.no_grad():
            for tensor in self.parameters():
                tensor.copy_(0.1 * torch.randn(tensor.shape, generator=generator))

    def forward_features(self, inputs: Tokens) -> torch.Tensor:
        mask_BT1 = inputs.mask[:, :, None].float()
        return (self.embedding(inputs.ids) * mask_BT1).sum(1) / mask_BT1.sum(1)

    def forward_head(self, features: torch.Tensor, pre_logits: bool = False) -> torch.Tensor:
        return features if pre_logits else self.head(features)

    def forward(self, inputs: Tokens) -> torch.Tensor:
        return self.forward_head(self.forward_features(inputs))


@pytest.fixture
def task(tmp_path: Path) -> Task:
    path = tmp_path / "texts.csv"
    rows = [f"the {('cat', 'dog')[n % 2]} {'very ' * (n % 5)}fast,{'ab'[n % 2]}" for n in range(80)]
    path.write_text("\n".join(["text,label", *rows]))
    return open_task(f"csv:{path}")


@pytest.fixture
def form() -> TextFormat:
    return make_text_format(word_tokenizer(), 16)


@pytest.mark.parametrize("accumulate", [1, 3])
def test_training_and_evaluation_take_tokens(task: Task, form: TextFormat, accumulate: int) -> None:
    recipe, run = replace(RECIPE, batch_size=9, accumulate=accumulate), Run(threads=1)
    model = Bag()
    loader = open_batches(task, form, recipe, run)
    for _ in train(Classification(model), loader, recipe, run, label="training"):
        pass
    result = evaluate(model, task, "test", form, run)
    assert (result.metric, result.value, result.images) == ("accuracy", 1.0, 16)
    other = evaluate(model, replace(task, metric="matthews"), "test", form, run)
    assert (other.metric, other.value) == ("matthews", 1.0)


def test_pieces_of_a_batch_are_its_texts(task: Task, form: TextFormat) -> None:
    batch = next(open_batches(task, form, RECIPE, Run()).epoch(0))
    pieces = _split_batch(batch, 3)
    assert [len(piece.inputs) for piece in pieces] == [3, 2, 2]
    for name in ("ids", "mask"):
        joined = torch.cat([getattr(piece.inputs, name) for piece in pieces])
        assert torch.equal(joined, getattr(batch.inputs, name))
    assert torch.equal(torch.cat([piece.labels for piece in pieces]), batch.labels)
    assert isinstance(pieces[0], Batch)


def test_mixtures_of_images_are_refused(task: Task, form: TextFormat) -> None:
    with pytest.raises(WrongCall, match="cannot mix the texts"):
        open_batches(task, form, replace(RECIPE, mixup=0.2), Run())


def test_long_texts_are_evaluated_in_small_batches(form: TextFormat, task: Task) -> None:
    metric = choose_metric(task)
    assert choose_batch_size(metric, form) == 64
    assert choose_batch_size(metric, form, "cuda") == 256
    assert choose_batch_size(metric, replace(form, tokens=1024)) == 32
    assert choose_batch_size(metric, replace(form, tokens=512)) == 64
    assert choose_batch_size(metric, replace(form, tokens=2**18)) == 1


def test_answers_and_features_are_in_the_order_of_the_split(task: Task, form: TextFormat) -> None:
    model, run, split = Bag(), Run(threads=1), task.split("test")
    judged = judge(model, task, "test", form, run)
    features = compute_features(model, task, "test", form, run)
    encode = Encoder.of(form)
    texts = split.__getitems__(range(len(split)))
    lengths = [len(encode.encode(text)[0]) for text in texts]
    assert lengths != sorted(lengths, reverse=True)
    with torch.no_grad():
        expected_ND = torch.cat([model.forward_features(encode([text], [""])) for text in texts])
        predicted_N = model.forward_head(expected_ND).argmax(dim=1)
    assert judged.rows[:, 1].tolist() == predicted_N.tolist()
    assert judged.rows[:, 0].tolist() == features.labels.tolist() == list(split.labels)
    assert np.allclose(features.values, expected_ND.numpy(), atol=1e-6)


def test_a_report_shows_the_texts_that_are_wrong(task: Task, form: TextFormat) -> None:
    judged = judge(Bag(), task, "test", form, Run(threads=1))
    sections = _describe_images(task, judged)
    assert sections["class_columns"][1] == "texts"
    names = [shown["name"] for shown in sections["worst"]]
    assert names
    assert set(names) <= set(task.split("test").__getitems__(range(16)))
