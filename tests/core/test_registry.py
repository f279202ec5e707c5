"""The registry: a view of entry points, from metadata or from a checkout."""

from __future__ import annotations

import re
from dataclasses import dataclass, field, replace
from importlib.metadata import EntryPoints
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from learngene_zoo import registry
from learngene_zoo.cli.diagnosis.findings import _check_plugins
from learngene_zoo.cli.main import main
from learngene_zoo.errors import BadFile, BadPlugin, WrongCall
from learngene_zoo.method.installed import METHODS
from learngene_zoo.version import __version__


@pytest.fixture
def site(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return an empty folder that is searched for packages first."""
    folder = tmp_path / "site"
    folder.mkdir()
    monkeypatch.syspath_prepend(str(folder))
    return folder


def install(site: Path, package: str, points: str, source: str = "", needs: str = "") -> None:
    """Write the metadata of an installed package with entry points and a requirement."""
    info = site / f"{package}-1.0.dist-info"
    info.mkdir()
    requirement = f"Requires-Dist: {needs}\n" if needs else ""
    (info / "METADATA").write_text(
        f"Metadata-Version: 2.1\nName: {package}\nVersion: 1.0\n{requirement}"
    )
    (info / "entry_points.txt").write_text(f"[{METHODS.group}]\n{points}\n")
    (site / f"{package}.py").write_text(source)


def lgzoo(line: str) -> Result:
    return CliRunner().invoke(main, line.split())


TOY = """
from dataclasses import dataclass, replace
from typing import Annotated, Literal
from learngene_zoo.settings import Bounds
from learngene_zoo.method.installed import METHODS
SCRATCH = METHODS.load("scratch")

@dataclass(frozen=True, kw_only=True)
class Shape(type(SCRATCH.extractor)):
    {extractor}

@dataclass(frozen=True, kw_only=True)
class Draw(type(SCRATCH.expander)):
    {expander}

presets = {{"mini": Shape(), "smoke": Shape()}}
METHOD = replace(SCRATCH, name="{name}", presets=presets, expander=Draw())
"""


def install_toy(site: Path, name: str, extractor: str = "pass", expander: str = "pass") -> None:
    """Install the method scratch under another name, with further fields."""
    source = TOY.format(name=name, extractor=extractor, expander=expander)
    install(site, f"zoo_{name}", f"{name} = zoo_{name}:METHOD", source)


def test_the_methods_in_tree_are_found_and_load() -> None:
    good, broken = METHODS.load_all()
    assert {"lsamd", "scratch", "pretrain_finetune"} <= {method.name for method in good}
    assert not broken


def test_a_checkout_takes_its_own_table_before_that_of_an_installed_version(site: Path) -> None:
    if not registry.read_checkout_tables():
        pytest.skip("not a checkout")
    before = METHODS.references()
    install(site, "learngene-zoo", "lsamd = lgzoo_older:LSAMD\nforgotten = lgzoo_older:FORGOTTEN")
    assert METHODS.references() == before


def test_an_unknown_method_is_answered_with_the_nearest() -> None:
    with pytest.raises(WrongCall, match="did you mean lsamd"):
        METHODS.load("lsmad")


def test_finding_methods_imports_none_of_them(site: Path) -> None:
    install(site, "zoo_bomb", "bomb = zoo_bomb:METHOD", "raise SystemError('imported')")
    assert METHODS.references()["bomb"] == "zoo_bomb:METHOD"


@pytest.mark.parametrize(
    ("source", "says"),
    [
        ("raise RuntimeError('not today')", "fails to import: RuntimeError.*not today"),
        ("import a_package_that_is_not_there", "fails to import: ModuleNotFoundError"),
        ("import sys; sys.exit(3)", "fails to import: SystemExit"),
        ("", "fails to import: AttributeError"),
        ("METHOD = 3", "expected a learngene_zoo Method at .*, got int"),
        ("METHOD = int", "got type int; the entry point names a Method as MODULE:NAME"),
        (
            "from lgzoo_baselines.trained.scratch import SCRATCH as METHOD",
            "its name is 'scratch'",
        ),
    ],
)
def test_a_broken_plugin_is_reported_and_disturbs_nobody(
    site: Path, source: str, says: str
) -> None:
    module = f"zoo_broken_{len(source)}"  # a name that no other case has imported
    install(site, module, f"broken = {module}:METHOD", source)
    good, [broken] = METHODS.load_all()
    assert "lsamd" in {method.name for method in good}
    assert broken.name == "broken"
    with pytest.raises(BadFile, match=says):
        METHODS.load("broken")


SCRATCH = METHODS.load("scratch")


@dataclass(frozen=True, kw_only=True)
class Unannotated:
    kept: int = 1
    loss = 0.0


@dataclass(frozen=True, kw_only=True)
class Unread:
    loss: float = field(default=0.0, init=False)


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"tasks": "both"}, "tasks is 'both'; expected one of none, one, many"),
        (
            {"ancestries": (2, 1)},
            r"ancestries is \(2, 1\); expected the least and the greatest number",
        ),
        (
            {"families": ("vit", "resnet")},
            r"families is \('vit', 'resnet'\); expected a tuple of some of vit",
        ),
        ({"families": "vit"}, "families is 'vit'; expected a tuple"),
        ({"ancestries": 1}, "ancestries is 1; expected the least"),
        ({"name": "two words"}, "name is 'two words'; expected letters, digits"),
        ({"details": {"kept": 3}}, "details is .*; expected a dataclass or None"),
        (
            {"details": Unannotated},
            "the details is not stored: 'loss' of Unannotated; annotate it with its type",
        ),
        ({"details": Unread}, "the field loss of the details has init=False and cannot be read"),
        ({"plot": "draw"}, "plot is 'draw'; expected 'package.module:function'"),
        ({"presets": {"mini": SCRATCH.extractor}}, "lacks the preset smoke"),
        (
            {"presets": {"mini": SCRATCH.extractor, "smoke": 3}},
            "preset smoke is 3; expected an Extractor",
        ),
        ({"presets": None}, "presets is None; expected a mapping"),
        ({"expander": None}, "expander is None; expected an Expander"),
        (
            {"expander": type("Odd", (type(SCRATCH.expander),), {"axes": {"depth"}})()},
            "axes of its expander has 'depth'",
        ),
    ],
)
def test_a_record_that_no_command_could_use_is_refused(changes: dict[str, Any], says: str) -> None:
    with pytest.raises(BadPlugin, match=f"the record of the method .* is wrong: .*{says}"):
        replace(SCRATCH, **changes)


def test_a_plugin_with_a_wrong_record_is_reported(site: Path) -> None:
    source = (
        "from dataclasses import replace\nfrom lgzoo_baselines.trained.scratch import SCRATCH\n"
    )
    source += "METHOD = replace(SCRATCH, name='wrong', tasks='both')"
    install(site, "zoo_wrong", "wrong = zoo_wrong:METHOD", source)
    _, [broken] = METHODS.load_all()
    assert "the method 'wrong' is wrong: tasks is 'both'" in broken.reason


def test_a_method_in_tree_stays_when_a_stranger_claims_its_name(site: Path) -> None:
    before = METHODS.references()
    install(site, "zoo_twin", "lsamd = zoo_twin:METHOD", "raise SystemError('imported')")
    assert METHODS.references() == before
    assert METHODS.load("lsamd").name == "lsamd"
    good, [broken] = METHODS.load_all()
    assert {method.name for method in good} == set(before)
    assert broken.reference == "zoo_twin:METHOD"
    assert broken.reason == (
        "zoo_twin:METHOD of zoo_twin is not used, as learngene_zoo has a method 'lsamd' of its "
        "own; rename it"
    )


def test_of_two_strangers_that_claim_one_name_both_are_refused(site: Path) -> None:
    before = METHODS.references()
    for package in ("zoo_one", "zoo_two"):
        install(site, package, f"contested = {package}:METHOD", "raise SystemError('imported')")
    assert METHODS.references() == before
    with pytest.raises(
        BadFile,
        match=r"claim the method 'contested' \(zoo_one:METHOD of zoo_one and zoo_two:METHOD",
    ):
        METHODS.load("contested")
    good, broken = METHODS.load_all()
    assert {method.name for method in good} == set(before)
    assert [plugin.reference for plugin in broken] == ["zoo_one:METHOD and zoo_two:METHOD"]


def test_one_reference_found_twice_is_one_method(site: Path) -> None:
    before = METHODS.references()
    install(site, "zoo_copy", f"lsamd = {before['lsamd']}")
    assert METHODS.references() == before


def test_a_checkout_without_metadata_has_the_same_table(monkeypatch: pytest.MonkeyPatch) -> None:
    if not registry.read_checkout_tables():
        pytest.skip("the package does not lie in a checkout")
    everything = METHODS.references()
    monkeypatch.setattr(registry, "entry_points", lambda: EntryPoints())
    assert set(METHODS.references()) <= set(everything)
    assert "lsamd" in METHODS.references()


def test_another_projects_table_is_not_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "learngene_zoo").mkdir()
    (tmp_path / "pyproject.toml").write_text(
        f'[project]\nname = "other"\n[project.entry-points."{METHODS.group}"]\nx = "y:z"\n'
    )
    monkeypatch.setattr(registry, "__file__", str(tmp_path / "learngene_zoo" / "registry.py"))
    assert registry.read_checkout_tables() == {}


def test_a_variable_restricts_the_plugins(site: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from learngene_zoo.tasks.catalogue import SUITES

    install(site, "zoo-extra", "extra = zoo_extra:METHOD", "raise RuntimeError('imported')")
    suites = SUITES.references()
    for value, names in (
        ("lsamd", {"lsamd"}),
        (" lsamd, first_k ,", {"lsamd", "first_k"}),
        ("lgzoo_tal", {"tal", "pith", "ghn3", "logah"}),
        ("zoo-extra", {"extra"}),
        ("zoo_extra,lsamd,mini", {"extra", "lsamd"}),
    ):
        monkeypatch.setenv("LGZOO_PLUGINS", value)
        assert set(METHODS.references()) == names
        assert SUITES.references() == ({"mini": suites["mini"]} if "mini" in value else suites)
    monkeypatch.setenv("LGZOO_PLUGINS", "lsamd")
    assert METHODS.load("lsamd").name == "lsamd"
    assert METHODS.load_all()[1] == []
    with pytest.raises(WrongCall, match="LGZOO_PLUGINS leaves out the method 'first_k'; add its"):
        METHODS.load("first_k")
    with pytest.raises(WrongCall, match="no method named 'nope'"):
        METHODS.load("nope")
    for value in ("", " , "):
        monkeypatch.setenv("LGZOO_PLUGINS", value)
        assert {"lsamd", "extra", "tal"} < set(METHODS.references())


def test_an_unknown_name_in_the_variable_is_one_clear_line(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("LGZOO_PLUGINS", "lsamd,closed_from")
    result = CliRunner().invoke(main, ["list", "methods"])
    assert (result.exit_code, result.stdout) == (2, "")
    assert result.stderr == (
        "error: LGZOO_PLUGINS: no plugin named 'closed_from'; did you mean closed_form?\n"
    )
    monkeypatch.setenv("LGZOO_PLUGINS", "lsamd")
    result = CliRunner().invoke(main, ["list", "methods"])
    assert next(line.split()[0] for line in result.stdout.splitlines()[2:]) == "lsamd"


def test_code_of_a_plugin_is_described_by_its_version_and_files(site: Path) -> None:
    assert METHODS.describe_code("first_k") == ""
    assert METHODS.describe_code("unknown") == ""
    install(site, "zoo_ours", "ours = zoo_ours:METHOD", "raise SystemError('imported')")
    first = METHODS.describe_code("ours")
    assert re.fullmatch(r"zoo_ours 1\.0 \([0-9a-f]{12}\)", first)
    (site / "zoo_ours.py").write_text("changed = True")
    second = METHODS.describe_code("ours")
    assert second != first
    # A package in place of the module: every file counts.
    (site / "zoo_ours.py").unlink()
    package = site / "zoo_ours"
    package.mkdir()
    (package / "__init__.py").write_text("")
    (package / "parts.py").write_text("one = 1")
    third = METHODS.describe_code("ours")
    (package / "parts.py").write_text("one = 2")
    assert len({first, second, third, METHODS.describe_code("ours")}) == 4


def test_every_command_says_that_the_variable_leaves_out_a_plugin(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    left_out = "LGZOO_PLUGINS leaves out the method 'lsamd'; add its name to the variable"
    monkeypatch.setenv("LGZOO_PLUGINS", "closed_form,vtab")
    for line, code in (
        ("expand lsamd-mini --layers 3", 1),
        ("plot lsamd-mini", 1),
        ("show lsamd-mini", 1),
        ("show lsamd", 2),
        ("plan lsamd", 2),
        ("extract lsamd", 2),
    ):
        result = lgzoo(line)
        assert result.exit_code == code, line
        assert left_out in result.stderr, line
        assert "not installed" not in result.stderr
    assert "LGZOO_PLUGINS leaves out the suite 'mini'" in lgzoo("show mini").stderr
    for line in ("show digits", "finetune model --task digits"):
        assert "(LGZOO_PLUGINS leaves out the suites decathlon" in lgzoo(line).stderr


def test_packages_that_claim_one_name_are_named_and_one_can_be_chosen(
    site: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    install_toy(site, "shared")
    install(site, "zoo_other", "shared = zoo_other:METHOD")
    says = (
        "2 packages claim the method 'shared' (zoo_other:METHOD of zoo_other and "
        "zoo_shared:METHOD of zoo_shared); uninstall all but one, or choose one with "
        "LGZOO_PLUGINS=zoo_other, which leaves out all others"
    )
    for value in ("", "shared"):
        monkeypatch.setenv("LGZOO_PLUGINS", value)
        for line in ("show shared", "extract shared", "plan shared"):
            result = lgzoo(line)
            assert (result.exit_code, result.stderr) == (1, f"error: {says}\n"), line
        assert lgzoo("list methods").stderr.count("cannot be used") == 1
        assert [row["found"] for row in _check_plugins() if row["what"] == "method shared"] == [
            says
        ]
    monkeypatch.setenv("LGZOO_PLUGINS", "zoo_shared,scratch")
    assert lgzoo("show shared").exit_code == 0


def test_a_package_with_the_name_of_its_plugin_is_not_offered_as_a_choice(site: Path) -> None:
    for package in ("contested", "zoo_contested"):
        install(site, package, f"contested = {package}:METHOD")
    [refused] = METHODS.list_refused()
    assert "or choose one with LGZOO_PLUGINS=zoo_contested," in refused.reason


@pytest.mark.parametrize(
    ("needs", "says"),
    [
        (
            "learngene_zoo>=2,<3",
            f"needs learngene-zoo>=2,<3, and this is {__version__}; it fails to import: ",
        ),
        ("learngene-zoo>=1.0,<2", "METHOD of the package zoo_early) fails to import: "),
        ("numpy>=9999", "METHOD of the package zoo_early) fails to import: "),
    ],
)
def test_a_plugin_for_another_version_is_reported_as_such(
    site: Path, needs: str, says: str
) -> None:
    source = "from learngene_zoo.plugin import of_the_future"
    install(site, "zoo_early", "early = zoo_early:METHOD", source, needs)
    _, [broken] = METHODS.load_all()
    assert f"{says}ImportError: " in broken.reason
    assert broken.reason.endswith("; correct the package, or uninstall zoo_early")


@pytest.mark.parametrize("part", ["extractor", "expander"])
@pytest.mark.parametrize(
    ("name", "field", "says"),
    [
        ("text", "odd: int = '2'", "odd is '2'; expected a value of type int"),
        (
            "bounded",
            "odd: Annotated[int, 'x', Bounds(least=1)] = '2'",
            "odd is '2'; expected a value of type int",
        ),
        ("low", "odd: Annotated[int, 'x', Bounds(least=1)] = 0", "odd is 0; it must be at least 1"),
    ],
)
def test_a_default_that_is_not_allowed_is_refused(
    site: Path, part: str, name: str, field: str, says: str
) -> None:
    method = f"{part}_{name}"
    install_toy(site, method, **{part: field})
    result = lgzoo(f"extract {method}")
    assert result.exit_code == 1
    assert says in result.stderr
    assert method in result.stderr
    assert len(result.stderr.splitlines()) == 1


@pytest.mark.parametrize("part", ["extractor", "expander"])
@pytest.mark.parametrize(
    ("name", "kind"), [("dict", "dict"), ("union", "int | str"), ("inner", "tuple[dict, ...]")]
)
def test_a_setting_of_a_type_that_is_not_allowed_is_refused(
    site: Path, part: str, name: str, kind: str
) -> None:
    method = f"{part}_{name}"
    install_toy(site, method, **{part: f"odd: {kind} = ()"})
    owner = {"extractor": "Shape", "expander": "Draw"}[part]
    says = (
        f"the record of the method '{method}' is wrong: {owner}.odd has the type {kind}; a "
        "setting may be int, float, str, bool, Path, a Literal of strings, one of these or None, a "
        "tuple[X, ...] of these, or another frozen dataclass"
    )
    result = lgzoo(f"extract {method}")
    assert result.exit_code == 1
    assert says in result.stderr
    assert "unexpected" not in result.stderr
    _, [broken] = METHODS.load_all()
    assert says in broken.reason
    assert lgzoo("extract --help").exit_code == 0


@pytest.mark.parametrize(
    ("name", "fields", "line", "option"),
    [
        ("forced", {"extractor": "force: bool = False"}, "extract forced --help", "--force"),
        ("sown", {"extractor": "seed: int = 0"}, "extract sown", "--seed"),
        ("sized", {"extractor": "depth: int = 0"}, "plan sized", "--depth"),
        ("twice", {"extractor": "a: bool = False\n    no_a: int = 0"}, "extract twice", "--no-a"),
        ("outer", {"expander": "out: int = 0"}, "expand learngene --help", "--out"),
    ],
)
def test_a_setting_with_the_option_of_every_method_is_refused(
    site: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    name: str,
    fields: dict[str, str],
    line: str,
    option: str,
) -> None:
    monkeypatch.chdir(tmp_path)
    install_toy(site, name, **fields)
    if name == "outer":
        assert lgzoo("extract outer").exit_code == 0
    field = option.removeprefix("--").replace("-", "_")
    says = (
        f"the setting {field!r} of the method {name!r} has the option {option}, which this command "
        "has already; rename the field"
    )
    result = lgzoo(line)
    assert (result.exit_code, result.stderr) == (1, f"error: {says}\n")
    [row] = [row for row in _check_plugins() if row["found"] == says]
    assert (row["what"], row["status"]) == (f"method {name}", "bad")
    assert lgzoo("extract --help").exit_code == 0


def test_a_setting_of_a_plugin_has_no_word_of_timm(site: Path) -> None:
    install_toy(site, "normed", extractor='channels: Literal["norm", "first"] = "norm"')
    shown = lgzoo("extract normed --help").stdout
    assert "--channels [norm|first]" in shown
    assert "--in-chans" not in shown
    assert "--layers, --depth INTEGER" in lgzoo("plan normed --help").stdout


def test_methods_of_other_packages_are_listed_first(site: Path) -> None:
    install_toy(site, "zzz_mine")
    lines = lgzoo("list methods").stdout.splitlines()
    assert lines[2].split()[0] == "zzz_mine"
