"""The registry: a view of entry points, from metadata or from a checkout."""

from __future__ import annotations

import re
from dataclasses import replace
from importlib.metadata import EntryPoints
from pathlib import Path
from typing import Any

import pytest

from learngene_zoo import registry
from learngene_zoo.errors import BadFile, BadPlugin, WrongCall
from learngene_zoo.method.contract import METHODS


@pytest.fixture
def site(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return an empty folder that is searched for packages first."""
    folder = tmp_path / "site"
    folder.mkdir()
    monkeypatch.syspath_prepend(str(folder))
    return folder


def install(site: Path, package: str, points: str, source: str = "") -> None:
    """Write the metadata of an installed package with entry points."""
    info = site / f"{package}-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {package}\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text(f"[{METHODS.group}]\n{points}\n")
    (site / f"{package}.py").write_text(source)


def test_the_methods_in_tree_are_found_and_load() -> None:
    good, broken = METHODS.load_all()
    assert {"lsamd", "scratch", "pretrain_finetune"} <= {method.name for method in good}
    assert not broken


def test_a_checkout_takes_its_own_table_before_that_of_an_installed_version(site: Path) -> None:
    if not registry.checkout_tables():
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
    assert "zoo_twin:METHOD of zoo_twin" in broken.reason
    assert "uninstall all but one" in broken.reason


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
    assert [plugin.reference for plugin in broken] == ["zoo_one:METHOD", "zoo_two:METHOD"]


def test_one_reference_found_twice_is_one_method(site: Path) -> None:
    before = METHODS.references()
    install(site, "zoo_copy", f"lsamd = {before['lsamd']}")
    assert METHODS.references() == before


def test_a_checkout_without_metadata_has_the_same_table(monkeypatch: pytest.MonkeyPatch) -> None:
    if not registry.checkout_tables():
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
    assert registry.checkout_tables() == {}


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
    from click.testing import CliRunner

    from learngene_zoo.cli.main import main

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
