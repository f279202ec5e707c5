"""A family is a value: generic code asks its table, shown with a second family without common
names.
"""

from __future__ import annotations

import sys
from dataclasses import dataclass
from types import ModuleType
from typing import Any, Literal

import pytest
import torch
from torch import nn

from learngene_zoo.artifacts.records import AncestryRecord, LearngeneConfig
from learngene_zoo.errors import BadFile, WrongCall
from learngene_zoo.families import spec as specs
from learngene_zoo.families import tensors
from learngene_zoo.families.family import (
    Family,
    Table,
    count_cost,
    get_table,
    iterate_families,
    load_family,
    make_norm_rows,
    make_row,
)
from learngene_zoo.families.picture_spec import PictureSpec
from learngene_zoo.families.spec import Spec
from learngene_zoo.families.surgery import map_axes
from learngene_zoo.families.tensors import (
    build_model,
    get_shapes,
    get_state_dict,
    initialise,
    take_blocks,
)
from learngene_zoo.families.timm_config import find_architecture, write_timm_config
from learngene_zoo.families.vit.spec import ViTSpec
from learngene_zoo.method.installed import METHODS, check_family
from learngene_zoo.method.sizes import Target
from learngene_zoo.settings import from_json, to_json

VIT = ViTSpec(layers=2, width=32, heads=4, image_size=32, patch_size=8, classes=5)


@dataclass(frozen=True, kw_only=True)
class ToySpec(PictureSpec):
    """A stack of linear layers."""

    family: Literal["toy"] = "toy"
    gain: float = 1.5


TOY_TABLE = Table(
    prefix="trunk.layer.",
    sizes=lambda spec: {
        "width": spec.width,
        "hidden": spec.hidden,
        "pixels": 48,
        "classes": spec.classes,
    },
    stem=(make_row("read.weight", "width, pixels", "matrix"),),
    block=(
        make_row("up.weight", "hidden, width", "matrix"),
        make_row("down.weight", "width, hidden", "matrix"),
        make_row("gain", "width", lambda spec: spec.gain),
    ),
    final_norm=make_norm_rows("last", "width"),
    head=(
        make_row("answer.weight", "classes, width", "matrix"),
        make_row("answer.bias", "classes", "zero"),
    ),
)


class _Block(nn.Module):
    def __init__(self, width: int, hidden: int) -> None:
        super().__init__()
        self.up, self.down = (
            nn.Linear(width, hidden, bias=False),
            nn.Linear(hidden, width, bias=False),
        )
        self.gain = nn.Parameter(torch.empty(width))

    def forward(self, x_BD: torch.Tensor) -> torch.Tensor:
        return x_BD + self.gain * self.down(self.up(x_BD).relu())


class Toy(nn.Module):
    """From images (B, 3, 4, 4) to logits (B, classes)."""

    def __init__(self, spec: ToySpec) -> None:
        super().__init__()
        self.read = nn.Linear(48, spec.width, bias=False)
        self.trunk = nn.Module()
        self.trunk.layer = nn.ModuleList(
            _Block(spec.width, spec.hidden) for _ in range(spec.layers)
        )
        self.last, self.answer = nn.LayerNorm(spec.width), nn.Linear(spec.width, spec.classes)

    def forward(self, images_BCHW: torch.Tensor) -> torch.Tensor:
        x_BD = self.read(images_BCHW.flatten(1))
        for block in self.trunk.layer:
            x_BD = block(x_BD)
        return self.answer(self.last(x_BD))


TOY = Family(
    name="toy",
    spec=ToySpec,
    table=TOY_TABLE,
    flops=lambda spec, convention: spec.layers * 2 * spec.width * spec.hidden,
    architectures={"toy_base": ToySpec(layers=12, width=64, heads=1)},
    registered={},
    architecture=lambda spec: "toy_base",
    arguments=lambda spec: {"depth": spec.layers, "global_pool": "avg"},
    values=lambda architecture, args, where: {"layers": args["depth"]},
    timm_modules=frozenset(),
    supported="toys",
    examples=(),
    host="toy_host",
)
SPEC = ToySpec(layers=3, width=8, heads=2, classes=4, image_size=4, patch_size=4)


@pytest.fixture(autouse=True)
def _toy(monkeypatch: pytest.MonkeyPatch) -> None:
    """Register the family `toy`: one package and one line of a table."""
    package, host = ModuleType("toy_family"), ModuleType("toy_host")
    package.FAMILY = TOY  # type: ignore[attr-defined]
    host.create = lambda spec, **extra: Toy(spec)  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "toy_family", package)
    monkeypatch.setitem(sys.modules, "toy_host", host)
    monkeypatch.setitem(specs.FAMILIES, "toy", "toy_family")


SPECS = [spec for family in iterate_families() for spec in family.examples]


@pytest.mark.parametrize("spec", SPECS, ids=repr)
def test_branches_name_all_matrices_of_a_block_and_its_norms(spec: Spec) -> None:
    table = get_table(spec)
    kinds = {kind.name: kind for kind in table.block if kind.present(spec)}
    named = set()
    for branch in table.branches(spec):
        for reader in branch.readers:
            kind = kinds[f"{reader}.weight"]
            assert kind.axes[kind.reads] == ("width",)
        writer = kinds[f"{branch.writer}.weight"]
        assert writer.axes[writer.writes] == ("width",)
        assert kinds[f"{branch.norm}.weight"].axes == (("width",),)
        assert branch.scale is None or kinds[branch.scale].axes == (("width",),)
        named |= {f"{layer}.weight" for layer in (*branch.readers, branch.writer)}
    assert named == {name for name, kind in kinds.items() if kind.start in ("matrix", "deep")}
    assert [branch.mixes for branch in table.branches(spec)] == [True, False]


def test_every_family_is_registered_under_its_name() -> None:
    assert (
        [kind.name for kind in iterate_families()]
        == [*specs.FAMILIES]
        == ["vit", "eva", "gpt2", "bert", "toy"]
    )


def test_a_model_is_built_from_the_table() -> None:
    state = initialise(SPEC, 0)
    model = build_model(SPEC, state)
    assert {
        name: tuple(tensor.shape) for name, tensor in Toy(SPEC).state_dict().items()
    } == get_shapes(SPEC)
    assert model(torch.zeros(2, 3, 4, 4)).shape == (2, 4)
    assert all(torch.equal(tensor, state[name]) for name, tensor in get_state_dict(model).items())
    assert state["trunk.layer.1.gain"].tolist() == [1.5] * 8
    assert count_cost(SPEC).params == sum(tensor.numel() for tensor in model.parameters())
    assert count_cost(SPEC, "thop").params == count_cost(SPEC).params - 3 * 8


def test_surgery_asks_the_table() -> None:
    state = initialise(SPEC, 0)
    selected = take_blocks(tensors.remove_head(state, SPEC), SPEC, [2, 2])
    assert torch.equal(selected["trunk.layer.0.up.weight"], state["trunk.layer.2.up.weight"])
    assert not any(name.startswith("answer") for name in selected)
    half = map_axes(state, SPEC, {"hidden": range(16)})
    assert half["trunk.layer.0.down.weight"].shape == (8, 16)
    same = tensors.resize_positions(state, SPEC, SPEC.with_(image_size=8))
    assert all(
        torch.equal(same[name], state[name]) for name in state
    )  # it has no position embedding


def test_saved_specs_say_their_family_except_vits() -> None:
    assert "family" not in to_json(VIT)
    assert to_json(SPEC)["family"] == "toy"
    for spec in (VIT, SPEC):
        config = LearngeneConfig(
            method="m", spec=spec, ancestries=(AncestryRecord(source="a", spec=spec),)
        )
        assert from_json(LearngeneConfig, to_json(config), "FILE") == config
        assert type(from_json(LearngeneConfig, to_json(config), "FILE").spec) is type(spec)


@pytest.mark.parametrize("family", ["nobody", 3])
def test_a_family_that_is_not_known_is_refused(family: Any) -> None:
    with pytest.raises(BadFile, match=f"FILE: no family named '{family}'"):
        from_json(PictureSpec, {**to_json(SPEC), "family": family}, "FILE")


def test_a_target_can_name_only_what_the_family_has() -> None:
    assert Target(layers=2, dense=False).apply(SPEC) == SPEC.with_(layers=2)
    with pytest.raises(WrongCall, match="models of the family 'toy' have no dense"):
        Target(dense=True).apply(SPEC)


def test_a_method_refuses_a_family_that_it_does_not_declare() -> None:
    method = METHODS.load("lsamd")
    check_family(method, VIT)
    with pytest.raises(
        WrongCall, match=r"lsamd does not support models of the family 'toy'.*methods that do: none"
    ):
        check_family(method, SPEC)


def test_a_method_that_takes_only_one_family_names_those_that_take_the_other() -> None:
    eva = load_family("eva").examples[0]
    for name in ("pool", "snnet", "tal", "pith", "ghn3", "logah"):
        with pytest.raises(
            WrongCall,
            match=(
                rf"{name} does not .* 'eva', only timm's VisionTransformer .* lsamd,"
                r" .*pretrain_finetune"
            ),
        ):
            check_family(METHODS.load(name), eva)
    for name in ("lsamd", "scratch", "pretrain_finetune", "distillation"):
        check_family(METHODS.load(name), VIT)
        check_family(METHODS.load(name), eva)


def test_timms_names_lead_to_the_family() -> None:
    assert find_architecture("toy_base.some_tag") == ToySpec(layers=12, width=64, heads=1)
    assert isinstance(find_architecture("deit_base_patch16_224"), ViTSpec)
    config = write_timm_config(VIT, mean=(), std=(), class_names=(), licence="")
    assert config["architecture"] == "vit_base_patch16_224"


def test_what_a_name_says() -> None:
    table, names = get_table(VIT), list(get_shapes(VIT))
    assert [name for name in names if table.is_head(name)] == ["head.weight", "head.bias"]
    assert [name for name in names if table.is_final_norm(name)] == ["norm.weight", "norm.bias"]
    assert [name for name in names if table.is_stem(name)] == names[:4]
    read = [
        table.block_of(name)
        for name in ("blocks.11.norm1.bias", "norm.weight", "blocks.x.y", "blocks", "blocks.3")
    ]
    assert read == [11, None, None, None, None]
    assert table.block_name(11, table.inner_name("blocks.11.norm1.bias")) == "blocks.11.norm1.bias"
    assert table.find("blocks.3.mlp.fc1.bias") is not None
    assert (
        table.find("mlp.fc1.bias")
        is table.find("blocks.3")
        is table.find("blocks.0.head.weight")
        is None
    )


def test_parameters_come_with_their_sizes() -> None:
    assert {
        name: kind.shape(sizes) for name, kind, sizes in get_table(SPEC).parameters(SPEC)
    } == get_shapes(SPEC)


def test_a_model_of_another_family_than_the_specs_is_refused() -> None:
    from learngene_zoo.families.vit.host import read_spec

    with pytest.raises(
        WrongCall, match="a Toy is not a plain ViT; supported are timm's VisionTransformer"
    ):
        read_spec(Toy(SPEC))
