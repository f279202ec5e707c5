"""The suite `words`: rules whose words say nothing, and real texts in the layouts of packages."""

from __future__ import annotations

import io
import tarfile
from collections import Counter
from itertools import pairwise, product
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch.nn import functional

from learngene_zoo.errors import BadData, Unavailable
from learngene_zoo.tasks.catalogue import get_origin, get_version, open_task
from learngene_zoo.tasks.task import Task
from learngene_zoo.testing import check_suite
from lgzoo_words import opening
from lgzoo_words.draws import Draws
from lgzoo_words.lexicon import TRANSITIVE, inflect, make_past
from lgzoo_words.rules import RULES, write_entailment
from lgzoo_words.suite import RULE_SIZES, WORDS

PAIRS = ("paraphrase", "entailment")
BALANCED = ("acceptability", *PAIRS)


def texts_of(task: Task, split: str) -> list[Any]:
    chosen = task.split(split)
    return list(chosen.__getitems__(range(len(chosen))))


def as_parts(text: Any) -> tuple[str, ...]:
    return text if isinstance(text, tuple) else (text,)


def split_words(text: str) -> list[str]:
    return text.lower().rstrip(".").replace(",", "").split()


def count_features(texts: list[Any], with_pairs: bool, by_side: bool) -> list[Counter[str]]:
    """Return the words of each text, and its pairs of adjacent words; of both texts of a pair."""
    every = []
    for text in texts:
        counts: Counter[str] = Counter()
        for side, part in enumerate(as_parts(text)):
            words = split_words(part)
            shown = words + [f"{a} {b}" for a, b in pairwise(words)] * with_pairs
            counts.update(f"{side * by_side}:{word}" for word in shown)
        every.append(counts)
    return every


def measure_bag(task: Task, with_pairs: bool = False, by_side: bool = True) -> float:
    """Return the test accuracy of a logistic regression on words, fitted to 2,000 texts."""
    train, test = (
        count_features(texts_of(task, split), with_pairs, by_side) for split in ("train", "test")
    )
    train = train[:2000]
    column = {name: i for i, name in enumerate(sorted({name for row in train for name in row}))}

    def to_matrix(rows: list[Counter[str]]) -> torch.Tensor:
        matrix = torch.zeros(len(rows), len(column) + 1)
        matrix[:, -1] = 1
        for i, row in enumerate(rows):
            for name, count in row.items():
                if name in column:
                    matrix[i, column[name]] = count
        return matrix

    inputs = to_matrix(train)
    labels = torch.from_numpy(task.split("train").labels[:2000])
    weight = torch.zeros(inputs.shape[1], task.classes, requires_grad=True)
    optimizer = torch.optim.LBFGS([weight], max_iter=60)

    def closure() -> Any:
        optimizer.zero_grad()
        loss = functional.cross_entropy(inputs @ weight, labels) + 1e-3 * weight.square().sum()
        loss.backward()
        return loss

    optimizer.step(closure)
    predicted = (to_matrix(test) @ weight).argmax(dim=1).numpy()
    return float((predicted == task.split("test").labels).mean())


# Rules.


def test_the_suite_keeps_its_contract(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Real texts differ with the release of the packages, so those of this machine are left out."""
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setattr(opening, "_find_file", lambda place, tops: None)
    assert check_suite(WORDS) == tuple(RULES)
    assert get_origin("acceptability") == "generated"
    assert get_origin("wordnet") == "real"
    assert get_version("acceptability") == 1


@pytest.mark.parametrize("name", RULES)
def test_splits_are_balanced_and_have_few_texts_in_common(name: str) -> None:
    task = open_task(name)
    assert task.kind == "text"
    every = {split: texts_of(task, split) for split in task.sizes}
    assert tuple(map(len, every.values())) == RULE_SIZES
    for split in every:
        assert np.bincount(task.split(split).labels).tolist() == [len(every[split]) // 2] * 2
    if name != "sentiment":
        train = set(every["train"])
        assert len(train) > 0.99 * len(every["train"])
        assert len(train & set(every["test"])) <= 2
    assert every["test"] == texts_of(open_task(name), "test")
    for text in every["test"][:50]:
        assert len(as_parts(text)) == 1 + (name in PAIRS)
        for part in as_parts(text):
            assert part[0].isupper()
            assert part.endswith(".")


@pytest.mark.parametrize("name", BALANCED)
def test_both_classes_have_the_same_words(name: str) -> None:
    """With equal draws, the two classes are two orders of one bag of words."""
    key = 7
    for index in range(300):
        bags = [
            Counter(
                word
                for part in as_parts(RULES[name](label, Draws(key, index)))
                for word in split_words(part)
            )
            for label in (0, 1)
        ]
        assert bags[0] == bags[1]
        assert RULES[name](0, Draws(key, index)) != RULES[name](1, Draws(key, index))


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "by_side", "with_pairs"),
    [
        ("acceptability", False, False),
        ("acceptability", False, True),
        *((name, both, both) for name in PAIRS for both in (False, True)),
        *(
            pytest.param(name, by_side, not by_side, marks=pytest.mark.exhaustive)
            for name in PAIRS
            for by_side in (False, True)
        ),
    ],
)
def test_a_bag_of_words_is_at_chance(name: str, by_side: bool, with_pairs: bool) -> None:
    """1,000 test texts: three standard errors are 4.7 points. A single text has no sides."""
    assert abs(measure_bag(open_task(name), with_pairs, by_side) - 0.5) < 0.05


def test_words_alone_decide_many_sentiments() -> None:
    assert 0.6 < measure_bag(open_task("sentiment")) < 0.95


def agrees(sentence: str) -> bool:
    """Return whether the first noun and the main verb agree: exactly one of them ends in -s."""
    words = split_words(sentence)
    return words[1].endswith("s") != words[_find_main_verb(words)].endswith("s")


def _find_main_verb(words: list[str]) -> int:
    from lgzoo_words.lexicon import INTRANSITIVE

    forms = {inflect(verb, is_plural) for verb in INTRANSITIVE for is_plural in (False, True)}
    return next(i for i, word in enumerate(words) if word in forms)


def test_acceptable_sentences_agree() -> None:
    task = open_task("acceptability")
    texts, labels = texts_of(task, "test"), task.split("test").labels
    assert [agrees(text) for text in texts] == [bool(label) for label in labels]


def test_paraphrases_have_the_same_roles() -> None:
    """The roles are read from the sentences: the agent follows "by", or precedes "once"."""
    past = {make_past(verb) for verb in TRANSITIVE}

    def read_roles(sentence: str) -> tuple[str, str]:
        words = split_words(sentence)
        at = words.index("once")
        nouns = [" ".join(words[i + 1 : i + 3]) for i, word in enumerate(words) if word == "the"][
            :2
        ]
        assert words[at + 1] in past
        return (nouns[1], nouns[0]) if "by" in words else (nouns[0], nouns[1])

    task = open_task("paraphrase")
    labels = task.split("test").labels
    for (first, second), label in zip(texts_of(task, "test"), labels):
        assert (read_roles(first) == read_roles(second)) == bool(label)


def test_entailments_hold_in_every_model() -> None:
    """The specific noun or verb phrase is a subset: both sentences are evaluated on all models of
    two things.
    """
    quantifiers = {
        "all": lambda nouns, verbs: nouns <= verbs,
        "some": lambda nouns, verbs: bool(nouns & verbs),
        "none": lambda nouns, verbs: not nouns & verbs,
        "not": lambda nouns, verbs: not nouns <= verbs,
    }
    subsets = [frozenset(part) for part in ((), (0,), (1,), (0, 1))]
    results = set()
    for index in range(400):
        label = index % 2
        first, second = write_entailment(label, Draws(11, index))
        quantifier = next(word for word in split_words(first) if word in quantifiers)
        holds = quantifiers[quantifier]
        longer = max(first, second, key=len)
        # A restriction stands before the verb, a detail after it
        words = split_words(longer)
        verb = next(i for i, word in enumerate(words) if word in {make_past(v) for v in TRANSITIVE})
        is_noun = words[verb - 1] != words[words.index("of") + 2]

        follows = True
        for noun, done, smaller in product(subsets, repeat=3):
            specific = holds(noun & smaller, done) if is_noun else holds(noun, done & smaller)
            general = holds(noun, done)
            truth = (specific, general) if first == longer else (general, specific)
            follows &= not truth[0] or truth[1]
        assert follows == bool(label), (first, second)
        results.add((quantifier, is_noun, label))
    assert len(results) == 16


# Texts of packages.


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Create the files of all packages, with a few texts each."""
    monkeypatch.setenv(opening.VARIABLE, str(tmp_path))
    paragraphs = [
        f"Package: p{n:04}\nSource: s{n // 2} (1.0)\nSection: {'contrib/' * (n % 3 == 0)}"
        f"{opening.SECTIONS[n % 20]}\nDescription: a thing for {n}\n with: a second line"
        for n in range(800)
    ]
    paragraphs += ["Package: odd\nSection: libs\nDescription: of another section", "Package: bare"]
    (tmp_path / "dumpavail").write_text("\n\n".join(paragraphs))
    (tmp_path / "wordnet").mkdir()
    lines = ["  1 This software and database is being provided", "  2 to you, the LICENSEE"]
    lines += [
        f'{n:08} {3 + n % 26:02} n 01 word 0 001 @ 00001740 n 0000 | a kind of {n}; "an example"  '
        for n in range(800)
    ]
    (tmp_path / "wordnet" / "data.noun").write_text("\n".join(lines) + "\n")
    rows = [f"{n}\t{(n % 7 - 3) / 2}\tfilm {n}, seen" for n in range(200)]
    inner = pack(
        {"hutto_ICWSM_2014/movieReviewSnippets_GroundTruth.txt": "\r\n".join(rows).encode()}
    )
    name = "vaderSentiment-3.3.2/additional_resources/hutto_ICWSM_2014.tar.gz"
    (tmp_path / opening.SNIPPETS_ARCHIVE).write_bytes(pack({name: inner}))
    return tmp_path


def pack(files: dict[str, bytes]) -> bytes:
    stream = io.BytesIO()
    with tarfile.open(fileobj=stream, mode="w:gz") as archive:
        for name, content in files.items():
            member = tarfile.TarInfo(name)
            member.size = len(content)
            archive.addfile(member, io.BytesIO(content))
    return stream.getvalue()


REAL = {"debian_sections": 20, "wordnet": 26, "snippets": 2}


@pytest.mark.usefixtures("place")
@pytest.mark.parametrize(("name", "classes"), REAL.items())
def test_real_texts_are_read(name: str, classes: int) -> None:
    task = open_task(name)
    assert (task.kind, task.classes) == ("text", classes)
    every = [text for split in task.sizes for text in texts_of(task, split)]
    assert len(every) == len(set(every))
    assert texts_of(open_task(name), "test") == texts_of(task, "test")
    for split in task.sizes:
        for text, label in zip(texts_of(task, split), task.split(split).labels.tolist()):
            number = int("".join(filter(str.isdecimal, text)))
            assert (
                label
                == {
                    "debian_sections": number % 20,
                    "wordnet": number % 26,
                    "snippets": int(number % 7 > 3),
                }[name]
            )
    assert "results are not comparable" in task.notes[0]
    if name == "snippets":
        assert len(every) == sum(n % 7 != 3 for n in range(200))


@pytest.mark.usefixtures("place")
def test_no_source_package_is_in_two_splits() -> None:
    task = open_task("debian_sections")
    sources = {
        split: {int(text.split()[-1]) // 2 for text in texts_of(task, split)}
        for split in task.sizes
    }
    assert not sources["train"] & sources["test"]
    assert not sources["train"] & sources["validation"]


@pytest.mark.parametrize(
    ("name", "command"),
    [
        ("debian_sections", "apt-get update"),
        ("wordnet", "apt-get install wordnet-base"),
        ("snippets", "pip download --no-deps --no-binary :all: vaderSentiment==3.3.2"),
    ],
)
def test_missing_texts_are_refused_with_the_command(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, command: str
) -> None:
    monkeypatch.delenv(opening.VARIABLE, raising=False)
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.chdir(tmp_path)
    if name == "wordnet" and Path("/usr/share/wordnet/data.noun").is_file():
        pytest.skip("WordNet is installed")
    with pytest.raises(Unavailable, match=command) as error:
        open_task(name)
    assert "\n" not in str(error.value)


def test_damaged_files_are_named(place: Path) -> None:
    (place / "wordnet" / "data.noun").write_text("  1 licence\n00001740 99 n 01 | a thing\n")
    with pytest.raises(BadData, match="line 2 is not a synset"):
        open_task("wordnet")
    archive = place / opening.SNIPPETS_ARCHIVE
    for content in (b"x", pack({"other.txt": b"x"}), archive.read_bytes()[:200]):
        archive.write_bytes(content)
        with pytest.raises(BadData, match=r"is not the source package of vaderSentiment 3\.3\.2"):
            open_task("snippets")
    (place / "dumpavail").write_text("Package: bare\n")
    with pytest.raises(Unavailable, match="apt-get update"):
        open_task("debian_sections")
