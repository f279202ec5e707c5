"""Ancestry models: their sources, pinning, and refusals."""

import json
from collections.abc import Callable
from pathlib import Path

import pytest
import timm
import torch
from safetensors.torch import save_file

from learngene_zoo.artifacts import shelf
from learngene_zoo.artifacts.descendant import assemble
from learngene_zoo.artifacts.own_data import LocalOrigin
from learngene_zoo.artifacts.records import AncestryRecord
from learngene_zoo.artifacts.shelf import BUNDLED_CARD
from learngene_zoo.errors import BadFile, Unavailable, WrongCall, ZooError
from learngene_zoo.families.tensors import build_model, initialise
from learngene_zoo.families.timm_config import write_timm_config
from learngene_zoo.families.vit.spec import ViTSpec
from learngene_zoo.pretrained.ancestry import (
    find_origins_of_models,
    open_ancestry,
    read_ancestry_spec,
    reopen_ancestry,
)
from learngene_zoo.settings import from_json, to_json
from learngene_zoo.storage import compute_sha256

SPEC = ViTSpec(layers=2, width=32, heads=4, image_size=32, patch_size=8, classes=3)
IMAGES_BCHW = torch.randn(2, 3, 32, 32, generator=torch.Generator().manual_seed(0))
COMMIT = "0123456789abcdef0123456789abcdef01234567"


def write_folder(
    place: Path, spec: ViTSpec = SPEC, dtype: torch.dtype = torch.float32, **root: object
) -> Path:
    """Write the folder of an ancestry model in timm's layout."""
    place.mkdir(parents=True, exist_ok=True)
    config = write_timm_config(
        spec, mean=(0.1, 0.2, 0.3), std=(0.4, 0.5, 0.6), class_names=(), licence="mit"
    )
    (place / "config.json").write_text(json.dumps({**config, **root}))
    save_file(
        {name: tensor.to(dtype) for name, tensor in initialise(spec, 0).items()},
        place / "model.safetensors",
    )
    return place


def test_a_folder_is_opened_and_pinned(tmp_path: Path) -> None:
    folder = write_folder(tmp_path, label_names=["a", "b", "c"], something_of_theirs=1)
    ancestry = open_ancestry(str(folder))
    assert ancestry.spec == SPEC == read_ancestry_spec(str(folder))
    assert (ancestry.record.source, ancestry.record.licence, ancestry.record.revision) == (
        str(folder),
        "mit",
        None,
    )
    assert ancestry.record.sha256 == compute_sha256(folder / "model.safetensors")
    assert (ancestry.record.mean, ancestry.record.std) == ((0.1, 0.2, 0.3), (0.4, 0.5, 0.6))
    assert (
        ancestry.input_format.image_size,
        ancestry.input_format.channels,
        ancestry.input_format.mean,
    ) == (
        32,
        3,
        (0.1, 0.2, 0.3),
    )
    assert ancestry.class_names == ("a", "b", "c")
    theirs = timm.create_model(f"local-dir:{folder}", pretrained=True).eval()
    assert torch.equal(ancestry.model()(IMAGES_BCHW), theirs(IMAGES_BCHW))


def test_another_image_size_is_the_one_that_timm_makes_of_it(tmp_path: Path) -> None:
    folder = write_folder(tmp_path)
    ancestry = open_ancestry(str(folder), image_size=48)
    assert (ancestry.spec, ancestry.record.sha256) == (
        SPEC.with_(image_size=48),
        compute_sha256(folder / "model.safetensors"),
    )
    assert ancestry.identity != open_ancestry(str(folder)).identity
    images_BCHW = torch.randn(2, 3, 48, 48, generator=torch.Generator().manual_seed(0))
    theirs = timm.create_model(f"local-dir:{folder}", pretrained=True, img_size=48).eval()
    assert torch.equal(ancestry.model()(images_BCHW), theirs(images_BCHW))
    assert reopen_ancestry(ancestry.record, str(folder)).spec == ancestry.spec


def test_a_model_on_the_shelf_is_reopened_by_its_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    ancestry = open_ancestry("ancestry-narrow")
    assert find_origins_of_models([ancestry.record]) == {}
    assert reopen_ancestry(ancestry.record, None).identity == ancestry.identity
    # A location that is remembered, and gone, does not hide it.
    gone = LocalOrigin(str(tmp_path / "ancestry-narrow"), str(ancestry.record.sha256))
    monkeypatch.setattr("learngene_zoo.pretrained.ancestry.find_origin", lambda source: gone)
    assert reopen_ancestry(ancestry.record, None).identity == ancestry.identity
    # A folder of that name is the user's own.
    write_folder(tmp_path / "ancestry-narrow")
    with pytest.raises(BadFile, match="it is another model than the one before"):
        reopen_ancestry(ancestry.record, None)


def test_another_pooling_leaves_out_the_tensors_of_its_own(tmp_path: Path) -> None:
    spec = SPEC.with_(pool="map", registers=1)
    assemble(spec, {}, seed=0, scheme="fan_in").save(tmp_path / "map")
    full, ancestry = (
        open_ancestry(str(tmp_path / "map")),
        open_ancestry(str(tmp_path / "map"), pool="avg"),
    )
    assert (full.spec, full.record.left_out) == (spec, ())
    assert (ancestry.spec, ancestry.record.left_out) == (
        spec.with_(pool="avg", fc_norm=False),
        ("pooling by attention",),
    )
    theirs = timm.create_model(
        f"local-dir:{tmp_path / 'map'}", pretrained=True, global_pool="map"
    ).eval()
    with torch.no_grad():
        pooled = theirs.forward_features(IMAGES_BCHW)[:, 2:].mean(dim=1)
        assert torch.equal(ancestry.model()(IMAGES_BCHW), theirs.head(pooled))
    again = reopen_ancestry(
        from_json(AncestryRecord, to_json(ancestry.record), "FILE"), str(tmp_path / "map")
    )
    assert (again.spec, list(again.state)) == (ancestry.spec, list(ancestry.state))
    assert open_ancestry(str(tmp_path / "map"), pool="token").spec == spec.with_(pool="token")
    for pool, message in (("map", "use pool 'avg'"), ("mean", "pool")):
        with pytest.raises(WrongCall, match=message):
            open_ancestry(str(write_folder(tmp_path / pool)), pool=pool)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_half_precision_is_widened(tmp_path: Path, dtype: torch.dtype) -> None:
    ancestry = open_ancestry(str(write_folder(tmp_path, dtype=dtype)))
    initial_state = initialise(SPEC, 0)
    assert all(
        torch.equal(tensor, initial_state[name].to(dtype).float())
        for name, tensor in ancestry.state.items()
    )
    assert {tensor.dtype for tensor in ancestry.state.values()} == {torch.float32}


def test_class_names_of_another_number_of_classes_are_left_out(tmp_path: Path) -> None:
    assert open_ancestry(str(write_folder(tmp_path, label_names=["a", "b"]))).class_names == ()


def test_a_file_with_its_config_beside_it(tmp_path: Path) -> None:
    folder = write_folder(tmp_path)
    (folder / "model.safetensors").rename(folder / "weights.safetensors")
    assert open_ancestry(str(folder / "weights.safetensors")).spec == SPEC


def test_a_file_with_the_name_of_its_architecture(tmp_path: Path) -> None:
    with torch.device("meta"):
        spec = read_ancestry_spec("timm:test_vit.r160_in1k")
    save_file(dict(initialise(spec, 0)), tmp_path / "w.safetensors")
    ancestry = open_ancestry(f"{tmp_path}/w.safetensors#test_vit")
    assert (ancestry.spec, ancestry.record.licence) == (spec, "unknown")
    with pytest.raises(BadFile, match=r"no config.json beside .*#ARCHITECTURE"):
        open_ancestry(f"{tmp_path}/w.safetensors")


def test_the_licence_of_a_folder_is_that_of_its_config_or_of_its_card(tmp_path: Path) -> None:
    folder = write_folder(tmp_path)
    config = json.loads((folder / "config.json").read_text())
    (folder / "README.md").write_text("---\nlicense: bsd-3-clause\n---\n# A model\n")
    for declared, licence in (("mit", "mit"), (None, "bsd-3-clause")):
        config["pretrained_cfg"]["license"] = declared
        (folder / "config.json").write_text(json.dumps(config))
        assert open_ancestry(str(folder)).record.licence == licence


def test_the_bundled_language_model_has_the_licence_of_its_card() -> None:
    pytest.importorskip("transformers")
    assert open_ancestry("ancestry-words").record.licence == "apache-2.0"


def test_a_descendant_can_be_an_ancestry(tmp_path: Path) -> None:
    model = assemble(SPEC, {}, seed=0, provenance={"licence": "apache-2.0"})
    ancestry = open_ancestry(str(model.save(tmp_path / "model")))
    assert ancestry.record.licence == "apache-2.0"
    assert torch.equal(ancestry.model()(IMAGES_BCHW), model.model()(IMAGES_BCHW))


def test_the_bundled_one_lies_on_the_shelf(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shelf, "find_cards_folder", lambda: tmp_path)
    with pytest.raises(Unavailable, match="no bundled ancestry"):
        open_ancestry("bundled")
    write_folder(tmp_path / BUNDLED_CARD)
    ancestry = open_ancestry("bundled")
    assert (ancestry.record.source, ancestry.spec) == ("bundled", SPEC)
    assert read_ancestry_spec("bundled") == SPEC


# --- what a config may say
# ------------------------------------------------------------------------------------------


def test_timm_reads_a_foreign_config_as_we_do(tmp_path: Path) -> None:
    """Missing entries of a config have timm's defaults: number of classes, channels, image size."""
    args = {"embed_dim": 32, "depth": 1, "num_heads": 2, "drop_path_rate": 0.1, "act_layer": None}
    cfg = {"num_classes": 4, "input_size": [1, 64, 64], "fixed_input_size": True}
    for root in (
        {"architecture": "deit_tiny_patch16_224", "model_args": args, "pretrained_cfg": cfg},
        {
            "architecture": "deit3_small_patch16_224",
            "model_args": args,
            "pretrained_cfg": {},
            "num_classes": 7,
        },
        {
            "architecture": "vit_tiny_patch16_384",
            "model_args": {**args, "img_size": [32, 32]},
            "pretrained_cfg": cfg,
        },
        {
            "architecture": "vit_little_patch16_reg4_gap_256",
            "model_args": args,
            "pretrained_cfg": {"num_classes": 2},
        },
        {"architecture": "test_vit", "num_classes": 6},
        {"architecture": "vit_tiny_patch16_384", "pretrained_cfg": {}},
        {"architecture": "vit_small_patch14_dinov2", "pretrained_cfg": {}},
    ):
        (tmp_path / "config.json").write_text(json.dumps(root))
        (tmp_path / "model.safetensors").touch()
        spec = read_ancestry_spec(str(tmp_path))
        with torch.device("meta"):
            theirs = timm.create_model(f"local-dir:{tmp_path}", weight_init="skip")
        ours = {name: tensor.shape for name, tensor in initialise(spec, 0).items()}
        assert ours == {name: tensor.shape for name, tensor in theirs.state_dict().items()}, root


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"architecture": None}, "names no timm architecture"),
        ({"architecture": ["ViTForImageClassification"]}, "names no timm architecture"),
        (
            {"architecture": "vit_bose_patch16_224"},
            "no timm model named 'vit_bose_patch16_224'; did you mean vit_base",
        ),
        (
            {"architecture": "resnet18"},
            "resnet18 is a model of timm.models.resnet, which is not supported; supported are",
        ),
        ({"architecture": "../../etc/passwd"}, "no timm model named"),
        ({"model_args": ["depth"]}, "model_args is list"),
        ({"model_args": {"depth": "12"}}, 'layers is "12"; expected a value of type int'),
        (
            {"model_args": {"depth": 10**12}},
            "layers is 1000000000000; it must be between 1 and 512",
        ),
        ({"model_args": {"embed_dim": 10**6, "num_heads": 1}}, "width is 1000000"),
        ({"model_args": {"num_heads": 5}}, "5 heads do not divide"),
        ({"model_args": {"attn_layer": "diff"}}, "model_args has 'attn_layer'"),
        (
            {"model_args": {"norm_layer": "simplenorm"}},
            "norm_layer is 'simplenorm'; supported are layernorm, rmsnorm",
        ),
        ({"model_args": {"norm_layer": ["rmsnorm"]}}, "norm_layer is"),
        ({"model_args": {"embed_norm_layer": "rmsnorm"}}, "embed_norm_layer is not norm_layer"),
        ({"model_args": {"scale_mlp_norm": True}}, "only both are supported"),
        ({"model_args": {"act_layer": "tanh"}}, 'activation is "tanh"'),
        (
            {"model_args": {"pretrained_cfg_overlay": {"file": "/etc/passwd"}}},
            "model_args has 'pretrained_cfg_overlay'",
        ),
        ({"model_args": {"img_size": [32, 16]}}, "only square"),
        ({"model_args": {"global_pool": "prr"}}, 'pool is "prr"'),
        ({"pretrained_cfg": 3}, "pretrained_cfg is int"),
        ({"pretrained_cfg": {"input_size": [3, "x", 1]}}, "input_size is"),
        ({"pretrained_cfg": {"input_size": [3, 32, 16], "fixed_input_size": True}}, "only square"),
        ({"pretrained_cfg": {"mean": "x"}}, "mean is x"),
        ({"pretrained_cfg": {"std": [0.1, 0.0, 0.1]}}, "std is .* positive number"),
        ({"num_classes": True, "model_args": {}}, "num_classes is True"),
        ({"label_names": {"0": "a"}}, "label_names must be a list of strings"),
    ],
    ids=lambda value: str(value)[:60],
)
def test_configs_that_are_refused(tmp_path: Path, changes: dict, message: str) -> None:
    folder = write_folder(tmp_path, **changes)
    with pytest.raises(ZooError, match=message) as error:
        open_ancestry(str(folder))
    assert "\n" not in str(error.value)


def test_an_average_serves_channels_that_a_config_has_no_numbers_for(tmp_path: Path) -> None:
    folder = write_folder(tmp_path, SPEC.with_(channels=1))
    assert open_ancestry(str(folder)).record.mean == pytest.approx((0.2,))


# --- files that are refused
# -----------------------------------------------------------------------------------------


def _pickle_instead(place: Path) -> None:
    (place / "model.safetensors").rename(place / "pytorch_model.bin")


def _truncate(place: Path) -> None:
    data = (place / "model.safetensors").read_bytes()
    (place / "model.safetensors").write_bytes(data[: len(data) // 2])


def _rewrite(change: Callable[[dict], object]) -> Callable[[Path], None]:
    def spoil(place: Path) -> None:
        state = dict(initialise(SPEC, 0))
        change(state)
        save_file(state, place / "model.safetensors")

    return spoil


@pytest.mark.parametrize(
    ("spoil", "message"),
    [
        (lambda place: (place / "config.json").unlink(), "no config.json beside"),
        (lambda place: (place / "config.json").write_text("{"), "not valid JSON"),
        (lambda place: (place / "config.json").write_text('{"method": "lsamd"}'), "is a learngene"),
        (lambda place: (place / "model.safetensors").unlink(), "has no weights"),
        (_pickle_instead, "may run code when opened; convert it"),
        (_truncate, "not a readable safetensors"),
        (
            _rewrite(lambda state: state["norm.weight"].fill_(float("nan"))),
            "norm.weight has values that are not finite",
        ),
        (_rewrite(lambda state: state.pop("norm.weight")), "lacks the tensor norm.weight"),
        (_rewrite(lambda state: state.update(other=torch.ones(1))), "has the tensor other"),
        (
            _rewrite(lambda state: state.update(cls_token=torch.ones(1, 1, 8))),
            r"cls_token has shape \(1, 1, 8\)",
        ),
        (
            _rewrite(lambda state: state.update(cls_token=torch.ones(1, 1, 32).int())),
            "does not hold floating-point numbers",
        ),
    ],
)
def test_folders_that_are_refused(
    tmp_path: Path, spoil: Callable[[Path], None], message: str
) -> None:
    folder = write_folder(tmp_path)
    spoil(folder)
    with pytest.raises(BadFile, match=message) as error:
        open_ancestry(str(folder))
    assert str(folder) in str(error.value)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize("suffix", [".pth", ".pt", ".bin", ".npz", ".pkl", ".ckpt", ".PTH"])
def test_pickles_are_refused(tmp_path: Path, suffix: str) -> None:
    (tmp_path / f"weights{suffix}").write_bytes(b"\x80\x04")
    for source in (
        f"{tmp_path}/weights{suffix}",
        f"{tmp_path}/weights{suffix}#vit_tiny_patch16_224",
    ):
        with pytest.raises(BadFile, match="may run code when opened"):
            open_ancestry(source)


@pytest.mark.parametrize(
    ("source", "message"),
    [
        ("deit_base_patch16_224", "did you mean timm:deit_base_patch16_224?"),
        ("deit_bas_patch16_224", "did you mean timm:deit_base_patch16_224?"),
        ("ancestry-word", "did you mean ancestry-words?"),
        ("timm/vit_tiny", "did you mean hf-hub:timm/vit_tiny?"),
        ("hfhub:timm/vit_tiny", "no source of ancestry models named 'hfhub'; did you mean hf-hub?"),
        ("./nowhere", "no file or folder nowhere to open"),
        ("./nowhere.safetensors#vit_tiny_patch16_224", "no file or folder nowhere.safetensors"),
        ("timm:", "does not name a model"),
        ("", "the ancestry is empty; write timm:NAME"),
        (
            "timm:deit_bose_patch16_224",
            "no timm model named 'deit_bose_patch16_224'; did you mean deit_base_patch16_224",
        ),
        ("timm:deit_base_patch16_224.nobody", "no pretrained tag of deit_base_patch16_224 named"),
        ("timm:zzzzzzzzzzzz", "lgzoo list ancestries"),
        (
            "timm:resnet18",
            "resnet18 is a model of timm.models.resnet, which is not supported; supported are",
        ),
        (
            "timm:swin_tiny_patch4_window7_224",
            "is a model of timm.models.swin_transformer, which is not supported",
        ),
        (
            "timm:vit_pwee_patch16_reg1_gap_256.sbb_in1k",
            "ParallelScalingBlock for blocks.0.*supported are",
        ),
        ("timm:vit_base_patch16_18x2_224", "ParallelThingsBlock"),
    ],
)
def test_sources_that_cannot_be_meant(source: str, message: str) -> None:
    for call in (open_ancestry, read_ancestry_spec):
        with pytest.raises(WrongCall, match=message.replace("?", r"\?")) as error:
            call(source)
        assert "\n" not in str(error.value)


def test_an_ancestry_is_not_changed_by_its_models(tmp_path: Path) -> None:
    ancestry = open_ancestry(str(write_folder(tmp_path)))
    before = {name: tensor.clone() for name, tensor in ancestry.state.items()}
    with torch.no_grad():
        for tensor in ancestry.model().parameters():
            tensor.zero_()
    assert all(torch.equal(ancestry.state[name], before[name]) for name in before)
    assert torch.equal(ancestry.model()(IMAGES_BCHW), build_model(SPEC, before)(IMAGES_BCHW))
