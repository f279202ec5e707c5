"""Classifiers of timm of any architecture: opened, given a new head, written, and trained like
descendants.
"""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import huggingface_hub
import pytest
import timm
import torch
from click.testing import CliRunner
from timm.layers import resample_abs_pos_embed
from timm.models import save_for_hf

from learngene_zoo import lifecycle
from learngene_zoo.artifacts.descendant import Descendant, assemble
from learngene_zoo.cli.main import main
from learngene_zoo.errors import BadFile, WrongCall
from learngene_zoo.families.tensors import resize_positions
from learngene_zoo.families.vit.spec import ViTSpec
from learngene_zoo.pretrained import timm_model
from learngene_zoo.pretrained.timm_model import TimmModel, load_timm_model
from learngene_zoo.runs.run import Run
from learngene_zoo.settings import Recipe
from learngene_zoo.testing import make_tiny_task
from learngene_zoo.training.evaluate import check_head

COMMIT = "a" * 40
RUN = Run(threads=1)
ONE_EPOCH = Recipe(epochs=1, batch_size=16, lr=1e-3)
# One convolutional, one with batch norms and their counters, one with two heads.
KINDS = {
    "convnext_atto": {"depths": (1, 1, 1, 1), "dims": (4, 4, 8, 8)},
    "test_resnet": {},
    "test_vit": {},
}


def write_timm_folder(
    folder: Path, name: str = "test_resnet", size: int = 32, classes: int = 3, **arguments: object
) -> Path:
    """Write a folder with random weights as timm does."""
    images = {"input_size": (3, size, size), "mean": (0.1, 0.2, 0.3)}
    with torch.random.fork_rng():
        torch.manual_seed(0)
        sized = {"img_size": size} if "vit" in name else {}
        model = timm.create_model(
            name, num_classes=classes, pretrained_cfg_overlay=images, **sized, **arguments
        )
    save_for_hf(model, folder, safe_serialization=True, model_args={**sized, **arguments})
    return folder


@pytest.fixture(scope="module")
def resnet(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_timm_folder(tmp_path_factory.mktemp("models") / "resnet")


def answers(model: torch.nn.Module, size: int = 32) -> torch.Tensor:
    images = torch.linspace(-1, 1, 2 * 3 * size * size).view(2, 3, size, size)
    with torch.no_grad():
        return model.eval()(images)


@pytest.mark.parametrize(
    ("name", "width"), [("convnext_atto", 8), ("test_resnet", 96), ("test_vit", 64)]
)
def test_its_width_is_that_of_its_features(name: str, width: int, tmp_path: Path) -> None:
    assert load_timm_model(write_timm_folder(tmp_path / name, name, **KINDS[name])).width == width


@pytest.mark.parametrize("name", KINDS)
def test_a_folder_of_timms_is_the_same_model_here_and_back_in_timm(
    name: str, tmp_path: Path
) -> None:
    theirs = write_timm_folder(tmp_path / "theirs", name, **KINDS[name])
    opened = timm_model.open_model(theirs)
    assert isinstance(opened, TimmModel)
    assert (opened.classes, opened.input_format.image_size, opened.input_format.mean) == (
        3,
        32,
        (0.1, 0.2, 0.3),
    )
    expected = answers(timm.create_model(f"local-dir:{theirs}", pretrained=True))
    assert torch.equal(answers(opened.model()), expected)
    tuned = opened.for_task("new", ("a", "b"), seed=1)
    tuned.save(tmp_path / "ours")
    again = timm_model.open_model(tmp_path / "ours")
    assert (again.task, again.class_names) == ("new", ("a", "b"))
    assert torch.equal(answers(again.model()), answers(tuned.model()))


@pytest.mark.parametrize(
    ("name", "size"), [("test_vit", (3, 64, 64)), ("test_resnet", (1, 64, 64))]
)
def test_size_and_channels_of_the_images_need_not_be_among_the_arguments(
    name: str, size: tuple[int, int, int], tmp_path: Path
) -> None:
    folder = write_timm_folder(tmp_path / "theirs", name, 64, in_chans=size[0])
    config = json.loads((folder / "config.json").read_text())
    del config["model_args"]
    config["pretrained_cfg"] |= {"input_size": size, "fixed_input_size": name == "test_vit"}
    (folder / "config.json").write_text(json.dumps(config))
    images = torch.linspace(-1, 1, 2 * size[0] * 64 * 64).view(2, *size)
    expected = timm.create_model(f"local-dir:{folder}", pretrained=True).eval()(images)
    opened = load_timm_model(folder)
    assert torch.equal(opened.model()(images), expected)
    opened.for_task("new", ("a", "b"), seed=1).save(tmp_path / "ours")
    assert load_timm_model(tmp_path / "ours").model()(images).shape == (2, 2)


@pytest.mark.slow
def test_what_was_trained_here_needs_nothing_of_ours(resnet: Path, tmp_path: Path) -> None:
    load_timm_model(resnet).for_task("new", ("a", "b"), seed=1).save(tmp_path / "ours")
    alone = (
        f"import timm, torch; m = timm.create_model('local-dir:{tmp_path}/ours',"
        " pretrained=True).eval()"
    )
    alone += "; x = torch.linspace(-1, 1, 6144).view(2, 3, 32, 32); print(m(x).tolist())"
    process = subprocess.run(
        [sys.executable, "-P", "-c", alone], capture_output=True, text=True, check=True, env={}
    )
    expected = answers(timm_model.open_model(tmp_path / "ours").model())
    assert torch.allclose(torch.tensor(json.loads(process.stdout)), expected, atol=1e-6)


def test_only_the_head_is_fresh_and_it_is_a_function_of_the_seed(resnet: Path) -> None:
    opened = load_timm_model(resnet)
    first, same, second = (opened.for_task("t", ("a", "b"), seed=seed).state for seed in (1, 1, 2))
    assert all(torch.equal(first[name], same[name]) for name in first)
    assert {name for name in first if not torch.equal(first[name], second[name])} == {
        "fc.weight",
        "fc.bias",
    }
    assert all(
        torch.equal(first[name], opened.state[name]) for name in first if not name.startswith("fc.")
    )


def test_a_head_is_kept_only_for_classes_of_the_same_names(resnet: Path) -> None:
    opened = load_timm_model(resnet)
    named = opened.for_task("pets", ("cat", "dog", "emu"), seed=1)
    assert named.for_task("others", ("cat", "dog", "emu"), seed=2).state is named.state
    assert named.for_task("pets", ("cat", "dog", "eel"), seed=2).state is not named.state
    assert opened.for_task("pets", ("cat", "dog", "emu"), seed=2).state is not opened.state, (
        "its own names are unknown"
    )
    with pytest.raises(WrongCall, match="one class per pixel"):
        opened.for_task("scenes", ("sky", "sea"), seed=1, dense=True)


@pytest.mark.slow
def test_training_and_measuring_one_is_as_for_a_descendant(
    resnet: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(
        "learngene_zoo.lifecycle.opening.open_task", lambda name, **_: make_tiny_task(name)
    )
    calls = [lifecycle.finetune(resnet, task="tiny", recipe=ONE_EPOCH, run=RUN) for _ in range(2)]
    assert all(torch.equal(calls[0].state[name], calls[1].state[name]) for name in calls[0].state)
    model = lifecycle.finetune(
        resnet, task="tiny", recipe=ONE_EPOCH, keep="last", out=tmp_path / "tuned", run=RUN
    )
    assert model.state["bn1.num_batches_tracked"] == 3, "it was trained"
    data = json.loads(CliRunner().invoke(main, ["show", str(tmp_path / "tuned"), "--json"]).stdout)
    assert (data["architecture"], data["classes"], data["image_size"]) == ("test_resnet", 3, 32)
    assert data["validation_accuracy"] == model.provenance["metrics"]["validation_accuracy"]
    evaluation = lifecycle.evaluate(tmp_path / "tuned", task="tiny", run=RUN)
    assert evaluation.images == 12
    assert (
        lifecycle.finetune(tmp_path / "tuned", task="tiny", recipe=Recipe(epochs=0)).class_names
        == model.class_names
    )


def test_a_model_whose_classes_have_other_names_is_not_scored(resnet: Path) -> None:
    task = make_tiny_task()
    named = load_timm_model(resnet).for_task("pets", ("class 0", "class 1", "class 2"), seed=1)
    check_head(named, task)
    with pytest.raises(
        WrongCall, match="class 1 is 'dog' for the model and 'class 1' for the task; train it first"
    ):
        check_head(named.with_state(named.state, class_names=("class 0", "dog", "class 2")), task)
    ours = assemble(
        ViTSpec(layers=1, width=8, heads=2, classes=3, image_size=16, patch_size=8), {}, seed=0
    )
    check_head(ours, task)  # it knows no names: their number counts
    with pytest.raises(WrongCall, match="class 0 is 'class 2'"):
        check_head(
            Descendant(spec=ours.spec, state=ours.state, class_names=task.class_names[::-1]), task
        )


def test_a_name_of_timms_is_pinned_as_ancestries_are(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "models--timm--test_resnet.r160_in1k" / "snapshots" / COMMIT
    write_timm_folder(folder, size=160, classes=1000)
    monkeypatch.setattr(
        huggingface_hub, "hf_hub_download", lambda repo_id, filename, **_: str(folder / filename)
    )
    (folder / "README.md").write_text("---\nlicense: cc-by-4.0\n---\n")
    opened = timm_model.open_model("timm:test_resnet")
    assert opened.provenance["origin"]["revision"] == COMMIT
    assert opened.provenance["origin"]["sha256"]
    assert opened.licence == "cc-by-4.0"
    assert (opened.classes, opened.input_format.image_size) == (1000, 160)
    assert (
        timm_model.open_model("hf-hub:timm/test_resnet.r160_in1k").provenance["origin"]["revision"]
        == COMMIT
    )
    with pytest.raises(
        WrongCall, match="no timm model named 'tast_resnet'; did you mean test_resnet"
    ):
        timm_model.open_model("timm:tast_resnet")


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (
            {"model_args": {"checkpoint_path": "/tmp/evil"}},
            "argument checkpoint_path is '/tmp/evil'",
        ),
        ({"model_args": {"act_layer": "os.system('x')"}}, "argument act_layer"),
        ({"model_args": {"stem_width": 10**9}}, "argument stem_width"),
        ({"model_args": {"nobody": 1}}, "does not hold the model"),
        ({"architecture": "resnot"}, "no timm model named 'resnot'"),
        ({"num_classes": 7}, "(?s)does not hold the model.*size mismatch for fc"),
        ({"pretrained_cfg": {"input_size": [3, 32, 48]}}, "only square images"),
    ],
)
def test_a_folder_that_is_not_to_be_trusted(
    resnet: Path, tmp_path: Path, change: dict, message: str
) -> None:
    config = json.loads((resnet / "config.json").read_text())
    (tmp_path / "config.json").write_text(json.dumps({**config, **change}))
    (tmp_path / "model.safetensors").write_bytes((resnet / "model.safetensors").read_bytes())
    with pytest.raises((BadFile, WrongCall), match=message):
        load_timm_model(tmp_path)


def test_a_pickle_is_refused_by_name(resnet: Path, tmp_path: Path) -> None:
    (tmp_path / "config.json").write_bytes((resnet / "config.json").read_bytes())
    (tmp_path / "pytorch_model.bin").write_bytes(b"x")
    with pytest.raises(BadFile, match=r"pytorch_model\.bin is not a safetensors file"):
        load_timm_model(tmp_path)


@pytest.mark.parametrize("name", KINDS)
def test_a_classifier_is_opened_for_another_image_size(name: str, tmp_path: Path) -> None:
    model = load_timm_model(write_timm_folder(tmp_path / "small", name, **KINDS[name]))
    large = model.with_image_size(64)
    assert large.input_format.image_size == 64
    assert answers(large.model(), 64).shape == (2, 3)
    changed = {key for key, tensor in model.state.items() if not large.state[key].equal(tensor)}
    assert changed == ({"pos_embed"} if "vit" in name else set())
    if "vit" in name:
        resampled = resample_abs_pos_embed(model.state["pos_embed"], (4, 4), num_prefix_tokens=1)
        assert torch.allclose(large.state["pos_embed"], resampled)
    large.save(tmp_path / "large")
    assert answers(timm_model.open_model(tmp_path / "large").model(), 64).equal(
        answers(large.model(), 64)
    )
    assert model.with_image_size(32) is model


def test_a_size_that_an_architecture_does_not_take_is_refused(tmp_path: Path) -> None:
    model = load_timm_model(write_timm_folder(tmp_path / "vit", "test_vit"))
    with pytest.raises(WrongCall, match="test_vit does not take images of 8 pixels"):
        model.with_image_size(8)


def test_a_fine_tuning_changes_the_image_size() -> None:
    spec = ViTSpec(layers=1, width=16, heads=2, classes=0, image_size=16, patch_size=8)
    model = assemble(spec, {}, seed=0)
    tuned = lifecycle.finetune(
        model, task="digits", image_size=32, epochs=0, images=20, head="random", run=RUN
    )
    assert isinstance(tuned, Descendant)
    assert tuned.spec == spec.with_(image_size=32, classes=10)
    assert tuned.state["pos_embed"].equal(
        resize_positions(model.state, spec, tuned.spec)["pos_embed"]
    )
    with pytest.raises(WrongCall, match="patches of 8 pixels do not tile an image of 20"):
        lifecycle.finetune(model, task="digits", image_size=20, run=RUN)
    with pytest.raises(WrongCall, match="the model takes texts; leave it out"):
        lifecycle.finetune("ancestry-words", task="digits", image_size=32, run=RUN)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"num_classes": "abc"}, "num_classes is 'abc'; expected a whole number from 0 to"),
        ({"num_classes": [3]}, "num_classes is"),
        ({"num_classes": 10**9}, "num_classes is 1000000000"),
        ({"input_size": [3, 0, 0]}, "input_size is"),
        ({"input_size": [3, -4, -4]}, "input_size is"),
    ],
)
def test_impossible_sizes_in_a_config_are_refused(
    changes: dict[str, object], message: str, tmp_path: Path
) -> None:
    folder = write_timm_folder(tmp_path / "model")
    config = json.loads((folder / "config.json").read_text())
    del config["num_classes"]
    config["pretrained_cfg"] |= changes
    (folder / "config.json").write_text(json.dumps(config))
    with pytest.raises(BadFile) as caught:
        timm_model.open_model(folder)
    assert message in str(caught.value)
