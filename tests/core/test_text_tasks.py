"""A user's own texts, and texts of the Hub in the layouts of their sources."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from learngene_zoo.errors import BadData, WrongCall, ZooError
from learngene_zoo.tasks import hub_data
from learngene_zoo.tasks.catalogue import check_name, locate_task, open_task
from learngene_zoo.tasks.first_row import read_first_row
from learngene_zoo.tasks.splits.cutting import ensure_validation
from learngene_zoo.tasks.task import Task, stamp_task
from learngene_zoo.tasks.unlabelled.opening import open_images


@pytest.fixture(autouse=True)
def _own_cache(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> None:
    import datasets

    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", tmp_path_factory.mktemp("cache"))


def write_csv(path: Path, rows: int = 40, header: str = "text,label") -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    lines = [header, *(f'"text {n}, of {n % 3}",{("no", "yes")[n % 2]}' for n in range(rows))]
    path.write_text("\n".join(lines), encoding="utf-8")
    return path


def write_folder(top: Path, texts: int = 12, classes: tuple[str, ...] = ("neg", "pos")) -> Path:
    for name in classes:
        (top / name).mkdir(parents=True, exist_ok=True)
        for number in range(texts):
            (top / name / f"{number}.txt").write_text(f"{name} {number}", encoding="utf-8")
    return top


def texts_of(task: Task, split: str = "train") -> list[Any]:
    chosen = task.split(split)
    return list(chosen.__getitems__(range(len(chosen))))


# Forms.


def test_a_csv_file_is_a_task_of_texts(tmp_path: Path) -> None:
    path = write_csv(tmp_path / "reviews.csv")
    task = open_task(f"csv:{path}")
    assert (task.kind, task.metric, task.image_size) == ("text", "accuracy", 0)
    assert task.class_names == ("no", "yes")
    assert dict(task.sizes) == {"train": 29, "validation": 3, "test": 8}
    every = [text for split in task.sizes for text in texts_of(task, split)]
    assert sorted(every) == sorted(f"text {n}, of {n % 3}" for n in range(40))
    split = task.split("test")
    for text, label in zip(texts_of(task, "test"), split.labels):
        assert label == int(text.split()[1].rstrip(",")) % 2
    again = open_task(f"csv:{path}")
    assert texts_of(again, "test") == texts_of(task, "test")
    assert stamp_task(again) == stamp_task(task)
    assert task.identity == again.identity
    path.write_text(path.read_text().replace("text 7", "text seven"))
    assert stamp_task(open_task(f"csv:{path}")) != stamp_task(task)
    assert locate_task(task, f"csv:{path}").location == f"csv:{path}"


def test_columns_are_found_by_usual_names_in_capitals_too(tmp_path: Path) -> None:
    for number, header in enumerate(("Text,Label", "review,sentiment", "Review,Sentiment")):
        task = open_task(f"csv:{write_csv(tmp_path / f'{number}.csv', header=header)}")
        assert task.class_names == ("no", "yes")
    lines = ['"Label","label","Sentence1","sentence2"', *['x,a,"b c",d', 'y,e,"f g",h'] * 20]
    (tmp_path / "pairs.csv").write_text("\n".join(lines))
    task = open_task(f"csv:{tmp_path / 'pairs.csv'}")
    assert (task.class_names, texts_of(task)[0]) == (("a", "e"), ("b c", "d"))


def test_the_columns_can_be_named(tmp_path: Path) -> None:
    path = tmp_path / "pairs.csv"
    lines = ["id,first,second,verdict"]
    path.write_text("\n".join([*lines, *(f"i{n},a {n},b {n},{n % 2}" for n in range(20))]))
    with pytest.raises(BadData, match="no label column"):
        open_task(f"csv:{path}")
    with pytest.raises(BadData, match=r"several columns of texts .*text=id\+first"):
        open_task(f"csv:{path}:label=verdict")
    task = open_task(f"csv:{path}:text=first+second,label=verdict")
    assert set(texts_of(task)) <= {(f"a {n}", f"b {n}") for n in range(20)}
    assert open_task(f"csv:{path}:label=verdict,text=second").class_names == ("0", "1")
    with pytest.raises(BadData, match="no column 'third'"):
        open_task(f"csv:{path}:text=third,label=verdict")
    for wrong in ("text=a+b+c", "text=a,text=b"):
        with pytest.raises(WrongCall, match="each once"):
            open_task(f"csv:{path}:{wrong}")


def test_files_of_a_folder_are_splits(tmp_path: Path) -> None:
    write_csv(tmp_path / "train.csv", 20)
    write_csv(tmp_path / "val.csv", 6)
    write_csv(tmp_path / "test.csv", 4)
    task = open_task(f"csv:{tmp_path}")
    assert dict(task.sizes) == {"train": 20, "validation": 6, "test": 4}
    tabs = tmp_path / "tabs" / "one.tsv"
    tabs.parent.mkdir()
    tabs.write_text("text\tlabel\n" + "\n".join(f"a, b {n}\t{n % 2}" for n in range(20)))
    assert "a, b 0" in {*texts_of(open_task(f"csv:{tabs}")), "a, b 0"}
    assert open_task(f"csv:{tabs}").sizes["train"] == 14
    capitals = tabs.rename(tabs.with_suffix(".TSV"))
    assert open_task(f"csv:{capitals}").sizes["train"] == 14


def test_a_jsonl_file_holds_pairs(tmp_path: Path) -> None:
    path = tmp_path / "rows.jsonl"
    rows = [
        {"premise": f"p {n}", "hypothesis": f"h {n}", "label": ["a", "b", "c"][n % 3]}
        for n in range(30)
    ]
    path.write_text("\n".join(map(json.dumps, rows)) + "\n\n")
    task = open_task(f"jsonl:{path}")
    assert task.classes == 3
    assert set(texts_of(task)) <= {(f"p {n}", f"h {n}") for n in range(30)}
    row = read_first_row(f"jsonl:{path}", offline=True)
    assert row["columns"][0] == "first text: text"
    assert row["first_text"].startswith("p ")


@pytest.mark.parametrize("kind", [pa.string(), pa.large_string()])
def test_a_parquet_file_without_images_holds_texts(tmp_path: Path, kind: Any) -> None:
    texts = pa.array([f"text {n}" for n in range(30)], kind)
    path = tmp_path / "one.parquet"
    pq.write_table(
        pa.table({"idx": range(30), "body": texts, "label": [n % 2 for n in range(30)]}), path
    )
    task = open_task(f"parquet:{path}")
    assert (task.kind, task.class_names) == ("text", ("0", "1"))
    assert stamp_task(task)


def test_a_folder_of_texts_is_sorted_by_class(tmp_path: Path) -> None:
    task = open_task(f"folder:{write_folder(tmp_path / 'flat')}")
    assert (task.kind, task.class_names) == ("text", ("neg", "pos"))
    assert dict(task.sizes) == {"train": 17, "validation": 2, "test": 5}
    divided = tmp_path / "divided"
    write_folder(divided / "train")
    write_folder(divided / "test", 3)
    (divided / "train" / "pos" / "notes.md").write_text("x")
    (divided / "README.txt").write_text("read me")
    task = open_task(f"folder:{divided}")
    assert (task.sizes["test"], task.sizes["train"]) == (6, 22)
    assert "1 file left out" in task.notes[0]
    assert sorted(texts_of(task, "test"))[0] == "neg 0"
    named = open_task(f"folder:{divided}:train=test,test=train")
    assert named.sizes["test"] == 24


def test_copies_of_texts_are_counted(tmp_path: Path) -> None:
    rows = [f"text {number},{'ab'[number % 2]},train" for number in range(20)]
    rows += ["text 0,a,train", "text 0,a,train", "text 1,a,train"]  # copies; one of another class
    rows += ["text 2,a,test", "text 3,b,test", "new,a,test", "more,b,test"]
    rows += ["text 4,a,validation", "others,b,validation"]
    (tmp_path / "a.csv").write_text("\n".join(["text,label,split", *rows]))
    assert open_task(f"csv:{tmp_path / 'a.csv'}").notes == (
        "2 of 4 test texts are also in train, so that test results are too good; remove the copies",
        "1 of 2 validation texts is also in train",
        "3 of 23 training texts are copies of others, 1 with several classes",
    )
    divided = tmp_path / "divided"
    write_folder(divided / "train")
    write_folder(divided / "test", 3)
    assert "6 of 6 test texts are also in train" in open_task(f"folder:{divided}").notes[0]
    assert open_task(f"folder:{divided / 'train'}").notes == ()


def test_a_pair_is_a_copy_only_if_both_texts_are(tmp_path: Path) -> None:
    rows = [f"same,text {number},{'ab'[number % 2]},train" for number in range(20)]
    rows += ["same,text 0,a,test", "same,new,b,test", "text 1,same,b,test"]
    (tmp_path / "a.csv").write_text("\n".join(["text_a,text_b,label,split", *rows]))
    (note,) = open_task(f"csv:{tmp_path / 'a.csv'}").notes
    assert note.startswith("1 of 3 test texts is also in train")


def test_a_readme_does_not_make_a_folder_of_images_one_of_texts(tmp_path: Path) -> None:
    from PIL import Image

    for name in ("cat", "dog"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "README.txt").write_text("cats and dogs")
        for number in range(8):
            Image.new("RGB", (8, 8), (number, 0, 0)).save(tmp_path / name / f"{number}.png")
    assert open_task(f"folder:{tmp_path}").kind == "classification"


def test_validation_and_unlabelled_texts(tmp_path: Path) -> None:
    task = ensure_validation(open_task(f"csv:{write_csv(tmp_path / 'a.csv')}"))
    assert task.sizes["validation"] == 3
    plain = open_images(f"csv:{tmp_path / 'a.csv'}", offline=True)
    assert (plain.kind, plain.classes, plain.sizes["test"]) == ("text", 1, 0)
    assert not plain.split("train").labels.any()
    assert texts_of(plain) == texts_of(task)
    assert "8 test texts" in plain.notes[-1]


def show(*words: str) -> tuple[str, set[str]]:
    """Return the output of `lgzoo show` in another process, and the modules that it imports."""
    code = (
        "import atexit, sys; atexit.register(lambda: print('LOADED', *sys.modules));"
        "from learngene_zoo.cli.main import main; main(sys.argv[1:], standalone_mode=False)"
    )
    command = [sys.executable, "-c", code, "show", *words]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(path for path in sys.path if path)}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
    printed, _, modules = done.stdout.partition("LOADED")
    return printed, set(modules.split())


@pytest.mark.slow
def test_a_table_is_shown_with_its_columns_and_without_heavy_imports(tmp_path: Path) -> None:
    path = write_csv(tmp_path / "a.csv", header="body,stars")
    printed, modules = show(f"csv:{path}:text=body,label=stars", "--json")
    row = json.loads(printed)
    assert row["class_names"] == ["no", "yes"]
    assert (row["text_columns"], row["pairs"], row["label_column"]) == (["body"], False, "stars")
    assert not modules & {"torch", "datasets", "pandas", "pyarrow"}
    path = tmp_path / "a.jsonl"
    lines = [{"premise": "a", "hypothesis": "b", "label": n % 12} for n in range(60)]
    path.write_text("\n".join(map(json.dumps, lines)))
    printed, modules = show(f"jsonl:{path}")
    assert "premise,hypothesis" in " ".join(printed.split())
    assert "8,9,... (2 more)" in " ".join(printed.split())
    assert not modules & {"torch", "datasets", "pandas", "pyarrow"}


# Wrong input.


def test_empty_texts_are_named(tmp_path: Path) -> None:
    path = write_csv(tmp_path / "a.csv")
    lines = path.read_text().split("\n")
    lines[4] = '"  ",yes'
    path.write_text("\n".join(lines))
    with pytest.raises(BadData, match=r"a\.csv line 5 is empty"):
        open_task(f"csv:{path}")
    lines[5] = ",no"
    path.write_text("\n".join(lines))
    with pytest.raises(BadData, match=r"line 5 is empty \(2 of 40 are\)"):
        open_task(f"csv:{path}")
    folder = write_folder(tmp_path / "folder")
    (folder / "pos" / "3.txt").write_text("\n")
    with pytest.raises(BadData, match=r"pos/3\.txt is empty"):
        open_task(f"folder:{folder}")


def test_rows_of_blanks_are_skipped_and_blanks_around_labels_removed(tmp_path: Path) -> None:
    path = tmp_path / "a.csv"
    parts = ("train", " train ", "validation", " test")
    rows = [f" text {n}, {('no', 'yes ')[n % 2]},{parts[n % 4]}" for n in range(40)]
    path.write_text("\n".join(["text, label , split", *rows[:20], " , ,\t", *rows[20:], "", "  "]))
    task = open_task(f"csv:{path}")
    assert task.class_names == ("no", "yes")
    assert task.sizes == {"train": 20, "validation": 10, "test": 10}
    assert texts_of(task)[0] == " text 0", "texts are kept as they are"
    path.write_text("text,label\n" + "a,1\nb,2\n" * 20 + "c,  \n")
    with pytest.raises(BadData, match=r"a\.csv line 42: column 'label' is empty"):
        open_task(f"csv:{path}")


@pytest.mark.parametrize(("pair", "which"), [(("a", " "), "second"), ((" ", "a"), "first")])
def test_an_empty_text_of_a_pair_is_named(
    tmp_path: Path, pair: tuple[str, str], which: str
) -> None:
    path = tmp_path / "a.csv"
    rows = [f"one {n},two {n},{n % 2}" for n in range(40)]
    path.write_text("\n".join(["text1,text2,label", *rows, f"{pair[0]},{pair[1]},1"]))
    words = rf"a\.csv line 42: the {which} text of the pair is empty; write a text or remove it$"
    with pytest.raises(BadData, match=words):
        open_task(f"csv:{path}")


def test_rows_are_named_by_their_lines(tmp_path: Path) -> None:
    """A header, blank lines, texts of several lines, further files and splits are counted."""
    path = tmp_path / "a.csv"
    rows = [f'"{n}\nx",{n % 2},{("train", "test")[n > 9]}\n' for n in range(20)]
    path.write_text("text,label,split\n\n" + "".join(rows) + "y,,test\n")
    with pytest.raises(BadData, match=r"a\.csv line 43: column 'label' is empty"):
        open_task(f"csv:{path}")
    path.write_text("text,label,split\n" + "".join(rows) + "y,1,odd\n")
    with pytest.raises(BadData, match=r"a\.csv line 42: column 'split' says 'odd'"):
        open_task(f"csv:{path}")
    (tmp_path / "b").mkdir()
    for name, text in (("b/train-0.csv", "z"), ("b/train-1.csv", "")):
        write_csv(tmp_path / name)
        with (tmp_path / name).open("a") as file:
            file.write(f"\n{text},no\n")
    with pytest.raises(BadData, match=r"train-1\.csv line 42 is empty"):
        open_task(f"csv:{tmp_path / 'b'}")
    path = tmp_path / "a.jsonl"
    path.write_text('{"text": "a", "label": 0}\n\n{"text": "", "label": 1}\n')
    with pytest.raises(BadData, match=r"a\.jsonl line 3 is empty"):
        open_task(f"jsonl:{path}")


@pytest.mark.parametrize("quote", ["", '"'])
def test_a_label_of_many_digits_is_refused_in_one_line(tmp_path: Path, quote: str) -> None:
    labels = [quote + ("9" * 5000 if n % 2 else "1") + quote for n in range(20)]
    rows = [f'{{"text": "text {n}", "label": {label}}}' for n, label in enumerate(labels)]
    (tmp_path / "a.jsonl").write_text("\n".join(rows))
    words = (
        "'99999.* has 5,000 characters; expected at most 500"
        if quote
        else r"line 2 is not JSON .*4300 digits"
    )
    with pytest.raises(BadData, match=words):
        open_task(f"jsonl:{tmp_path / 'a.jsonl'}")
    (tmp_path / "a.csv").write_text("\n".join(["text,label", *(f"a,{label}" for label in labels)]))
    with pytest.raises(BadData, match=r"'99999.* has 5,000 characters; expected at most 500"):
        open_task(f"csv:{tmp_path / 'a.csv'}")


def test_other_encodings_are_named(tmp_path: Path) -> None:
    path = tmp_path / "a.csv"
    path.write_bytes("text,label\nthé,0\n".encode("latin-1"))
    with pytest.raises(BadData, match=r"a\.csv is not text in UTF-8 \(byte 13\)"):
        open_task(f"csv:{path}")
    folder = write_folder(tmp_path / "folder")
    (folder / "neg" / "0.txt").write_bytes("thé".encode("utf-16"))
    with pytest.raises(BadData, match=r"neg/0\.txt is not text in UTF-8"):
        open_task(f"folder:{folder}")
    for order, kind in (("le", "csv"), ("be", "jsonl")):
        wide = tmp_path / f"wide.{kind}"
        wide.write_bytes("\ufefftext,label\nthé,0\n".encode(f"utf-16-{order}"))
        with pytest.raises(
            BadData, match=r"wide\.\w+ is not text in UTF-8 but in UTF-16.*-f utf-16"
        ):
            open_task(f"{kind}:{wide}")
    path.write_bytes(b"\xef\xbb\xbf" + write_csv(tmp_path / "b.csv").read_bytes())
    assert open_task(f"csv:{path}").classes == 2, "a byte order mark is no part of a column's name"


def test_labels_that_are_lists_are_not_withheld(tmp_path: Path) -> None:
    rows = [{"text": f"text {n}", "labels": [("neg", "pos")[n % 2]]} for n in range(40)]
    for split, some in {"train": rows[:30], "test": rows[30:]}.items():
        (tmp_path / f"{split}.jsonl").write_text("\n".join(map(json.dumps, some)))
    task = open_task(f"jsonl:{tmp_path}:label=labels")
    assert task.class_names == ("neg", "pos")
    assert task.sizes["test"] == 10
    rows[35]["labels"] = ["neg", "pos"]
    (tmp_path / "test.jsonl").write_text("\n".join(map(json.dumps, rows[30:])))
    with pytest.raises(BadData, match="holds 2 labels"):
        open_task(f"jsonl:{tmp_path}:label=labels").split("test")


def test_a_test_file_without_labels_is_replaced(tmp_path: Path) -> None:
    write_csv(tmp_path / "train.csv")
    (tmp_path / "test.csv").write_text("text,label\nsome text,-1\nanother,-1\n")
    task = open_task(f"csv:{tmp_path}")
    assert "withheld: it is left out, and another one is cut from the training" in task.notes[0]
    assert task.cut_splits == ("test", "validation")
    classes = [("a", -1), ("b", 1)] * 20  # a class that is called -1
    lines = [f"{word} {number},{label}" for number, (word, label) in enumerate(classes)]
    (tmp_path / "train.csv").write_text("\n".join(["text,label", *lines]))
    assert open_task(f"csv:{tmp_path}").sizes["test"] == 2


def test_a_file_of_another_kind_is_named_with_its_kind(tmp_path: Path) -> None:
    table = write_csv(tmp_path / "a.csv")
    with pytest.raises(BadData, match=rf"{table} ends in \.csv; write csv:{table}"):
        open_task(f"jsonl:{table}")
    with pytest.raises(
        BadData, match=rf"{table} is a file, not a folder; did you mean csv:{table}"
    ):
        check_name(f"folder:{table}")
    (tmp_path / "photos").mkdir()
    with pytest.raises(BadData, match=r"did you mean .*photos\?"):
        check_name(f"folder:{tmp_path / 'photo'}")


TABLES: dict[str, tuple[dict[str, Any], str]] = {
    "no text": ({"size": [1, 2] * 10, "label": [0, 1] * 10}, "no image column"),
    "a number": (
        {"text": [1, 2] * 10, "label": [0, 1] * 10},
        "'text' is of type int64; store text",
    ),
    "no label": ({"text": ["a", "b"] * 10}, "no label column, only text"),
    "labels of a type": ({"text": ["a"] * 20, "label": [0.5] * 20}, "holds 0.5"),
    "one class": ({"text": ["a", "b"] * 10, "label": [3] * 20}, "has one class"),
    "too few": ({"text": ["a", "b"], "label": [0, 1]}, r"texts \(2, of 2 classes\)"),
    "texts that are numbers": (
        {"text": ["1", "-2.5e3"] * 10, "label": [0, 1] * 10},
        "column 'text' holds numbers, such as '1'; name the column of texts",
    ),
    "names of images": (
        {"text": ["a/1.png", "a/2.JPG"] * 10, "label": [0, 1] * 10},
        "column 'text' holds names of images, such as 'a/1.png'; such tables are of texts",
    ),
    "null": ({"text": ["a", None] * 10, "label": [0, 1] * 10}, "row 1 is empty"),
}


@pytest.mark.parametrize(("columns", "message"), TABLES.values(), ids=TABLES)
def test_wrong_tables_are_refused_in_one_line(
    tmp_path: Path, columns: dict[str, Any], message: str
) -> None:
    path = tmp_path / "a.parquet"
    pq.write_table(pa.table(columns), path)
    with pytest.raises(BadData, match=message) as error:
        open_task(f"parquet:{path}")
    assert "\n" not in str(error.value)


def test_labels_outside_the_classes_are_named(tmp_path: Path) -> None:
    from datasets import ClassLabel, Dataset, Features, Value

    features = Features({"text": Value("string"), "label": ClassLabel(names=["a", "b"])})
    table = Dataset.from_dict(
        {"text": [f"t {n}" for n in range(20)], "label": [n % 2 for n in range(19)] + [-1]},
        features=features,
    )
    table.to_parquet(tmp_path / "a.parquet")
    with pytest.raises(BadData, match="row 19 in train: expected a label 0 to 1, got -1"):
        open_task(f"parquet:{tmp_path / 'a.parquet'}")
    write_csv(tmp_path / "c" / "train.csv")
    (tmp_path / "c" / "test.csv").write_text("text,label\nx,maybe\n")
    with pytest.raises(
        BadData, match=r"class 'maybe' of test \(.*c/test\.csv line 2\) is not in train"
    ):
        open_task(f"csv:{tmp_path / 'c'}")
    with pytest.raises(
        BadData, match=r"c has no class folders with images; did you mean csv:.*/c\?"
    ):
        open_task(f"folder:{tmp_path / 'c'}")


FILES = {
    "a.csv": {
        "": "is empty",
        "text,label\n": "no rows",
        "text,text\na,b\n": "two columns 'text'",
        "text,label\na,b,c\n": r"a\.csv line 2 has 3 cells",
        "text,label\na\n": r"a\.csv line 2 has 1 cell, and the header has 2; add the missing",
        'text,label\n"a,b\n': "cannot be read as CSV",
        "label\n1\n2\n": "no column of texts",
        "text;label\na;1\nb, c, d;2\n": r"a\.csv looks separated by ';'; separate its cells by com",
        'text;label\n"a, b";1\n"c\n;d";2\n': "looks separated by ';'",
        "text\tlabel\na\t1\n": r"separated by tabs; .* by commas, or tabs in a \.tsv file",
        "text|label\na|1\n": r"separated by '\|'",
        "a text,python\nanother,c\n": r"no label column, only a text, python; call it 'label', or "
        r"name another one: csv:.*a\.csv:label=COLUMN \(the first row is read as the header\)",
    },
    "a.tsv": {"text,label\na,1\n": "separated by ','; separate its cells by tabs"},
    "a.jsonl": {
        "": "is empty",
        "{": "line 1 is not JSON",
        "[1]": "line 1 is not an object",
        '{"text": "a", "label": 0}\n{"text": "b"}': "line 2 and line 1 do not both have 'label'",
        '{"text": "a", "label": 0}\n{"text": 3, "label": 1}': "several types",
    },
}


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [(name, *pair) for name, pairs in FILES.items() for pair in pairs.items()],
)
def test_wrong_files_are_refused_in_one_line(
    tmp_path: Path, name: str, content: str, message: str
) -> None:
    (tmp_path / name).write_text(content)
    with pytest.raises(BadData, match=message) as error:
        open_task(f"{'jsonl' if name == 'a.jsonl' else 'csv'}:{tmp_path / name}")
    assert "\n" not in str(error.value)


def test_a_first_text_with_another_separator_is_no_header_of_several_cells(tmp_path: Path) -> None:
    path = tmp_path / "a.csv"
    path.write_text("one; two\n" + "three\n" * 20)
    assert open_images(f"csv:{path}").sizes["train"] == 18


def test_unknown_options_and_missing_kinds_are_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    write_csv(tmp_path / "texts.csv")
    with pytest.raises(WrongCall, match="unknown option 'txt'; expected text= or label="):
        check_name("csv:texts.csv:txt=text")
    with pytest.raises(WrongCall, match="expected text=COLUMN or label=COLUMN, got text="):
        check_name("csv:texts.csv:text=")
    with pytest.raises(BadData, match=r"no file or folder none\.csv:txt=text"):
        check_name("csv:none.csv:txt=text")
    for name, kind in (("texts.csv", "csv"), ("a.jsonl", "jsonl"), ("a.parquet", "parquet")):
        (tmp_path / name).touch()
        with pytest.raises(WrongCall, match=rf"did you mean {kind}:{name}\?"):
            check_name(name)
    with pytest.raises(WrongCall, match="see `lgzoo list tasks`"):
        check_name("none.csv")


def test_wrong_folders_are_refused(tmp_path: Path) -> None:
    with pytest.raises(BadData, match="no file or folder"):
        open_task(f"csv:{tmp_path / 'none.csv'}")
    with pytest.raises(BadData, match=r"holds no \.jsonl file"):
        open_task(f"jsonl:{tmp_path}")
    one = write_folder(tmp_path / "one", classes=("pos",))
    with pytest.raises(BadData, match="has one class"):
        open_task(f"folder:{one}")
    (one / "neg").mkdir()
    with pytest.raises(BadData, match=r"neg has 0 texts"):
        open_task(f"folder:{one}")
    tested = tmp_path / "tested"
    write_folder(tested / "train")
    write_folder(tested / "test", classes=("pos", "odd"))
    with pytest.raises(BadData, match="odd is in test but not in train"):
        open_task(f"folder:{tested}")
    write_folder(tmp_path / "only" / "test")
    with pytest.raises(BadData, match="no training folder"):
        open_task(f"folder:{tmp_path / 'only'}")


# The Hub's layouts.

GLUE = {
    "mrpc": (("sentence1", "sentence2"), ("not_equivalent", "equivalent"), "F1"),
    "cola": (("sentence",), ("unacceptable", "acceptable"), "matthews"),
    "rte": (("sentence1", "sentence2"), ("entailment", "not_entailment"), "accuracy"),
}


def make_split(columns: tuple[str, ...], names: tuple[str, ...], rows: int, hidden: bool) -> Any:
    from datasets import ClassLabel, Dataset, Features, Value

    texts = {column: [f"{column} {n}." for n in range(rows)] for column in columns}
    labels = [-1 if hidden else n % 2 for n in range(rows)]
    kinds = {column: Value("string") for column in columns}
    features = Features({**kinds, "label": ClassLabel(names=list(names)), "idx": Value("int32")})
    return Dataset.from_dict({**texts, "label": labels, "idx": range(rows)}, features=features)


def serve(monkeypatch: pytest.MonkeyPatch, folder: Path, files: dict[str, Any]) -> None:
    """Make the Hub's reader read Parquet files that the source's file names lie in."""
    from datasets import load_dataset

    paths = {}
    for split, table in files.items():
        paths[split] = str(folder / f"{split}-00000-of-00001.parquet")
        table.to_parquet(paths[split])

    def load(source: Any, offline: bool) -> tuple[Any, dict[str, Any]]:
        return load_dataset("parquet", data_files=paths), {"revision": "0" * 40, "licence": "other"}

    monkeypatch.setattr(hub_data, "load_hub_tables", load)


@pytest.mark.parametrize("config", GLUE)
def test_glue_is_validated_on_training_texts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, config: str
) -> None:
    columns, names, metric = GLUE[config]
    sizes = {"train": (40, False), "validation": (12, False), "test": (9, True)}
    files = {split: make_split(columns, names, *size) for split, size in sizes.items()}
    serve(monkeypatch, tmp_path, files)
    task = open_task(f"hf:nyu-mll/glue:{config}")
    assert (task.class_names, task.metric, task.licence) == (names, metric, "other")
    assert dict(task.sizes) == {"train": 36, "validation": 4, "test": 12}
    assert set(texts_of(task, "test")) == {
        texts[0] if len(texts) == 1 else texts
        for n in range(12)
        if (texts := tuple(f"{column} {n}." for column in columns))
    }
    assert "withheld" in task.notes[0]
    for split in task.sizes:
        assert set(np.unique(task.split(split).labels)) <= {0, 1}


def test_imdb_leaves_the_unlabelled_reviews_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    names = ("neg", "pos")
    sizes = {"train": (30, False), "test": (20, False), "unsupervised": (25, True)}
    files = {split: make_split(("text",), names, *size) for split, size in sizes.items()}
    serve(monkeypatch, tmp_path, files)
    task = open_task("hf:stanfordnlp/imdb")
    assert dict(task.sizes) == {"train": 27, "validation": 3, "test": 20}
    assert (task.class_names, task.metric) == (names, "accuracy")
    assert not any("unsupervised" in note or "withheld" in note for note in task.notes)


@pytest.mark.slow
def test_models_of_images_refuse_texts(tmp_path: Path) -> None:
    """Each verb that opens a task refuses it in one line, before anything is computed."""
    import learngene_zoo as lg

    reference = f"csv:{write_csv(tmp_path / 'a.csv')}"
    calls: list[Any] = [
        lambda: lg.expand("lsamd-mini", task=reference, layers=7),
        lambda: lg.extract("closed_form", tasks=reference),
        lambda: lg.recommend(reference, "lsamd"),
        lambda: lg.finetune(lg.expand("closed_form-mini", layers=3), task=reference),
        lambda: lg.evaluate(lg.expand("closed_form-mini", layers=3), task=reference),
    ]
    for call in calls:
        with pytest.raises(ZooError, match="is a text task, and the model takes images") as error:
            call()
        assert "\n" not in str(error.value)
