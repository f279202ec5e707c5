"""Suites of tasks come from entry points, like methods: a broken one is refused by name, and
`check_suite` names each broken law.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from click.testing import CliRunner

from learngene_zoo.cli.main import main
from learngene_zoo.cli.new_plugin import render_package
from learngene_zoo.errors import BadFile, BadPlugin, Unavailable, WrongCall
from learngene_zoo.tasks import catalogue
from learngene_zoo.tasks.catalogue import Suite, build_task, split_sizes
from learngene_zoo.tasks.task import Entry, HubSource, Samples, Task
from learngene_zoo.testing import check_suite


@pytest.fixture
def site(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return an empty folder that is searched for packages first."""
    folder = tmp_path / "site"
    folder.mkdir()
    monkeypatch.syspath_prepend(str(folder))
    return folder


SOURCE = """
from learngene_zoo.plugin import Entry, Suite, split_sizes

def entry(name):
    return Entry(name=name, title=name, classes=2, sizes=split_sizes(4, 2, 2), licence="MIT", description="-")

def open_task(entry, offline):
    raise AssertionError("nothing is opened")

SUITE = Suite(name="{name}", title="a stranger's", entries=tuple(map(entry, {tasks})), open=open_task)
"""


def install(
    site: Path, name: str, tasks: Sequence[str] = (), source: str | None = None, package: str = ""
) -> None:
    """Write the metadata of an installed package that registers a suite."""
    package = package or f"zoo_{name}_{len(sys.modules)}"  # a name that no other test has imported
    info = site / f"{package}-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {package}\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text(
        f"[{catalogue.SUITES.group}]\n{name} = {package}:SUITE\n"
    )
    (site / f"{package}.py").write_text(
        SOURCE.format(name=name, tasks=tuple(tasks)) if source is None else source
    )


def test_the_suites_in_tree_are_found_with_the_default_one_first() -> None:
    good, broken = catalogue.load_suites()
    assert [suite.name for suite in good] == [
        "mini",
        "decathlon",
        "lsamd12",
        "pictures",
        "tal_unseen",
        "vtab",
        "words",
    ]
    assert not broken
    names = [entry.name for entry in catalogue.list_entries()]
    assert len(set(names)) == len(names)
    assert {catalogue.DEFAULT_TARGET, catalogue.SOURCE_TASK, *catalogue.DEFAULT_TASKS} <= set(names)


def test_a_suite_and_its_tasks_are_found_by_name() -> None:
    assert catalogue.list_suites_of("objects") == ["mini"]
    assert catalogue.list_suites_of("source") == []
    assert catalogue.find_entry("source") in catalogue.find_suite("mini").entries
    assert catalogue.find_entry("sauce") is None
    with pytest.raises(WrongCall, match="no suite named 'mimi'; did you mean mini"):
        catalogue.find_suite("mimi")


def test_a_strangers_suite_is_listed_shown_and_named(site: Path) -> None:
    install(site, "faces", ["smiles", "frowns"])
    assert catalogue.list_suites_of("smiles") == ["faces"]
    assert catalogue.find_suite("faces").tasks == ("smiles", "frowns")
    listed = CliRunner().invoke(main, ["list", "tasks", "--all"])
    assert "frowns" in listed.stdout
    assert "smiles" in CliRunner().invoke(main, ["show", "faces"]).stdout
    with pytest.raises(BadPlugin, match="could not open smiles: AssertionError: nothing is opened"):
        catalogue.open_task("smiles")


BROKEN = [
    ("raise RuntimeError('not today')", "fails to import: RuntimeError: not today"),
    ("SUITE = 3", "expected a learngene_zoo Suite at .*, got int"),
    (
        "from lgzoo_mini.suite import MINI as SUITE",
        "is registered as 'faces' but its name is 'mini'; use the same name in both",
    ),
    (SOURCE.format(name="faces", tasks=()), "the suite 'faces' has no tasks"),
    (SOURCE.format(name="faces", tasks=("one", "one")), "uses the name 'one' twice"),
    (SOURCE.format(name="faces", tasks=("faces",)), "uses the name 'faces' twice"),
    (
        SOURCE.format(name="faces", tasks=("one",)).replace("open=", "tasks=('two',), open="),
        "task of the suite 'faces'",
    ),
    (
        SOURCE.format(name="faces", tasks=("glyphs",)),
        "uses the name 'glyphs', which another suite also uses",
    ),
    (
        SOURCE.format(name="faces", tasks=("decathlon",)),
        "uses the name 'decathlon', which another suite also uses",
    ),
]


@pytest.mark.slow
@pytest.mark.parametrize(("source", "words"), BROKEN)
def test_a_broken_suite_is_refused_by_name_and_disturbs_nobody(
    site: Path, source: str, words: str
) -> None:
    before = catalogue.list_entries()
    install(site, "faces", source=source)
    assert catalogue.list_entries() == before
    with pytest.raises(BadFile, match=words):
        catalogue.find_suite("faces")
    with pytest.raises(WrongCall, match="the suite faces cannot be used"):
        catalogue.open_task("smiles")
    listed = CliRunner().invoke(main, ["list", "tasks"])
    assert "suite faces" in listed.stderr
    assert "glyphs" in listed.stdout


@pytest.mark.slow
def test_the_doctor_names_every_broken_suite(site: Path) -> None:
    names = [f"faces{number}" for number in range(len(BROKEN))]
    for name, (source, _) in zip(names, BROKEN):
        install(site, name, source=source.replace("faces", name), package=f"zoo_broken_{name}")
    doctor = CliRunner().invoke(main, ["doctor", "--json"])
    assert doctor.exit_code == 1
    assert [name for name in names if f'"suite {name}"' not in doctor.stdout] == []


def test_of_two_suites_with_one_task_both_are_refused(site: Path) -> None:
    install(site, "one", ["cats", "dogs"])
    install(site, "two", ["dogs", "mice"])
    assert catalogue.find_entry("cats") is None
    assert [plugin.name for plugin in catalogue.load_suites()[1]] == ["one", "two"]


def test_a_suite_in_tree_stays_when_a_stranger_claims_its_name(site: Path) -> None:
    install(site, "mini", ["cats"])
    assert catalogue.find_suite("mini").tasks[0] == "objects"
    [broken] = catalogue.load_suites()[1]
    assert "is not used, as learngene_zoo has a suite 'mini' of its own" in broken.reason


def test_what_to_do_instead_is_added_where_the_hub_is_not_available() -> None:
    source = HubSource(reference="a/b", alternative="set X to a folder of it")
    with (
        pytest.raises(Unavailable, match="no network; or set X to a folder of it"),
        source.or_alternative(),
    ):
        raise Unavailable("no network")
    with (
        pytest.raises(Unavailable, match=r"no network$"),
        HubSource(reference="a/b").or_alternative(),
    ):
        raise Unavailable("no network")


# The contract.


@pytest.mark.slow
@pytest.mark.parametrize("suite", catalogue.load_suites()[0], ids=lambda suite: suite.name)
def test_every_suite_in_tree_keeps_the_contract(suite: Suite) -> None:
    names = check_suite(suite)
    assert suite.name != "mini" or names == tuple(entry.name for entry in suite.entries)


@dataclass(frozen=True)
class Noise:
    """Random images with the labels 0 and 1 in turn."""

    seed: int
    count: int
    labels_from: int = 0
    dtype: torch.dtype = torch.uint8
    global_state: bool = False
    shaken: bool = False
    masks: torch.dtype | None = None

    @property
    def labels(self) -> np.ndarray:
        """The class of every image, int64 (N,)."""
        return np.arange(self.count) % 2 + self.labels_from

    def __len__(self) -> int:
        return self.count

    def __getitems__(self, indices: Sequence[int]) -> torch.Tensor | Samples:
        if self.global_state:
            torch.rand(1)
        salt = indices[0] if self.shaken else 0
        rows = [
            np.random.default_rng([self.seed, salt, index]).integers(0, 256, (3, 8, 8))
            for index in indices
        ]
        images = torch.from_numpy(np.stack(rows)).to(self.dtype)
        return (
            images
            if self.masks is None
            else Samples(images, torch.zeros(len(rows), 8, 8, dtype=self.masks))
        )


SIZES = split_sizes(6, 4, 4)
ENTRY = Entry(
    name="noise",
    title="Noise",
    classes=2,
    sizes=SIZES,
    licence="CC0-1.0",
    description="-",
    image_size=8,
    flip=True,
)


MASKED = replace(ENTRY, kind="segmentation")


def open_changed(entry: Entry, changes: dict[str, Any], **of_split: Any) -> Task:
    """Return the task of the entry with changed fields; `of_split` are arguments of its images."""

    def split(name: str) -> Noise:
        return Noise(**{"seed": list(SIZES).index(name), "count": SIZES[name], **of_split})

    return replace(build_task(entry, ("even", "odd"), split), **changes)


def test_a_task_has_a_name_for_each_class() -> None:
    with pytest.raises(BadPlugin, match="noise gives it 3 class names and 2 classes; expected"):
        build_task(ENTRY, ("even", "odd", "zero"), lambda name: Noise(seed=0, count=1))


@pytest.mark.parametrize("place", ["open", "split"])
def test_an_error_in_a_suite_names_it_and_its_package(
    place: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: Any) -> Any:
        raise KeyError("column")

    opened = build_task(ENTRY, ("even", "odd"), fail)
    suite = Suite(
        name="noises",
        title="-",
        entries=(ENTRY,),
        open=fail if place == "open" else lambda entry, offline: opened,
    )
    good, broken = catalogue.load_suites()
    monkeypatch.setattr(catalogue, "load_suites", lambda: ((*good, suite), broken))
    monkeypatch.setitem(catalogue.SUITES.__dict__, "package_of", lambda name: {"rain": "1"})
    says = "the suite 'noises' of the package rain could not open noise: KeyError: 'column'; run"
    with pytest.raises(BadPlugin, match=says) as caught:
        catalogue.open_task("noise").split("train")
    assert isinstance(caught.value.__cause__, KeyError)


@pytest.fixture
def register_suite(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[..., Suite]]:
    """Return a function that registers a suite whose only task differs from a valid one as given."""

    def make(entry: Entry = ENTRY, of_split: dict[str, Any] | None = None, **changes: Any) -> Suite:
        suite = Suite(
            name="noises",
            title="-",
            entries=(entry,),
            open=lambda e, offline: open_changed(e, changes, **(of_split or {})),
        )
        good, broken = catalogue.load_suites()
        monkeypatch.setattr(catalogue, "load_suites", lambda: ((*good, suite), broken))
        monkeypatch.setattr("learngene_zoo.testing.suite.COLD", "")
        return suite

    return make


@pytest.mark.parametrize(("entry", "masks"), [(ENTRY, None), (MASKED, torch.uint8)])
def test_a_suite_of_noise_keeps_the_contract(
    register_suite: Callable[..., Suite], entry: Entry, masks: torch.dtype | None
) -> None:
    assert check_suite(register_suite(entry, of_split={"masks": masks})) == ("noise",)


LAWS: list[tuple[dict[str, Any], str]] = [
    ({"classes": 3}, "lists noise with classes=2, and the opened task has 3"),
    ({"image_size": 9}, "lists noise with image_size=8"),
    ({"flip": False}, "lists noise with flip=True"),
    ({"sizes": split_sizes(6, 4, 5)}, "lists noise with .*'test': 4.*'test': 5"),
    ({"class_names": ("even", "even")}, "does not give noise 2 class names"),
    ({"of_split": {"count": 3}}, "promises 6 images in train of noise"),
    (
        {"of_split": {"labels_from": 1}},
        r"has the label \[2\] in train of noise, which has 2 classes",
    ),
    (
        {"of_split": {"dtype": torch.float32}},
        "noise has images of torch.float32; expected torch.uint8",
    ),
    (
        {"of_split": {"global_state": True}},
        "draws from the global random state to read train of noise",
    ),
    ({"of_split": {"shaken": True}}, "changes with the order of reading"),
    (
        {"entry": MASKED, "of_split": {"masks": torch.int64}},
        "has a mask of torch.int64 in train of noise, not of uint8",
    ),
    ({"entry": replace(ENTRY, name="white noise")}, "has the name 'white noise'"),
]


LAWS += [
    (
        {"of_split": {"count": -1}},
        "breaks the law 'every split opens, and knows its labels': train of noise raised",
    ),
    (
        {"open_split": lambda name: [1, 2]},
        "'every split opens, and knows its labels': train of noise raised Attrib",
    ),
]


@pytest.mark.parametrize(("changes", "words"), LAWS)
def test_a_broken_law_is_named(
    register_suite: Callable[..., Suite], changes: dict[str, Any], words: str
) -> None:
    with pytest.raises(AssertionError, match=f"the suite noises .*{words}"):
        check_suite(register_suite(**changes))


def test_an_error_of_a_suite_is_told_with_the_promise_that_it_breaks(
    register_suite: Callable[..., Suite],
) -> None:
    suite = replace(register_suite(), open=lambda entry, offline: {}["photos"])
    with pytest.raises(
        AssertionError,
        match="'every task opens, or is Unavailable': noise raised KeyError: 'photos'",
    ):
        check_suite(suite)


def test_a_suite_must_be_registered_and_cheap_to_list(site: Path) -> None:
    stranger = Suite(
        name="noises",
        title="-",
        entries=(ENTRY,),
        open=lambda entry, offline: open_changed(entry, {}),
    )
    with pytest.raises(AssertionError, match="the suite noises is not registered"):
        check_suite(stranger)
    install(site, "faces", source="import numpy\n" + SOURCE.format(name="faces", tasks=("smiles",)))
    with pytest.raises(
        AssertionError, match="imports numpy when it is listed; import it in `open`"
    ):
        check_suite(catalogue.find_suite("faces"))


def test_data_that_must_be_downloaded_is_left_out_unless_it_is_wanted() -> None:
    papers = catalogue.find_suite("decathlon")
    assert check_suite(papers) == ()
    with pytest.raises(Unavailable):
        check_suite(papers, offline=False)


def test_the_test_of_a_new_suite_does_not_pass_without_data(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    record = SimpleNamespace(entries=(ENTRY, replace(ENTRY, name="static")))
    monkeypatch.setitem(sys.modules, "lgzoo_noises", SimpleNamespace(NOISES=record))  # type: ignore[arg-type]

    def run_test(*opened: str) -> None:
        monkeypatch.setattr("learngene_zoo.testing.check_suite", lambda suite: opened)
        names: dict[str, Any] = {}
        exec(render_package("noises", "suite")["tests/test_noises.py"], names)
        names["test_contract"]()

    with pytest.raises(pytest.skip.Exception, match="no task is available offline"):
        run_test()
    with pytest.raises(AssertionError):
        run_test("noise")
    run_test("noise", "static")
