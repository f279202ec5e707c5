"""Descendants of more than one width: folder, timm, controls, training, and output of commands."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated, Any

import pytest
import torch
from click.testing import CliRunner
from safetensors.torch import save_file

from learngene_zoo import lifecycle
from learngene_zoo.artifacts.descendant import (
    Descendant,
    apply_control,
    assemble,
    fingerprint_of,
    load_descendant,
)
from learngene_zoo.artifacts.records import LearngeneConfig
from learngene_zoo.cli.main import main
from learngene_zoo.cli.plan import list_sizes
from learngene_zoo.errors import BadFile, WrongCall
from learngene_zoo.families import tensors
from learngene_zoo.families.spec import Segment
from learngene_zoo.families.tensors import initialise
from learngene_zoo.families.vit.names import STITCHED_ARCHITECTURE, STITCHED_DENSE_ARCHITECTURE
from learngene_zoo.families.vit.spec import ViTSpec
from learngene_zoo.lifecycle.latency import measure_latency
from learngene_zoo.method.checks import list_members
from learngene_zoo.method.contract import Expander
from learngene_zoo.method.sizes import Member, Target
from learngene_zoo.pretrained.ancestry import open_ancestry, read_ancestry_spec
from learngene_zoo.pretrained.sources import read_spec_at
from learngene_zoo.runs.run import Run
from learngene_zoo.settings import Recipe
from learngene_zoo.testing import make_tiny_task
from learngene_zoo.training.evaluate import evaluate
from learngene_zoo.training.fit import fit

SPEC = ViTSpec(
    layers=3,
    width=32,
    heads=4,
    image_size=32,
    patch_size=8,
    classes=5,
    front=(Segment(layers=1, width=16, heads=2),),
)
THREE = SPEC.with_(
    layers=4, front=(Segment(layers=1, width=16, heads=2), Segment(layers=2, width=24, heads=3))
)
IMAGES_BCHW = torch.randn(2, 3, 32, 32, generator=torch.Generator().manual_seed(0))


def make_descendant(spec: ViTSpec = SPEC, **fields: Any) -> Descendant:
    given = {
        "mean": (0.1, 0.2, 0.3),
        "std": (0.4, 0.5, 0.6),
        "provenance": {"method": "pool"},
        **fields,
    }
    return assemble(spec, tensors.remove_head(initialise(spec, 7, "fan_in"), spec), seed=1, **given)


# --- its folder
# --------------------------------------------------------------------------------------------------


def test_its_folder_is_read_back(tmp_path: Path) -> None:
    folder = make_descendant(class_names=tuple("abcde"), task="digits").save(tmp_path / "stitched")
    config = json.loads((folder / "config.json").read_text())
    assert config["architecture"] == STITCHED_ARCHITECTURE
    assert config["model_args"]["front"] == [[1, 16, 2]]
    assert config["num_features"] == 32
    again = load_descendant(folder)
    assert again.spec == SPEC
    assert again.inherited == make_descendant().inherited
    assert torch.equal(again.model()(IMAGES_BCHW), make_descendant().model()(IMAGES_BCHW))


OPENED = """
import sys
import timm, torch
from safetensors.torch import load_file

torch.set_num_threads(1)
try:
    timm.create_model(f"local-dir:{sys.argv[1]}", pretrained=True)
except RuntimeError as error:
    print(error)
import learngene_zoo.timm
for name in sys.argv[1:]:
    case = load_file(f"{name}/case.safetensors")
    model = timm.create_model(f"local-dir:{name}", pretrained=True).eval()
    with torch.no_grad():
        print((model(case["images"]) - case["wanted"]).abs().max().item())
print(timm.create_model(f"local-dir:{sys.argv[1]}", pretrained=True, num_classes=2)(case["images"]).shape)
print(sorted(module for module in sys.modules if module.startswith("learngene_zoo.")))
"""


@pytest.mark.slow
def test_timm_opens_its_folder_once_the_stitches_are_known(tmp_path: Path, checkout: Path) -> None:
    cases = [
        SPEC,
        THREE,
        SPEC.with_(dense=True),
        SPEC.with_(class_token=False, pool="avg", registers=2),
    ]
    names = []
    for number, spec in enumerate(cases):
        case = make_descendant(spec)
        folder = case.save(tmp_path / str(number))
        expected = case.model()(IMAGES_BCHW).detach().contiguous()
        save_file({"images": IMAGES_BCHW, "wanted": expected}, folder / "case.safetensors")
        names.append(str(folder))
    command = [sys.executable, "-c", OPENED, *names]
    process = subprocess.run(command, capture_output=True, text=True, cwd=checkout, timeout=240)
    assert process.returncode == 0, process.stderr
    unknown, *differences, shape, modules = process.stdout.splitlines()
    assert unknown == f"Unknown model ({STITCHED_ARCHITECTURE})"
    assert differences == ["0.0"] * len(cases)
    assert shape == "torch.Size([2, 2])"
    assert (
        "learngene_zoo.families.tensors" not in modules
    )  # that import makes the architectures known, and opens nothing else


def test_a_plain_descendants_folder_names_no_architecture_of_ours(tmp_path: Path) -> None:
    folder = make_descendant(SPEC.with_(front=())).save(tmp_path / "plain")
    config = json.loads((folder / "config.json").read_text())
    assert config["architecture"] == "vit_base_patch16_224"
    assert "front" not in config["model_args"]
    assert "learngene_zoo.timm" not in (folder / "README.md").read_text()


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"front": [[2, 16, 2]]}, "contradicts itself: front is"),
        ({"front": ...}, "contradicts itself: front is"),
        ({"front": 7}, "front: expected a list of segments"),
        ({"front": [[1, 16]]}, "front: expected a list of segments"),
        ({"front": [1, 16, 2]}, "front: expected a list of segments"),
        ({"front": [["1", 16, 2]]}, "layers is"),
        ({"front": [[1, 16.0, 2]]}, "width is 16.0; expected a value of type int"),
        ({"front": [[1, 16, True]]}, "heads is true"),
        ({"front": [[1, 16, 3]]}, "3 heads do not divide a width of 16"),
        ({"front": [[3, 16, 2]]}, "the segments in front have 3 of 3 layers"),
        ({"front": [[1, 10**9, 1]]}, "width is 1000000000"),
        ({"front": [[1, 16, 2]] * 1000}, "there are 1001 segments"),
    ],
    ids=lambda value: str(value)[:40],
)
def test_segments_that_cannot_be_are_a_bad_file(
    tmp_path: Path, change: dict[str, Any], message: str
) -> None:
    folder = make_descendant().save(tmp_path / "stitched")
    _change(folder, lambda config: config["model_args"], change)
    with pytest.raises(BadFile, match=message) as error:
        load_descendant(folder)
    assert len(str(error.value)) < 400


@pytest.mark.parametrize(
    ("front", "message"),
    [
        ([[1, 16, 2]], "expected an object"),
        ([{"layers": 1, "width": 16}], "the key 'heads' is missing"),
    ],
)
def test_so_are_segments_of_our_own_record(tmp_path: Path, front: Any, message: str) -> None:
    folder = make_descendant().save(tmp_path / "stitched")
    _change(folder, lambda config: config["learngene"]["spec"], {"front": front})
    with pytest.raises(BadFile, match=rf"learngene: spec: front\[0\].*{message}"):
        load_descendant(folder)


def _change(folder: Path, place: Any, change: dict[str, Any]) -> None:
    config = json.loads((folder / "config.json").read_text())
    place(config).update({name: value for name, value in change.items() if value is not ...})
    for name in (name for name, value in change.items() if value is ...):
        del place(config)[name]
    (folder / "config.json").write_text(json.dumps(config))


def test_a_plain_architecture_has_no_segments(tmp_path: Path) -> None:
    folder = make_descendant().save(tmp_path / "stitched")
    _change(folder, lambda config: config, {"architecture": "vit_base_patch16_224"})
    with pytest.raises(BadFile, match="has 'front', which vit_base_patch16_224 does not take"):
        load_descendant(folder)
    _change(folder, lambda config: config, {"architecture": STITCHED_DENSE_ARCHITECTURE})
    with pytest.raises(BadFile, match="dense is True for timm and False"):
        load_descendant(folder)


def test_a_missing_stitch_is_named(tmp_path: Path) -> None:
    case = make_descendant()
    state = {name: tensor for name, tensor in case.state.items() if name != "blocks.1.stitch.bias"}
    with pytest.raises(BadFile, match=r"lacks the tensor blocks\.1\.stitch\.bias of shape \(32,\)"):
        case.with_state(state)
    wrong = {"blocks.1.stitch.weight": torch.zeros(16, 32)}
    with pytest.raises(
        WrongCall, match=r"stitch\.weight has shape \(16, 32\); the model to build needs \(32, 16\)"
    ):
        assemble(SPEC, wrong, seed=0)


# --- controls and training
# --------------------------------------------------------------------------------------------


def test_controls_reach_the_stitches() -> None:
    case, name = make_descendant(), "blocks.1.stitch.weight"
    mixed = apply_control(case, "shuffled", 3)
    assert not torch.equal(mixed.state[name], case.state[name])
    assert torch.equal(
        mixed.state[name].flatten().sort().values, case.state[name].flatten().sort().values
    )
    bare = apply_control(case, "stem", 3)
    assert torch.equal(bare.state[name], initialise(SPEC, 3)[name])
    assert torch.equal(bare.state["pos_embed"], case.state["pos_embed"])
    assert torch.equal(bare.state["norm.weight"], case.state["norm.weight"])
    assert bare.inherited == {n for n in case.inherited if not n.startswith("blocks.")}


def test_another_task_means_another_head_alone() -> None:
    case = make_descendant(task="digits", class_names=tuple("abcde"))
    dense = case.for_task("scenes", tuple("xyz"), seed=9, dense=True)
    assert dense.spec == SPEC.with_(classes=3, dense=True)
    assert dense.model()(IMAGES_BCHW).shape == (2, 3, 32, 32)
    assert all(torch.equal(dense.state[name], case.state[name]) for name in case.inherited)
    back = dense.for_task("digits", tuple("abcde"), seed=1)
    assert back.model()(IMAGES_BCHW).shape == (2, 5)
    assert fingerprint_of(back) != fingerprint_of(replace(back, spec=SPEC.with_(front=())))


def test_it_is_trained_judged_and_timed_like_any_other() -> None:
    task = make_tiny_task(image_size=32)
    start = make_descendant().for_task(task.name, task.class_names, seed=0)
    recipe = Recipe(epochs=1, images=16, batch_size=8, lr=1e-2, warmup=0.0, drop_path=0.1)
    tuned = fit(start, task, recipe, Run(threads=1))
    changed = [
        name for name in start.state if not torch.equal(start.state[name], tuned.state[name])
    ]
    assert {"blocks.0.mlp.fc1.weight", "blocks.1.stitch.weight", "blocks.1.stitch.bias"} <= set(
        changed
    )
    assert tuned.provenance["metrics"]["training_images"] == 16
    assert evaluate(tuned.model(), task, "test", tuned.input_format, Run(threads=1)).images == 12
    assert measure_latency(SPEC, Run(threads=1)).seconds > 0


# --- what people see
# --------------------------------------------------------------------------------------------------


def test_it_is_no_ancestry(tmp_path: Path) -> None:
    folder = str(make_descendant(THREE).save(tmp_path / "stitched"))
    assert read_spec_at(folder) == THREE
    for refused in (read_ancestry_spec, open_ancestry):
        with pytest.raises(
            WrongCall,
            match=r"stitched model \(widths 16, 24, 32\); an ancestry model must have one width",
        ):
            refused(folder)
    with pytest.raises(WrongCall, match="one width"):
        lifecycle.plan("lsamd", ancestries=[folder])


def test_its_card_says_its_widths_and_how_to_open_it(tmp_path: Path) -> None:
    card = (make_descendant(THREE).save(tmp_path / "stitched") / "README.md").read_text()
    assert "vit-4-layers-16-24-32-wide-pool" in card
    assert (
        "1 layers of width 16 with 2 heads, then 2 of width 24 with 3 heads, then 1 of width 32"
        " with 4 heads" in card
    )
    assert "import learngene_zoo.timm  # registers the model with timm" in card
    both = (
        make_descendant(SPEC.with_(dense=True)).save(tmp_path / "dense") / "README.md"
    ).read_text()
    assert (
        "logits for every pixel. A linear layer, the stitch, leads from each width to the next."
        in both
    )


def test_show_says_what_is_in_front(tmp_path: Path) -> None:
    folder = make_descendant(THREE).save(tmp_path / "stitched")
    shown = CliRunner().invoke(main, ["show", str(folder), "--json"])
    assert shown.exit_code == 0, shown.stderr
    row = json.loads(shown.stdout)
    assert (row["layers"], row["width"], row["heads"], row["front"]) == (4, 32, 4, "1x16+2x24")
    assert row["params"] == make_descendant(THREE).cost().params
    fewer = CliRunner().invoke(main, ["show", str(folder), "--convention", "fvcore", "--json"])
    assert json.loads(fewer.stdout)["params"] < row["params"]
    plain = make_descendant(SPEC.with_(front=())).save(tmp_path / "plain")
    assert "front" not in json.loads(
        CliRunner().invoke(main, ["show", str(plain), "--json"]).stdout
    )


def test_rows_have_the_key_front_where_any_member_is_stitched() -> None:
    members = [
        Member(spec=SPEC.with_(front=())),
        Member(spec=SPEC, settings={"low": 1}),
        Member(spec=THREE),
    ]
    assert [row["front"] for row in list_sizes(members, "exact")] == ["", "1x16", "1x16+2x24"]
    assert "front" not in list_sizes(members[:1], "exact")[0]


@dataclass(frozen=True, kw_only=True)
class Paths(Expander):
    """Expands to `low` blocks of width 16 in front, of three blocks."""

    low: Annotated[int | None, "blocks in front"] = None

    def family(self, config: LearngeneConfig) -> Sequence[Member]:
        fronts = {low: (Segment(layers=low, width=16, heads=2),) if low else () for low in range(3)}
        return [
            Member(spec=config.spec.with_(front=front), settings={"low": low})
            for low, front in fronts.items()
        ]

    def __call__(self, learngene: Any, target: Target, run: Run) -> Descendant:
        raise AssertionError("nothing is built here")


def test_a_setting_that_was_told_narrows_the_family() -> None:
    config = LearngeneConfig(method="pool", spec=SPEC.with_(front=()))
    assert [m.settings["low"] for m in list_members(config, Paths(), Target())] == [0, 1, 2]
    assert [m.settings["low"] for m in list_members(config, Paths(low=2), Target(layers=3))] == [2]
    assert [m.settings["low"] for m in list_members(config, Paths(low=0), Target())] == [0]
    assert not list_members(config, Paths(low=0), Target(layers=4))
