"""Every setting of every method, at its least value or another choice, extracts a learngene that is
written and read again, or is refused with an error of this package.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from learngene_zoo.artifacts.learngene import load_learngene
from learngene_zoo.errors import BadPlugin, ZooError
from learngene_zoo.families.family import load_family
from learngene_zoo.method.checks import check_learngene
from learngene_zoo.method.contract import Extractor
from learngene_zoo.method.installed import METHODS
from learngene_zoo.runs.run import Run
from learngene_zoo.settings import Setting, list_settings, with_settings
from learngene_zoo.testing import make_tiny_ancestry
from learngene_zoo.testing.method import choose_tasks, make_ancestries

NAMES = sorted(METHODS.references())
IN_CI = ("closed_form", "heur_lg")  # the others take minutes
SLOW = "compile"  # takes a minute


def list_values(setting: Setting) -> Iterator[Any]:
    """Yield the values that are tried: the other choices, or a number at the edge of its bounds."""
    if setting.choices:
        yield from (choice for choice in setting.choices if choice != setting.default)
    elif setting.kind is bool:
        yield not setting.default
    elif setting.kind in (int, float) and setting.bounds is not None:
        bounds = setting.bounds
        if bounds.least is not None:
            yield setting.kind(bounds.least)
        elif bounds.above is not None:
            yield setting.kind(bounds.above + 1) if setting.kind is int else bounds.above + 1e-6
        if setting.kind is float and bounds.most is not None and bounds.most <= 1:
            yield float(bounds.most)


@pytest.mark.parametrize(
    "name",
    [
        pytest.param(name, marks=pytest.mark.slow if name in IN_CI else pytest.mark.exhaustive)
        for name in NAMES
    ],
)
def test_no_setting_ends_in_an_error_of_another_package(name: str, tmp_path: Path) -> None:
    method = METHODS.load(name)
    first = make_tiny_ancestry(spec=load_family(method.families[0]).examples[0])
    ancestries = make_ancestries(method, first)
    tasks = choose_tasks(method, None, first.spec)
    records = tuple(ancestry.record for ancestry in ancestries)

    def extract(extractor: Extractor, out: Path) -> None:
        learngene = extractor(ancestries, tasks if extractor.needs_tasks() else [], Run())
        check_learngene(name, learngene)
        learngene.with_config(method=name, ancestries=records).save(out)
        load_learngene(out)

    smoke, failures = method.presets["smoke"], []
    extract(smoke, tmp_path / "smoke")
    for setting in list_settings(smoke):
        if setting.name.endswith(SLOW):
            continue
        for number, value in enumerate(list_values(setting)):
            given = (value,) if setting.repeated else value
            try:
                extract(
                    with_settings(smoke, {setting.name: given}),
                    tmp_path / f"{setting.name}-{number}",
                )
            except Exception as error:  # collected, so that one run names all of them
                if isinstance(error, BadPlugin) or not isinstance(error, ZooError):
                    failures.append(
                        f"{setting.name}={given!r}: {type(error).__name__}: {error!s:.200}"
                    )
    assert not failures, "\n".join(failures)
