"""Values of small parts of plugins, each by a law or by hand."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from matplotlib.figure import Figure

from learngene_zoo.errors import WrongCall
from learngene_zoo.families.eva.names import ARCHITECTURES
from learngene_zoo.families.family import count_params, load_family
from learngene_zoo.method.installed import METHODS
from learngene_zoo.tasks.catalogue import open_task
from learngene_zoo.text import format_count
from lgzoo_lsamd import plot as lsamd_plot
from lgzoo_mini.suite import GENERATED, generator
from lgzoo_papers.fashion_mnist import BORDER, BorderedSplit
from lgzoo_tal.modules.graph import check_spec
from lgzoo_tal.plot_panels import Cloud, build_size_legend

TINY = load_family("vit").examples[0]


def test_every_hypernetwork_has_the_decoder_of_its_paper() -> None:
    """GHN-3 decodes by convolutions, LoGAH by factors of low rank; TAL takes either."""
    for method, decoder in (("ghn3", "conv"), ("logah", "low_rank")):
        presets = METHODS.load(method).presets
        results = {name: preset.hypernet.build_spec().decoder for name, preset in presets.items()}  # type: ignore[attr-defined]
        assert results == dict.fromkeys(presets, decoder)


def test_sizes_of_logah_are_the_papers() -> None:
    """Li et al. 2024, Table 1: hidden width, layers, heads and rank."""
    presets = METHODS.load("logah").presets
    specs = {name: presets[name].hypernet.build_spec() for name in ("tiny", "base", "large")}  # type: ignore[attr-defined]
    assert {
        name: (item.hidden, item.layers, item.heads, item.rank) for name, item in specs.items()
    } == {
        "tiny": (64, 3, 8, 32),
        "base": (256, 5, 16, 128),
        "large": (256, 12, 16, 256),
    }


@pytest.mark.parametrize("name", ["vit_small_patch16_dinov3", "eva02_tiny_patch14_336"])
def test_hypernetworks_refuse_other_families_by_name(name: str) -> None:
    with pytest.raises(
        WrongCall, match="do not predict models of the family 'eva'; expected a plain ViT"
    ):
        check_spec(ARCHITECTURES[name].with_(classes=5))


def test_pictures_from_the_hub_have_the_border_of_the_local_ones() -> None:
    class Inner:
        labels = np.arange(7)

        def __len__(self) -> int:
            return 7

        def __getitems__(self, indices: list[int]) -> list[torch.Tensor]:
            return [torch.full((3, 28, 28), index + 1, dtype=torch.uint8) for index in indices]

    split = BorderedSplit(Inner())  # type: ignore[arg-type]
    assert len(split) == 7
    assert split.labels.tolist() == list(range(7))
    images = split.__getitems__([2, 5])
    assert images.shape == (2, 3, 28 + 2 * BORDER, 28 + 2 * BORDER) == (2, 3, 32, 32)
    assert images[:, :, BORDER:-BORDER, BORDER:-BORDER].unique().tolist() == [3, 6]
    assert images.sum() == (3 + 6) * 3 * 28 * 28


@pytest.mark.parametrize("name", [entry.name for entry in GENERATED])
def test_a_family_has_as_many_classes_as_its_row_says_and_none_twice(name: str) -> None:
    family = generator(name)
    assert family.name == name
    assert len(family.classes) == next(entry.classes for entry in GENERATED if entry.name == name)
    assert len({*family.classes, *family.held_out}) == len(family.classes) + len(family.held_out)


HELD_OUT = {
    "objects": 24,
    "wings": 16,
    "figures": 12,
    "textures": 18,
    "signs": 20,
    "glyphs": 116,
    "numbers": 24,
    "motion": 18,
    "petals": 24,
}


def test_a_family_holds_these_numbers_of_classes_back() -> None:
    assert {entry.name: len(generator(entry.name).held_out) for entry in GENERATED} == HELD_OUT


@pytest.mark.parametrize(("name", "classes"), [("source", 326), ("forms", 1_286)])
def test_a_source_task_has_as_many_classes_as_its_row_says(name: str, classes: int) -> None:
    assert len(open_task(name).class_names) == classes


def test_the_legend_of_sizes_has_the_smallest_the_middle_and_the_largest() -> None:
    specs = tuple(TINY.with_(layers=layers) for layers in (1, 2, 3, 4, 5))
    cloud = Cloud(task=None, number=0, specs=specs, points=np.zeros((5, 2)))
    sizes = [format_count(count_params(specs[index])) for index in (0, 2, 4)]
    result = build_size_legend([cloud])
    assert [line.get_label() for line in result] == [*sizes[:2], f"{sizes[2]} parameters"]
    areas = [line.get_markersize() ** 2 for line in result]
    assert areas == sorted(areas)


def test_the_legend_of_lsamds_picture_names_both_blocks_by_their_colours() -> None:
    axes = Figure().add_subplot()
    lsamd_plot._draw_legend(axes, 2)
    legend = axes.get_legend()
    assert legend is not None
    names = [text.get_text() for text in legend.get_texts()]
    assert names[:2] == ["base block", "specific block"]
    colours = [patch.get_facecolor() for patch in legend.get_patches()]
    assert colours[0] != colours[1]
