"""What the parts of both methods are kept under: every setting that a part uses is in its key."""

from __future__ import annotations

import copy
import dataclasses
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest
from stitching_toy import anchors

from learngene_zoo.artifacts.descendant import Descendant, assemble
from learngene_zoo.families.vit.spec import ViTSpec
from learngene_zoo.method.contract import Extractor
from learngene_zoo.pretrained.ancestry import Ancestry
from learngene_zoo.runs.cache import Part, compute_key
from learngene_zoo.runs.run import Run
from learngene_zoo.settings import Setting, list_settings, with_settings
from learngene_zoo.testing import make_tiny_ancestry, make_tiny_task
from lgzoo_pool.pool import POOL
from lgzoo_pool.snnet import SNNET

TASK = make_tiny_task(classes=5)  # not the ancestry's, so that the teacher is a part, too


@dataclass(frozen=True)
class Call:
    """One call of `compute_once`."""

    name: str
    settings: Any
    inputs: Sequence[Any]
    key: str


class Recorder:
    """In the place of `compute_once`: notes what it is called with, and computes nothing."""

    def __init__(self) -> None:
        self.calls: dict[str, Call] = {}

    def __call__(
        self,
        run: Run,
        name: str,
        function: Callable[..., Any],
        settings: Any,
        inputs: Sequence[Any] = (),
    ) -> Part:
        key = compute_key(name, settings, inputs, run.seed)
        self.calls[run.name] = Call(name, settings, inputs, key)
        start = next((item for item in inputs if isinstance(item, Descendant)), None)
        return Part(start.state if start is not None else {}, {}, key)


@pytest.fixture
def recorder(monkeypatch: pytest.MonkeyPatch) -> Recorder:
    result = Recorder()
    for module in ("lgzoo_pool.pool", "lgzoo_pool.snnet", "learngene_zoo.training.distillation"):
        monkeypatch.setattr(f"{module}.compute_once", result)
    return result


def extraction(name: str) -> tuple[Extractor, list[Ancestry]]:
    if name == "snnet":
        return SNNET.presets["smoke"], anchors((2, 2, 4))
    return with_settings(POOL.presets["smoke"], {"blocks": 4, "guidance": "soft"}), [
        make_tiny_ancestry(layers=4, width=64, heads=4)
    ]


def change_setting(setting: Setting) -> Any:
    """Another value that is within bounds."""
    special = {"low_width": 32, "high_width": 48, "accumulate": 2, "clip": 0.5, "ema": 0.9}
    value = special.get(setting.name.split("_")[-1], special.get(setting.name, setting.default))
    if value != setting.default:
        return value
    if setting.choices:
        return next(choice for choice in setting.choices if choice != setting.default)
    if setting.kind is bool:
        return not setting.default
    if setting.kind is int:
        return 7 if setting.default is None else setting.default + 1
    return 0.25 if setting.default is None else setting.default / 2 + 0.01


@pytest.mark.slow
@pytest.mark.parametrize("name", ["pool", "snnet"])
def test_every_setting_changes_the_key_of_a_part(
    name: str, recorder: Recorder, tmp_path: Path
) -> None:
    extractor, ancestries = extraction(name)
    teacher = assemble(
        ViTSpec(layers=1, width=16, heads=2, classes=5, image_size=16, patch_size=8), {}, seed=0
    )
    named = {"teacher": str(teacher.save(tmp_path / "teacher"))}
    extractor(ancestries, [TASK], Run(seed=1))
    before = {part: call.key for part, call in recorder.calls.items()}
    assert (
        set(before)
        == {
            "pool": {"teacher", "low", "high", "tuning"},
            "snnet": {"teacher", "stitches", "training"},
        }[name]
    )
    without_effect = []
    for setting in list_settings(extractor):
        recorder.calls.clear()
        other = with_settings(
            extractor, {setting.name: named.get(setting.name, change_setting(setting))}
        )
        other(ancestries, [TASK], Run(seed=1))
        if {part: call.key for part, call in recorder.calls.items()} == before:
            without_effect.append(setting.name)
    assert not without_effect


def variants(value: Any) -> Iterator[Any]:
    """Copies of a settings record, in each of which one field, at any depth, has another value."""
    for field in dataclasses.fields(value):
        before = getattr(value, field.name)
        if dataclasses.is_dataclass(before):
            others = list(variants(before))
        elif isinstance(before, bool):
            others = [not before]
        else:
            others = [f"{before} changed" if isinstance(before, str) else (before or 0) + 1]
        for other in others:
            copied = copy.copy(value)
            object.__setattr__(
                copied, field.name, other
            )  # past the bounds, which do not matter here
            yield copied


@pytest.mark.parametrize("name", ["pool", "snnet"])
def test_every_field_of_a_parts_settings_is_in_its_key(name: str, recorder: Recorder) -> None:
    extractor, ancestries = extraction(name)
    extractor(ancestries, [TASK], Run(seed=1))
    for call in recorder.calls.values():
        results = [
            compute_key(call.name, other, call.inputs, 0)
            for other in (call.settings, *variants(call.settings))
        ]
        assert len(set(results)) == len(results) > 1


def test_what_a_part_does_not_use_is_not_in_its_key(recorder: Recorder) -> None:
    """So that runs which share parts train the same auxiliary models once, whatever is done with
    them later.
    """
    extractor, ancestries = extraction("pool")

    def parts(**settings: Any) -> dict[str, str]:
        recorder.calls.clear()
        with_settings(extractor, settings)(ancestries, [TASK], Run(seed=1))
        return {part: call.key for part, call in recorder.calls.items()}

    usual, other = parts(), parts(stitch="ls", tuning_lr=1.0, judged=0)
    assert [usual[part] == other[part] for part in ("teacher", "low", "high", "tuning")] == [
        True,
        True,
        True,
        False,
    ]
    usual, other = parts(), parts(low_levels=1)
    assert [usual[part] == other[part] for part in ("low", "high")] == [False, True]
    alone = {"alpha": 1.0, "stitch": "ls", "guidance": "none"}
    assert set(parts(**alone)) == {"low", "high", "tuning"}
    assert parts(**alone) == parts(**alone, tau=3.0, guidance_share=0.1, teaching_epochs=7)
    before = parts(**alone)
    ancestries = [
        replace(ancestries[0], state=make_tiny_ancestry(9, layers=4, width=64, heads=4).state)
    ]
    assert parts(**alone) == before, "the ancestry's weights are not used"
