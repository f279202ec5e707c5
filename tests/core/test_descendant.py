"""Descendants: assembled from parts, written in timm's format, opened strictly, and opened without
this package.
"""

import json
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
import timm
import torch
from safetensors.torch import load_file, save_file

from learngene_zoo.artifacts.descendant import (
    Descendant,
    assemble,
    fingerprint_of,
    load_descendant,
)
from learngene_zoo.artifacts.shelf import open_descendant
from learngene_zoo.errors import BadFile, Refused, WrongCall
from learngene_zoo.families import tensors
from learngene_zoo.families.family import count_cost
from learngene_zoo.families.tensors import get_shapes, initialise, take_blocks
from learngene_zoo.families.vit.spec import TABLE, ViTSpec
from learngene_zoo.pretrained.timm_model import open_model

SPEC = ViTSpec(layers=2, width=32, heads=4, image_size=32, patch_size=8, classes=3)
IMAGES_BCHW = torch.randn(2, 3, 32, 32, generator=torch.Generator().manual_seed(0))
PARTS = tensors.remove_head(initialise(SPEC, 7), SPEC)


def make_descendant(spec: ViTSpec = SPEC, **fields: object) -> Descendant:
    """Return a descendant that inherits everything except its head."""
    given = {
        "mean": (0.1, 0.2, 0.3),
        "std": (0.4, 0.5, 0.6),
        "provenance": {"method": "lsamd", "seed": 3},
        **fields,
    }
    body = tensors.remove_head(initialise(spec, 7), spec)
    return assemble(spec, body, seed=1, **given)  # type: ignore[arg-type]


# --- assembling
# --------------------------------------------------------------------------------------------------


def test_parts_are_inherited_and_the_rest_is_drawn() -> None:
    full = assemble(SPEC, PARTS, seed=1)
    assert full.inherited == set(PARTS)
    assert list(full.state) == list(get_shapes(SPEC))
    assert all(full.state[name] is PARTS[name] for name in PARTS)
    assert torch.equal(full.state["head.weight"], initialise(SPEC, 1)["head.weight"])
    assert not torch.equal(
        full.state["head.weight"], assemble(SPEC, PARTS, seed=2).state["head.weight"]
    )
    assert fingerprint_of(full) == fingerprint_of(assemble(SPEC, PARTS, seed=1))


def test_a_part_may_be_anything_from_nothing_to_all() -> None:
    assert assemble(SPEC, {}, seed=1).inherited == frozenset()
    assert assemble(SPEC, initialise(SPEC, 1), seed=2).inherited == set(get_shapes(SPEC))
    drawn = assemble(SPEC, {}, seed=1, scheme="fan_in").state
    assert all(
        torch.equal(drawn[name], tensor) for name, tensor in initialise(SPEC, 1, "fan_in").items()
    )


def test_parts_that_do_not_fit() -> None:
    with pytest.raises(WrongCall, match=r"has no tensor blocks\.2\.norm1\.weight; leave"):
        assemble(SPEC, {"blocks.2.norm1.weight": torch.ones(32)}, seed=0)
    with pytest.raises(
        WrongCall, match=r"tensor norm\.weight has shape \(31,\); the model to build needs \(32,\)"
    ):
        assemble(SPEC, {"norm.weight": torch.ones(31)}, seed=0)


def test_what_a_descendant_says_of_itself() -> None:
    model = make_descendant()
    assert (
        model.input_format.image_size,
        model.input_format.channels,
        model.input_format.mean,
        model.input_format.std,
    ) == (
        32,
        3,
        model.mean,
        model.std,
    )
    assert model.cost() == count_cost(SPEC)
    assert model.cost("thop") == count_cost(SPEC, "thop")
    assert assemble(SPEC.with_(channels=1), {}, seed=0).mean == (0.5,)


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"mean": (0.1,)}, "mean and std have 1 and 3 values for 3 channels"),
        ({"class_names": ("a",)}, "1 class names for 3"),
        ({"class_names": ("a", "b", "c", "d")}, "4 class names for 3"),
    ],
)
def test_numbers_that_do_not_fit(fields: dict, message: str) -> None:
    with pytest.raises(WrongCall, match=message):
        make_descendant(**fields)


@pytest.mark.parametrize(
    ("provenance", "licence"),
    [
        ({}, "unknown"),
        ({"licence": "mit"}, "mit"),
        ({"ancestries": [{"licence": "mit"}, {"licence": "bsd"}]}, "bsd AND mit"),
        ({"ancestries": [{"licence": "mit"}, {"licence": "unknown"}]}, "unknown"),
        ({"ancestries": [{}]}, "unknown"),
        ({"ancestries": []}, "unknown"),
        ({"ancestries": ["x"]}, "unknown"),
        ({"ancestries": "x"}, "unknown"),
    ],
)
def test_a_licence_is_inherited(provenance: dict, licence: str) -> None:
    assert make_descendant(provenance=provenance).licence == licence


def test_the_model_is_timms_and_knows_its_images() -> None:
    model = make_descendant(class_names=("a", "b", "c")).model()
    assert type(model).__module__.startswith("timm.")
    assert not model.training
    expected = timm.data.resolve_model_data_config(model)
    assert list(expected["input_size"]) == [3, 32, 32]
    assert (list(expected["mean"]), list(expected["std"])) == ([0.1, 0.2, 0.3], [0.4, 0.5, 0.6])
    assert list(model.pretrained_cfg["label_names"]) == ["a", "b", "c"]


def test_the_model_has_memory_of_its_own() -> None:
    full = replace(make_descendant(), state=take_blocks(make_descendant().state, SPEC, [1, 1]))
    before = fingerprint_of(full)
    model = full.model()
    with torch.no_grad():
        model.blocks[0].mlp.fc1.weight.zero_()
    assert fingerprint_of(full) == before
    assert not torch.equal(model.blocks[1].mlp.fc1.weight, model.blocks[0].mlp.fc1.weight)


def test_timm_can_save_the_model(tmp_path: Path) -> None:
    model = make_descendant().model()
    timm.models.save_for_hf(model, tmp_path, safe_serialization=True)
    again = timm.create_model(f"local-dir:{tmp_path}", pretrained=True).eval()
    assert torch.equal(again(IMAGES_BCHW), model(IMAGES_BCHW))


# --- tasks
# --------------------------------------------------------------------------------------------------


def test_a_model_made_for_a_task_keeps_its_head() -> None:
    for start in (make_descendant(task="digits"), make_descendant()):
        tuned = start.for_task("digits", ("a", "b", "c"), seed=9)
        assert (tuned.task, tuned.class_names) == ("digits", ("a", "b", "c"))
        assert torch.equal(tuned.state["head.weight"], start.state["head.weight"])


@pytest.mark.parametrize("names", [("a", "b", "c"), ("a", "b")])
def test_a_model_of_another_task_gets_a_fresh_head(names: tuple[str, ...]) -> None:
    start = make_descendant(task="objects")
    tuned = start.for_task("digits", names, seed=9)
    assert (tuned.task, tuned.spec.classes, tuned.class_names) == ("digits", len(names), names)
    assert all(
        torch.equal(tuned.state[name], start.state[name]) == (not TABLE.is_head(name))
        for name in PARTS
    )
    assert tuned.state["head.weight"].shape == (len(names), 32)
    assert not torch.equal(tuned.state["head.weight"], start.state["head.weight"][: len(names)])
    assert (tuned.provenance, tuned.mean, tuned.inherited) == (
        start.provenance,
        start.mean,
        start.inherited,
    )
    assert tuned.model()(IMAGES_BCHW).shape == (2, len(names))


def test_a_fresh_head_is_not_inherited() -> None:
    start = make_descendant(task="objects")
    full = replace(start, inherited=frozenset(start.state))
    assert "head.weight" in full.for_task("objects", ("a", "b", "c"), seed=9).inherited
    assert full.for_task("digits", ("a", "b"), seed=9).inherited == full.inherited - {
        "head.weight",
        "head.bias",
    }


def test_other_tensors_must_fit() -> None:
    with pytest.raises(BadFile, match="lacks the tensor cls_token"):
        make_descendant().with_state({})


# --- the folder
# --------------------------------------------------------------------------------------------------


def test_saved_and_opened_is_the_same(tmp_path: Path) -> None:
    start = make_descendant(
        task="digits",
        class_names=("a", "b", "c"),
        provenance={"method": "x", "metrics": {"accuracy": 0.5}},
    )
    assert start.save(tmp_path / "model") == tmp_path / "model"
    again = load_descendant(tmp_path / "model")
    assert replace(again, state=start.state, folder=None) == start
    assert again.folder == tmp_path / "model"
    assert fingerprint_of(again) == fingerprint_of(start)
    assert fingerprint_of(open_descendant(tmp_path / "model")) == fingerprint_of(start)
    assert open_descendant(start) is start
    assert sorted(path.name for path in (tmp_path / "model").iterdir()) == [
        ".lgzoo",
        "README.md",
        "config.json",
        "model.safetensors",
    ]


def test_half_precision_on_disk(tmp_path: Path) -> None:
    start = make_descendant()
    assert start.save(str(tmp_path / "half"), dtype="fp16") == tmp_path / "half"
    assert {
        tensor.dtype for tensor in load_file(tmp_path / "half" / "model.safetensors").values()
    } == {torch.float16}
    model = load_descendant(tmp_path / "half").model()
    assert {tensor.dtype for tensor in model.parameters()} == {torch.float32}
    assert torch.allclose(model(IMAGES_BCHW), start.model()(IMAGES_BCHW), atol=2e-2)


def test_a_folder_is_not_overwritten_but_by_force(tmp_path: Path) -> None:
    start = make_descendant()
    start.save(tmp_path / "model")
    opened = load_descendant(tmp_path / "model")
    other = make_descendant(SPEC.with_(layers=1))
    with pytest.raises(Refused, match="force=True"):
        other.save(tmp_path / "model")
    other.save(tmp_path / "model", force=True)
    assert fingerprint_of(load_descendant(tmp_path / "model")) == fingerprint_of(other)
    assert fingerprint_of(opened) == fingerprint_of(
        start
    )  # what was opened before is still what it was


def test_a_fingerprint_is_of_the_function() -> None:
    start = make_descendant()
    assert fingerprint_of(start) == fingerprint_of(replace(start, task="x", provenance={}))
    assert fingerprint_of(start) != fingerprint_of(replace(start, mean=(0.0, 0.0, 0.0)))
    assert fingerprint_of(start) != fingerprint_of(
        start.with_state({**start.state, "cls_token": torch.ones(1, 1, 32)})
    )
    assert fingerprint_of(start.with_state(tensors.cast(start.state, torch.bfloat16)))


ALONE = """
import sys

class Blocked:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] == "learngene_zoo":
            raise ImportError("blocked")

sys.meta_path.insert(0, Blocked())
sys.modules.pop("learngene_zoo", None)
import pathlib, timm, torch
from safetensors.torch import load_file

torch.set_num_threads(1)
for place in sorted(pathlib.Path(sys.argv[1]).iterdir()):
    case = load_file(place / "case.safetensors")
    model = timm.create_model(f"local-dir:{place}", pretrained=True).eval()
    with torch.no_grad():
        print(place.name, (model(case["images"]) - case["wanted"]).abs().max().item())
    images = timm.data.resolve_model_data_config(model)
    assert list(images["mean"]) == [0.1, 0.2, 0.3] and list(images["input_size"]) == [3, 32, 32], images
    assert timm.create_model(f"local-dir:{place}", pretrained=True, num_classes=9)(case["images"]).shape == (2, 9)
try:
    import learngene_zoo
except ImportError:
    print("alone")
"""


@pytest.mark.slow
def test_timm_opens_a_folder_in_a_process_without_this_package(tmp_path: Path) -> None:
    cases = {
        "plain": make_descendant(class_names=("a", "b", "c")),
        "registers": make_descendant(
            SPEC.with_(registers=2, class_token=False, pool="avg", no_embed_class=True)
        ),
        "scales": make_descendant(SPEC.with_(layer_scale=1e-2, qk_norm=True, mlp_ratio=2.7)),
        "other-norms": make_descendant(SPEC.with_(pre_norm=True, fc_norm=True, qkv_bias=False)),
        "dynamic": make_descendant(SPEC.with_(dynamic_image_size=True, final_norm=False)),
    }
    for name, case in cases.items():
        folder = case.save(tmp_path / "folders" / name)
        expected = {"images": IMAGES_BCHW, "wanted": case.model()(IMAGES_BCHW).detach()}
        save_file(expected, folder / "case.safetensors")
    command = [sys.executable, "-I", "-c", ALONE, str(tmp_path / "folders")]
    process = subprocess.run(command, capture_output=True, text=True, cwd="/", timeout=120)
    assert process.returncode == 0, process.stderr
    assert process.stdout.split("\n")[:-1] == [*(f"{name} 0.0" for name in sorted(cases)), "alone"]


# --- folders that are refused
# ---------------------------------------------------------------------------------------


def _config(change: Callable[[dict], object]) -> Callable[[Path], None]:
    def spoil(place: Path) -> None:
        config = json.loads((place / "config.json").read_text())
        change(config)
        (place / "config.json").write_text(json.dumps(config))

    return spoil


def _tensors(change: Callable[[dict], object]) -> Callable[[Path], None]:
    def spoil(place: Path) -> None:
        state = {
            name: tensor.clone() for name, tensor in load_file(place / "model.safetensors").items()
        }
        change(state)
        save_file(state, place / "model.safetensors")

    return spoil


@pytest.mark.parametrize(
    ("spoil", "message"),
    [
        (lambda place: (place / "config.json").unlink(), "config.json does not exist"),
        (lambda place: (place / "model.safetensors").unlink(), "model.safetensors does not exist"),
        (
            lambda place: (place / "model.safetensors").write_bytes(b"\x80\x04"),
            "not a readable safetensors",
        ),
        (_config(lambda c: c.pop("learngene")), "use it as an ancestry model"),
        (
            _config(lambda c: (c.clear(), c.update(method="lsamd", format=1))),
            "is a learngene, not a model",
        ),
        (
            _config(lambda c: c["learngene"].update(format=2)),
            "format is 2; this version reads format 1",
        ),
        (_config(lambda c: c["learngene"].pop("format")), "format is None"),
        (_config(lambda c: c["learngene"].pop("spec")), "'spec' is missing"),
        (
            _config(lambda c: c["learngene"]["spec"].update(layers="2")),
            "expected a value of type int",
        ),
        (_config(lambda c: c["learngene"]["spec"].update(width=10**9)), "width is 1000000000"),
        (_config(lambda c: c["learngene"]["spec"].update(heads=5)), "5 heads do not divide"),
        (_config(lambda c: c["learngene"]["spec"].update(colour=5)), "unknown key 'colour'"),
        (_config(lambda c: c["learngene"].update(inherited=["../x"])), "inherited names '../x'"),
        (_config(lambda c: c["learngene"].update(task=3)), "task is 3"),
        (
            _config(lambda c: c["model_args"].update(depth=3)),
            "contradicts itself: layers is 3 for timm and 2",
        ),
        (_config(lambda c: c["model_args"].update(num_heads=2)), "contradicts itself: heads is 2"),
        (
            _config(lambda c: c["model_args"].update(act_layer="silu")),
            "activation is silu for timm and gelu",
        ),
        (
            _config(lambda c: c.update(architecture="resnet18")),
            "resnet18 is a model of timm.models.resnet, which is not supported",
        ),
        (_config(lambda c: c.update(file="/etc/passwd")), "unknown key 'file'"),
        (_config(lambda c: c.update(label_names=["a"])), "1 class names for 3 classes"),
        (
            _config(lambda c: c["pretrained_cfg"].update(std=[0, 1, 1])),
            "positive number per channel",
        ),
        (
            # 0 in float32, by which normalisation divides.
            _config(lambda c: c["pretrained_cfg"].update(std=[1e-300, 1, 1])),
            r"std is \[1e-300, 1, 1\]; expected one positive number per channel, at least 1e-06",
        ),
        (_tensors(lambda t: t.pop("norm.weight")), "lacks the tensor norm.weight"),
        (_tensors(lambda t: t.update(other=torch.ones(1))), "has the tensor other"),
        (
            _tensors(lambda t: t.update({"norm.weight": torch.ones(31)})),
            r"norm.weight has shape \(31,\)",
        ),
        (
            _tensors(lambda t: t.update({"norm.weight": torch.ones(32).int()})),
            "does not hold floating-point numbers",
        ),
        (
            _tensors(lambda t: t["norm.weight"].fill_(float("inf"))),
            "norm.weight has values that are not finite",
        ),
    ],
)
def test_folders_that_are_refused(
    tmp_path: Path, spoil: Callable[[Path], None], message: str
) -> None:
    folder = make_descendant(class_names=("a", "b", "c")).save(tmp_path / "model")
    spoil(folder)
    with pytest.raises((BadFile, WrongCall), match=message) as error:
        load_descendant(folder).model()
    assert "\n" not in str(error.value)


def test_there_is_no_such_folder(tmp_path: Path) -> None:
    with pytest.raises(WrongCall, match=r"no model folder at .*lgzoo expand"):
        load_descendant(tmp_path / "nowhere")


# In transformers, which hands timm the number of classes beside `model_args`.


def test_transformers_can_build_the_folder_and_older_ones_stay_readable(tmp_path: Path) -> None:
    spec = ViTSpec(layers=2, width=16, heads=2, classes=3, image_size=16, patch_size=8)
    folder = assemble(spec, {}, seed=0, scheme="fan_in", class_names=("a", "b", "c")).save(
        tmp_path / "model"
    )
    config = json.loads((folder / "config.json").read_text())
    assert "num_classes" not in config["model_args"]
    model = timm.create_model(
        config["architecture"], num_classes=config["num_classes"], **config["model_args"]
    )
    assert model.load_state_dict(load_file(folder / "model.safetensors")).missing_keys == []
    config["model_args"]["num_classes"] = 3  # as this package wrote it before
    (folder / "config.json").write_text(json.dumps(config))
    assert load_descendant(folder).spec == spec


def test_transformers_gives_the_same_answers_and_class_names(tmp_path: Path) -> None:
    transformers = pytest.importorskip("transformers")
    spec = ViTSpec(
        layers=2,
        width=16,
        heads=2,
        classes=3,
        image_size=16,
        patch_size=8,
        pool="avg",
        norm_eps=1e-5,
    )
    model = assemble(
        spec, {}, seed=0, scheme="fan_in", class_names=("a", "b", "c"), mean=(0.1, 0.2, 0.3)
    )
    folder = model.save(tmp_path / "model")
    theirs = transformers.AutoModelForImageClassification.from_pretrained(folder).eval()
    images_BCHW = torch.linspace(-1, 1, 2 * 3 * 16 * 16).view(2, 3, 16, 16)
    with torch.no_grad():
        assert torch.equal(theirs(images_BCHW).logits, model.model()(images_BCHW))
    assert theirs.config.id2label == {0: "a", 1: "b", 2: "c"}
    processor = transformers.AutoImageProcessor.from_pretrained(folder)
    assert processor.data_config["mean"] == (0.1, 0.2, 0.3)
    assert processor.data_config["input_size"] == (3, 16, 16)
    theirs.save_pretrained(tmp_path / "again")
    again = open_model(tmp_path / "again")
    with torch.no_grad():
        assert torch.equal(again.model()(images_BCHW), model.model()(images_BCHW))
    assert again.class_names == ("a", "b", "c")
