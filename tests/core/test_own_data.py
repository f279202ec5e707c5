"""The user's data on this machine is reopened for artifacts that were made from it here, and only
for those.
"""

from __future__ import annotations

import io
import json
import os
import shutil
import subprocess
import sys
import tarfile
import warnings
from collections.abc import Callable
from dataclasses import replace as replace_fields
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

import learngene_zoo as lg
from learngene_zoo import torch_hub
from learngene_zoo.artifacts import own_data
from learngene_zoo.artifacts.descendant import assemble
from learngene_zoo.artifacts.own_data import LocalOrigin
from learngene_zoo.cli.main import main
from learngene_zoo.errors import BadFile, TrainingWarning, WrongCall
from learngene_zoo.method.installed import METHODS
from learngene_zoo.settings import Recipe
from learngene_zoo.tasks.catalogue import _find_missing
from learngene_zoo.testing import make_tiny_ancestry

RECIPE = Recipe(epochs=0)


def draw_pictures(folder: Path, seed: int = 0, count: int = 12) -> None:
    """Write a few pictures of three classes."""
    generator = np.random.default_rng(seed)
    for name in ("a", "b", "c"):
        (folder / name).mkdir(parents=True)
        for number in range(count):
            pixels = generator.integers(0, 256, (32, 32, 3), dtype=np.uint8)
            Image.fromarray(pixels).save(folder / name / f"{number}.png")


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return the working folder, with images in `mine`, in a new session."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(own_data, "_session", own_data.OrderedDict())
    draw_pictures(tmp_path / "mine")
    return tmp_path


def make_model(out: str | None = "model", task: str = "folder:mine") -> lg.Descendant:
    """Fine-tune a small model for zero epochs on the images."""
    small = lg.expand("first_k", layers=1, task=task)
    return lg.finetune(small, task=task, recipe=RECIPE, out=out)  # type: ignore[return-value]


def collect_warnings(verb: Callable[..., object], *args: object, **options: object) -> list[str]:
    """Call a function and return the texts of its warnings about the training of models."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        verb(*args, **options)
    return [str(one.message) for one in caught if one.category is TrainingWarning]


def forget_session() -> None:
    """Keep only the state that another process would have."""
    own_data._session.clear()


@pytest.mark.slow
def test_a_model_made_here_is_evaluated_compared_exported_and_finetuned_without_naming_its_data(
    place: Path,
) -> None:
    make_model()
    forget_session()
    assert lg.evaluate("model").images > 0
    assert lg.compare("model", "model")
    lg.finetune("model", recipe=RECIPE, out="again")
    forget_session()
    assert lg.evaluate("again").images > 0
    lg.export("again", "again.onnx", dtype="int8", max_drop=1.0)
    forget_session()
    assert lg.evaluate("again.onnx").images > 0
    with Path("again.onnx").open("ab") as file:
        file.write(b"\x72\x00")  # an empty field, which ONNX skips: another file
    with pytest.raises(WrongCall, match=r"opened only if you name it: add task=.folder:mine."):
        lg.evaluate("again.onnx")


def test_a_copy_is_known_wherever_it_lies_and_from_every_folder(
    place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    make_model()
    forget_session()
    shutil.copytree("model", "elsewhere/copy")
    shutil.rmtree("model")
    monkeypatch.chdir("elsewhere")
    assert lg.evaluate("copy").images > 0


def test_what_was_made_in_memory_is_known_in_its_session(place: Path) -> None:
    model = make_model(out=None)
    assert lg.evaluate(model).images > 0
    assert not (own_data._find_folder() / own_data.FILE).exists()
    forget_session()
    with pytest.raises(WrongCall, match=r"opened only if you name it: add task=.folder:mine."):
        lg.evaluate(model)


def edit_config(folder: str) -> None:
    config = json.loads(Path(folder, "config.json").read_text())
    config["learngene"]["licence_of"] = "another"
    Path(folder, "config.json").write_text(json.dumps(config))


def take_other_weights(folder: str) -> None:
    lg.expand("first_k", layers=1, task="folder:mine", run=lg.Run(seed=1), out="other")
    shutil.copy("other/model.safetensors", Path(folder, "model.safetensors"))


def take_a_strangers(folder: str) -> None:
    shutil.rmtree(folder)
    gene = lg.expand("first_k", layers=2, classes=3, run=lg.Run(seed=2))
    gene.for_task("folder:mine", ("a", "b", "c"), seed=0).save(folder)


@pytest.mark.parametrize("change", [edit_config, take_other_weights, take_a_strangers])
def test_another_artifact_in_the_same_place_opens_nothing(
    place: Path, change: Callable[[str], None]
) -> None:
    make_model()
    change("model")
    with pytest.raises(WrongCall, match=r"opened only if you name it: add task=.folder:mine."):
        lg.evaluate("model")


def add(place: Path) -> None:
    shutil.copy(place / "mine/a/0.png", place / "mine/a/new.png")


def swap(place: Path) -> None:
    for old, new in (("a", "x"), ("b", "a"), ("x", "b")):
        (place / "mine" / old).rename(place / "mine" / new)


def repaint(place: Path) -> None:
    file = place / "mine/a/0.png"
    facts = file.stat()
    content = bytearray(file.read_bytes())
    content[-20] ^= 1
    file.write_bytes(content)
    os.utime(file, ns=(facts.st_atime_ns, facts.st_mtime_ns))


def remove(place: Path) -> None:
    shutil.rmtree(place / "mine")


def replace(place: Path) -> None:
    remove(place)
    draw_pictures(place / "mine", seed=1)


@pytest.mark.parametrize("change", [add, swap, repaint, replace])
def test_data_that_changed_have_to_be_named(
    place: Path, monkeypatch: pytest.MonkeyPatch, change: Callable[[Path], None]
) -> None:
    make_model()
    change(place)
    location = place / "mine"
    says = rf"^the data 'folder:mine' \({location}\) has changed .* name it: add task=.folder:"
    with pytest.raises(WrongCall, match=rf"{says}mine.$"):
        lg.evaluate("model")
    (place / "elsewhere").mkdir()
    monkeypatch.chdir(place / "elsewhere")
    with pytest.raises(WrongCall, match=f"{says}{location}.$"):
        lg.evaluate("../model")


@pytest.mark.parametrize("roles", ["", ":train=.,test=test"])
def test_data_that_are_gone_are_called_missing(place: Path, roles: str) -> None:
    if roles:
        draw_pictures(place / "mine" / "test", seed=1)
    make_model(task=f"folder:mine{roles}")
    remove(place)
    says = rf"is missing: there is no {place / 'mine'}; name its path now: add task=.folder:PATH.$"
    with pytest.raises(WrongCall, match=says):
        lg.evaluate("model")


def test_data_that_cannot_be_opened_are_not_proposed_again(place: Path) -> None:
    make_model()
    for file in (place / "mine/a").iterdir():
        file.unlink()
    says = r"cannot be opened \(class folder .*\); correct this, .* add task=.folder:PATH.$"
    with pytest.raises(WrongCall, match=says):
        lg.evaluate("model")


def test_the_pictures_of_a_learngene_are_named_with_an_option_only(place: Path) -> None:
    lg.extract("closed_form", preset="smoke", tasks="folder:mine", out="gene")
    add(place)
    says = rf"\({place / 'mine'}\) has changed .* name it: add calibration=.folder:mine.$"
    with pytest.raises(WrongCall, match=says):
        lg.expand("gene", layers=2)
    remove(place)
    says = rf"is missing: there is no {place / 'mine'}; .* add calibration=.folder:PATH.$"
    with pytest.raises(WrongCall, match=says):
        lg.expand("gene", layers=2)


OTHER_CUT = "differs from the data that {} was made from, and its test images are cut"


def test_a_model_is_evaluated_on_another_cut_with_a_warning(
    place: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    make_model()
    forget_session()
    assert not collect_warnings(lg.evaluate, "model", task="folder:mine")
    add(place)
    for task in ("folder:mine", f"folder:{place}/mine/"):
        (text,) = collect_warnings(lg.evaluate, "model", task=task)
        assert OTHER_CUT.format("the model") in text
        assert text.endswith("keep both apart, in the folders train/ and test/")
    assert not collect_warnings(lg.evaluate, "model", task="folder:mine", split="train")
    make_model(out="new")
    (text,) = collect_warnings(lg.compare, "new", "model")
    assert OTHER_CUT.format("the second model") in text
    with pytest.raises(SystemExit, match="0"):
        main(["evaluate", "model", "--task", "folder:mine"])
    assert f"note: folder:mine {OTHER_CUT.format('the model')}" in capsys.readouterr().err


def test_a_test_folder_is_evaluated_without_a_warning(place: Path) -> None:
    draw_pictures(place / "split/train")
    draw_pictures(place / "split/test", seed=1)
    make_model(task="folder:split")
    shutil.copy(place / "mine/a/0.png", place / "split/train/a/new.png")

    def evaluate(split: str) -> list[str]:
        return collect_warnings(lg.evaluate, "model", task="folder:split", split=split)

    assert not evaluate("test")
    assert len(evaluate("validation")) == 1


@pytest.mark.slow
def test_a_learngene_made_here_is_expanded_with_its_own_pictures(place: Path) -> None:
    extracted = lg.extract("closed_form", preset="smoke", tasks="folder:mine", out="gene")
    forget_session()
    for learngene in ("gene", extracted):
        small = lg.expand(learngene, layers=2)
        assert (small.provenance["calibration"], small.task) == ("folder:mine", "folder:mine")
    lg.expand("gene", layers=2, out="small")
    forget_session()
    assert lg.evaluate("small").images > 0
    theirs = extracted.with_config(seed=5)
    with pytest.raises(
        WrongCall, match=r"'folder:mine'.* opened only if you name it: add task=.folder:mine."
    ):
        lg.expand(theirs, layers=2)
    assert (
        lg.expand(theirs, layers=2, calibration="folder:mine").provenance["calibration"]
        == "folder:mine"
    )


def test_a_local_ancestry_model_is_opened_again(place: Path) -> None:
    lg.expand("first_k", layers=3, classes=4, out="parent")
    closed_form = METHODS.load("closed_form").preset("smoke")
    named = replace_fields(closed_form, store=False)
    learngene = lg.extract(
        "closed_form", extractor=named, ancestries="parent", tasks="digits", out="gene"
    )
    assert learngene.config.ancestries[0].source == "parent"
    forget_session()
    assert lg.expand("gene", layers=2).spec.layers == 2
    with pytest.raises(
        WrongCall, match=r"'parent', which is opened only if you name it: add ancestry=.parent."
    ):
        lg.expand(learngene.with_config(seed=5), layers=2)
    shutil.rmtree("parent")
    lg.expand("first_k", layers=3, classes=4, run=lg.Run(seed=1), out="parent")
    with pytest.raises(BadFile, match="it is another model than the one before"):
        lg.expand("gene", layers=2)


def test_nothing_of_it_is_in_the_artifact(place: Path) -> None:
    make_model()
    lg.extract("closed_form", preset="smoke", tasks="folder:mine", out="gene")
    for file in [*Path("model").rglob("*"), *Path("gene").rglob("*")]:
        assert not file.is_file() or str(place).encode() not in file.read_bytes(), file


def test_in_torch_hub_it_is_said_what_to_type_there(place: Path) -> None:
    lg.extract("closed_form", preset="smoke", tasks="folder:mine", out="gene")
    forget_session()
    assert torch_hub.build("gene", layers=2).num_classes == 3
    add(place)
    with pytest.raises(WrongCall, match=r'name it: add calibration="folder:mine"$'):
        torch_hub.build("gene", layers=2)


def write_table(place: Path, seed: int) -> str:
    """Write pictures of two classes into a Parquet file."""
    pyarrow = pytest.importorskip("pyarrow")
    from pyarrow import parquet

    draw_pictures(place / f"drawn-{seed}", seed)
    files = sorted((place / f"drawn-{seed}").rglob("*.png"))
    rows = {
        "image": [{"bytes": file.read_bytes(), "path": None} for file in files],
        "label": [file.parent.name for file in files],
    }
    parquet.write_table(pyarrow.table(rows), place / "mine.parquet")
    return "parquet:mine.parquet"


def write_tar(place: Path, seed: int) -> str:
    """Write pictures with their labels into a tar."""
    draw_pictures(place / f"drawn-{seed}", seed)
    with tarfile.open(place / "mine.tar", "w") as tar:
        for number, file in enumerate(sorted((place / f"drawn-{seed}").rglob("*.png"))):
            for suffix, content in (("png", file.read_bytes()), ("cls", file.parent.name.encode())):
                member = tarfile.TarInfo(f"{number:04d}.{suffix}")
                member.size = len(content)
                tar.addfile(member, io.BytesIO(content))
    return "wds:mine.tar"


@pytest.mark.parametrize("write", [write_table, write_tar])
def test_tables_and_tars_are_known_until_they_change(
    place: Path, monkeypatch: pytest.MonkeyPatch, write: Callable[[Path, int], str]
) -> None:
    task = write(place, 5)
    make_model(task=task)
    forget_session()
    assert lg.evaluate("model").images > 0
    (place / "elsewhere").mkdir()
    monkeypatch.chdir(place / "elsewhere")
    assert not collect_warnings(lg.evaluate, "../model")
    monkeypatch.chdir(place)
    write(place, 6)
    with pytest.raises(WrongCall, match=rf"^the data '{task}' \(.*\) has changed .*other files"):
        lg.evaluate("model")
    (text,) = collect_warnings(lg.evaluate, "model", task=task)
    assert OTHER_CUT.format("the model") in text
    assert text.endswith("keep both apart, as splits of the data")


# The file.


ORIGINS = {"folder:x": LocalOrigin("folder:/x", "0" * 32)}


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"{",
        b"[]",
        b"\xff\xfe",
        b'{"format": 2, "artifacts": {}}',
        b'{"format": 1}',
        b'{"format": 1, "artifacts": []}',
        b'{"format": 1, "artifacts": {"x": {}}}',
        b'{"format": 1, "artifacts": {"%s": {"folder:x": ["folder:/y"]}}}' % (b"0" * 64),
        b'{"format": 1, "artifacts": {"%s": {"folder:x": ["folder:/y", 3]}}}' % (b"0" * 64),
        b'{"format": 1, "artifacts": {"%s": {"folder:x": ["folder:/y\\n", "0"]}}}' % (b"0" * 64),
        b'{"format": 1, "artifacts": {"%s": [1]}}' % (b"0" * 64),
        b'{"format": 1, "artifacts": {"%s": {"folder:x": "ab"}}}' % (b"0" * 64),
    ],
)
def test_a_file_that_was_not_written_here_is_ignored_with_one_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], content: bytes
) -> None:
    (tmp_path / own_data.FILE).write_bytes(content)
    assert own_data._read(tmp_path) == own_data._read(tmp_path) == {}
    message = capsys.readouterr().err
    assert message.count("\n") == 1
    assert message.endswith("it is ignored, so name your data again\n")


def test_the_file_is_bounded_and_the_oldest_leave_it(
    cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(own_data, "MAX_ARTIFACTS", 3)
    for number in (0, 1, 2, 0, 3):
        own_data._write(f"{number:064x}", ORIGINS)
    assert [int(digest, 16) for digest in own_data._read(cache)] == [2, 0, 3]
    monkeypatch.setattr(own_data, "MAX_BYTES", 400)
    own_data._write(f"{4:064x}", ORIGINS)
    assert [int(digest, 16) for digest in own_data._read(cache)][-1] == 4
    assert (cache / own_data.FILE).stat().st_size <= 400
    assert (cache / own_data.FILE).stat().st_mode & 0o077 == 0


def test_what_is_too_long_or_cannot_be_printed_is_not_remembered() -> None:
    assert own_data._is_storable("folder:x", LocalOrigin("folder:/x", "0"))
    for text in ("", "x" * 3000, "a\nb", "\ud800"):
        assert not own_data._is_storable("folder:x", LocalOrigin(text, "0"))
        assert not own_data._is_storable(text, LocalOrigin("folder:/x", "0"))
    assert not own_data._is_storable("folder:x", LocalOrigin("folder:/x", ""))


def test_a_cache_that_cannot_be_written_costs_nothing_but_the_word(
    place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (place / "file").write_text("")
    monkeypatch.setenv("LGZOO_CACHE", str(place / "file"))
    make_model()
    forget_session()
    with pytest.raises(WrongCall, match="opened only if you name it"):
        lg.evaluate("model")


def test_several_processes_write_at_once(cache: Path) -> None:
    code = (
        "import sys; from learngene_zoo.artifacts.own_data import _write, LocalOrigin\nfor n in"
        " range(8): _write(f'{int(sys.argv[1]) * 8 + n:064x}', {'folder:x':"
        " LocalOrigin('folder:/x', '0')})"
    )
    writers = [subprocess.Popen([sys.executable, "-c", code, str(number)]) for number in range(3)]
    assert [writer.wait(60) for writer in writers] == [0, 0, 0]
    assert {int(digest, 16) for digest in own_data._read(cache)} == set(range(24))


@pytest.mark.parametrize(
    ("reference", "location"),
    [
        ("folder:x", "folder:{cwd}/x"),
        ("parquet:../x.parquet", "parquet:{parent}/x.parquet"),
        ("wds:x-{{000..003}}.tar", "wds:{cwd}/x-{{000..003}}.tar"),
        ("folder:~/x", "folder:{home}/x"),
        ("wds:https://host/x.tar", "wds:https://host/x.tar"),
        ("hf:org/name", "hf:org/name"),
        ("digits", "digits"),
    ],
)
def test_a_reference_is_located(place: Path, reference: str, location: str) -> None:
    names = {"cwd": str(place), "parent": str(place.parent), "home": os.path.expanduser("~")}
    assert own_data.locate(reference.format(**names)) == location.format(**names)


def test_no_data_is_assumed_for_a_model_of_somebody_elses_ancestry_model(tmp_path: Path) -> None:
    tiny = make_tiny_ancestry()
    record = {"source": "timm:vit_tiny_patch16_224", "license": "apache-2.0"}
    model = replace_fields(
        assemble(tiny.spec, {}, seed=0), task=None, provenance={"ancestries": [record]}
    )
    with pytest.raises(
        WrongCall,
        match=r"does not record a task to use; give the task: lgzoo evaluate MODEL --task folder:PATH",
    ):
        lg.evaluate(model)


def test_the_path_without_its_options_is_missing(tmp_path: Path) -> None:
    table = tmp_path / "a.csv"
    assert _find_missing(f"csv:{table}:label=y") == str(table)
    table.write_text("text,y\n")
    assert _find_missing(f"csv:{table}:label=y") == ""
