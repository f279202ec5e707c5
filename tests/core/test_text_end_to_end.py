"""A text model from its folder to predictions by transformers, and the pooler of a new head."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import numpy as np
import pytest
import torch
from text_models_toy import BERT, SPECS, WORDS, draw_words, write_tokenizer

from learngene_zoo import lifecycle
from learngene_zoo.artifacts.descendant import Descendant
from learngene_zoo.errors import WrongCall
from learngene_zoo.families.forward import compute_pooled, spread_pooled
from learngene_zoo.families.tensors import build_model, initialise
from learngene_zoo.families.text_format import TextFormat
from learngene_zoo.lifecycle.rates import describe_rates
from learngene_zoo.runs.run import Run
from learngene_zoo.seeds import derive_seed
from learngene_zoo.settings import Recipe
from learngene_zoo.tasks.catalogue import open_task
from learngene_zoo.tasks.texts.encoding import Encoder, describe_truncation
from learngene_zoo.training.distillation import Features, Teacher, TokenLoss, guide
from learngene_zoo.training.evaluate import judge
from learngene_zoo.training.heads import MAX_MODEL_STEP, initialise_head, measure_sensitivity
from learngene_zoo.training.predict import predict

transformers = pytest.importorskip("transformers")
TEXTS = [f"{a} {b} {c}" for a in WORDS[4:7] for b in WORDS[2:9] for c in WORDS[3:9]]


@pytest.fixture(params=SPECS)
def learngene(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    folder = tmp_path / "ancestry"
    spec = SPECS[request.param].with_(classes=0)
    module = build_model(spec, initialise(spec, 0, "fan_in"))
    body = getattr(module, module.base_model_prefix)
    body.save_pretrained(folder)
    write_tokenizer(folder)
    out = tmp_path / "learngene"
    lifecycle.extract("first_k", ancestries=str(folder), out=out, run=Run(threads=1))
    return out


@pytest.mark.slow
def test_transformers_predicts_what_evaluate_counts(learngene: Path, tmp_path: Path) -> None:
    rows = [f"{text},{'yes' if 'dog' in text else 'no'}" for text in TEXTS]
    (tmp_path / "mine.csv").write_text("\n".join(["text,label", *rows]))
    task, run = f"csv:{tmp_path / 'mine.csv'}", Run(threads=1)
    small = lifecycle.expand(learngene, layers=2, task=task, run=run)
    tuned = lifecycle.finetune(
        small, task=task, epochs=2, batch_size=16, out=tmp_path / "tuned", run=run
    )
    assert tuned.provenance["recipe"]["augment"] == "none"
    card = (tmp_path / "tuned" / "README.md").read_text()
    assert "| task | source | revision | classes | texts | licence |" in card
    assert " images " not in card
    with pytest.raises(WrongCall, match="augment is 'light', but texts are not augmented"):
        lifecycle.finetune(small, task=task, augment="light", run=run)
    data = open_task(task)
    judged = judge(tuned.model(), data, "test", tuned.input_format, run)
    words = transformers.AutoTokenizer.from_pretrained(tmp_path / "tuned")
    model = transformers.AutoModelForSequenceClassification.from_pretrained(tmp_path / "tuned")
    split = data.split("test")
    texts = split.__getitems__(list(range(len(split.labels))))
    with torch.no_grad():
        predicted = [
            int(model(**words(text, return_tensors="pt")).logits.argmax()) for text in texts
        ]
    assert predicted == judged.rows[:, 1].tolist()
    answers = list(predict(tuned, [*texts, " "], run, batch_size=7))
    names = [tuned.class_names.index(answer.classes[0]) for answer in answers[:-1]]
    assert names == predicted
    assert "empty text" in str(answers[-1].error)
    long = " ".join([TEXTS[0]] * 3)
    for several in (
        answers[:-1],
        list(predict(tuned, [" ", *texts, long, " "], run, batch_size=2)),
    ):
        given = [answer for answer in several if not answer.error]
        alone = [next(predict(tuned, [answer.image], run)) for answer in given]
        assert [answer.image for answer in given][: len(texts)] == texts
        assert [answer.classes for answer in given] == [answer.classes for answer in alone]
        for answer, other in zip(given, alone):
            assert answer.probabilities == pytest.approx(other.probabilities, abs=1e-5)
    assert sum(answers[0].probabilities) == pytest.approx(1)
    with pytest.raises(WrongCall, match="has no other layout; transformers opens its folder"):
        lifecycle.convert(tuned, tmp_path / "converted", format="timm", run=run)
    result = lifecycle.evaluate(tuned, task=task, run=run)
    assert result.value == np.mean(judged.rows[:, 0] == judged.rows[:, 1])


def test_a_pretrained_model_of_texts_has_a_rate_by_its_ancestry_models_width(
    learngene: Path,
) -> None:
    heir = lifecycle.expand(learngene, layers=2)
    assert lifecycle.choose_rates(heir) == (1e-3, 1.0)

    def change(width: int, inherited: frozenset[str], **more: Any) -> Descendant:
        records: Any = [{"spec": {"width": width}}]
        return replace(heir, inherited=inherited, provenance={"ancestries": records, **more})

    assert lifecycle.choose_rates(change(384, heir.inherited)) == (2.5e-4, 1.0)
    assert lifecycle.choose_rates(change(384, frozenset())) == (3e-3, 1.0)
    assert lifecycle.choose_rates(change(384, frozenset(), trained_on="words")) == (1e-3, 1.0)
    line = describe_rates(change(384, heir.inherited), replace(lifecycle.FINETUNE, lr=2.5e-4), 640)
    assert line == (
        "the learning rate is 0.00025, the default of text models that inherit "
        "from an ancestry model of width 384"
    )


def test_descendants_are_ranked_for_texts(learngene: Path, tmp_path: Path) -> None:
    rows = [f"{text},{'yes' if 'dog' in text else 'no'}" for text in TEXTS]
    (tmp_path / "mine.csv").write_text("\n".join(["text,label", *rows]))
    task, run = f"csv:{tmp_path / 'mine.csv'}", Run(threads=1)
    ranking = lifecycle.recommend(task, learngene, images=60, sizes=2, run=run)
    assert [item.images for item in ranking] == [60, 60]
    assert ranking[0].probe >= ranking[1].probe > 0.5
    with pytest.raises(WrongCall, match="digits is an image task, and the model takes texts"):
        lifecycle.recommend("digits", learngene, run=run)
    with pytest.raises(
        WrongCall, match="no learngene that comes with the package is of a text model"
    ):
        lifecycle.recommend(task, run=run)


def test_the_card_of_a_model_of_pairs_shows_how_to_encode_one(tmp_path: Path) -> None:
    rows = [f"{a},{b},{('no', 'yes')[a < b]}" for a, b in zip(TEXTS, TEXTS[3:])]
    (tmp_path / "pairs.csv").write_text("\n".join(["text1,text2,label", *rows]))
    task, run = f"csv:{tmp_path / 'pairs.csv'}", Run(threads=1)
    words = lifecycle.extract("first_k", ancestries="ancestry-words", run=run)
    small = lifecycle.expand(words, layers=1, task=task, run=run)
    tuned = lifecycle.finetune(
        small, task=task, epochs=1, batch_size=16, out=tmp_path / "tuned", run=run
    )
    card = (tmp_path / "tuned" / "README.md").read_text()
    tokenizer = transformers.AutoTokenizer.from_pretrained(tmp_path / "tuned")
    given = (line for line in card.splitlines() if line.startswith("inputs = "))
    expression = next(given).partition("= ")[2].partition("  #")[0]
    pair = {"first": TEXTS[0], "second": TEXTS[3]}
    ids = eval(expression, {"tokenizer": tokenizer, **pair})["input_ids"][0].tolist()
    encoder = Encoder.of(cast(TextFormat, tuned.input_format))
    encoded, _ = encoder.encode((pair["first"], pair["second"]))
    assert ids == encoded


def test_a_task_of_images_is_refused_before_anything_is_built(learngene: Path) -> None:
    with pytest.raises(WrongCall, match="digits is an image task, and the model takes texts"):
        lifecycle.expand(learngene, task="digits")


def test_a_pooler_whose_outputs_hardly_differ_is_spread() -> None:
    state, words = initialise(BERT, 0, "fan_in"), draw_words(BERT, count=64)
    state["bert.pooler.dense.weight"] *= 1e-5
    state["bert.pooler.dense.bias"] += 0.1
    model = build_model(BERT, state)
    with torch.no_grad():
        before = compute_pooled(model, words)
        assert before.std(dim=0).mean() < 1e-4
        spread = spread_pooled(model, before)
        model.load_state_dict({**model.state_dict(), **spread})
        after = compute_pooled(model, words)
        assert after.std(dim=0).mean() > 0.2
        assert spread_pooled(model, after) == {}
        gone = before.double().atanh(), after.double().atanh()
    for channel in range(4):  # an increasing affine map of each channel before tanh
        pair = torch.stack([part[:, channel] for part in gone])
        assert torch.corrcoef(pair)[0, 1] > 0.999


def test_a_channel_of_the_pooler_that_is_saturated_leaves_the_others_finite() -> None:
    state, words = initialise(BERT, 0, "fan_in"), draw_words(BERT, count=64)
    state["bert.pooler.dense.weight"] *= 1e-5
    state["bert.pooler.dense.bias"][0] = 20.0  # tanh is 1 in float32
    model = build_model(BERT, state)
    with torch.no_grad():
        spread = spread_pooled(model, compute_pooled(model, words))
    assert all(tensor.isfinite().all() for tensor in spread.values())


def test_the_scale_of_a_head_suits_all_weights(learngene: Path, tmp_path: Path) -> None:
    """A step that moves every weight by the learning rate changes no mean logit by more."""
    rows = [f"{text},{'yes' if 'dog' in text else 'no'}" for text in TEXTS]
    (tmp_path / "mine.csv").write_text("\n".join(["text,label", *rows]))
    task, run = open_task(f"csv:{tmp_path / 'mine.csv'}"), Run(threads=1)
    model = lifecycle.expand(learngene, layers=2, task=task.name, run=run)
    recipe = Recipe(lr=0.01)
    headed, record = initialise_head(model, task, recipe, run)
    module, seed = headed.model(), derive_seed(run.seed, "data")
    step = recipe.lr * measure_sensitivity(module, task, headed.input_format, seed, run)
    assert step < 1.01 * MAX_MODEL_STEP
    assert record["calibrated_scale"] > record["scale"]
    _, gentle = initialise_head(model, task, replace(recipe, lr=1e-9), run)
    assert gentle["scale"] == pytest.approx(record["calibrated_scale"])


def test_a_new_head_is_better_than_a_random_one_before_training(
    learngene: Path, tmp_path: Path
) -> None:
    rows = [f"{text},{'yes' if 'dog' in text else 'no'}" for text in TEXTS]
    (tmp_path / "mine.csv").write_text("\n".join(["text,label", *rows]))
    task, run = f"csv:{tmp_path / 'mine.csv'}", Run(threads=1)
    model = lifecycle.expand(learngene, layers=2, task=task, run=run)
    accuracies = []
    for head in ("ridge", "random"):
        tuned = lifecycle.finetune(model, task=task, epochs=0, head=head, run=run)
        metrics: Any = tuned.provenance["metrics"]
        accuracies.append(metrics["test_accuracy"])
    assert accuracies[0] > accuracies[1] + 0.1


def test_texts_that_are_too_long_are_counted(learngene: Path) -> None:
    form = lifecycle.expand(learngene, layers=1, run=Run(threads=1)).input_format
    assert describe_truncation(["a cat", "a dog"], form) == ""
    note = describe_truncation(["a cat", "a " * 20], form)
    assert note.startswith("1 of the first 2 texts has more than 12 tokens")


def test_a_teacher_of_texts_has_the_tokenizer_of_its_student(learngene: Path) -> None:
    model = lifecycle.expand(learngene, layers=1, run=Run(threads=1))
    form = model.input_format
    assert isinstance(guide(model, form, Run(threads=1)), Teacher)
    with pytest.raises(WrongCall, match="another tokenizer"):
        guide(model, replace(form, tokenizer="0" * 64), Run(threads=1))
    with pytest.raises(WrongCall, match="takes 12 tokens and the student 13"):
        guide(model, replace(form, tokens=13), Run(threads=1))
    loss = TokenLoss(model.spec, model.spec, seed=0)
    stream, mask = torch.randn(2, 3, 32), torch.tensor([[1, 1, 0], [1, 1, 1]])
    given, target = Features(streams=[stream]), Features(streams=[stream], masks=[mask])
    changed = stream.clone()
    changed[0, 2] += 100  # padding
    other = Features(streams=[changed], masks=[mask])
    assert torch.equal(loss(given, target)["tokens"], loss(given, other)["tokens"])
