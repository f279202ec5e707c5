"""What is done with predicted weights before fine-tuning, as in the released code of GHN-3."""

from __future__ import annotations

import pytest
import torch

from learngene_zoo.families.vit.spec import ViTSpec
from lgzoo_tal.modules.tensors import orthogonalise, process_tensors

SPEC = ViTSpec(layers=1, width=8, heads=1, classes=3, image_size=4, patch_size=2)
MATRIX = torch.tensor([[3.0, 1.0], [4.0, 2.0], [0.0, 5.0]])


def tensors() -> dict[str, torch.Tensor]:
    draw = torch.Generator().manual_seed(0)
    shapes = {
        "patch_embed.proj.weight": (8, 3, 2, 2),
        "blocks.0.mlp.fc1.weight": (32, 8),
        "blocks.0.mlp.fc2.weight": (8, 32),
    }
    vectors = {
        "norm.weight": (8,),
        "norm.bias": (8,),
        "head.weight": (3, 8),
        "pos_embed": (1, 5, 8),
    }
    return {
        name: torch.randn(shape, generator=draw) for name, shape in {**shapes, **vectors}.items()
    }


def test_the_columns_of_a_matrix_become_orthonormal() -> None:
    expected = torch.tensor([[0.6, -0.0638], [0.8, 0.0478], [0.0, 0.9968]])
    torch.testing.assert_close(orthogonalise(MATRIX), expected, rtol=0, atol=1e-4)
    torch.testing.assert_close(orthogonalise(MATRIX.mT), expected.mT, rtol=0, atol=1e-4)


@pytest.mark.parametrize("post", ["noise", "orthogonal"])
def test_matrices_and_kernels_change_and_nothing_else(post: str) -> None:
    before = tensors()
    after = process_tensors(before, post, seed=0, spec=SPEC)  # type: ignore[arg-type]
    changed = {name for name in before if not torch.equal(before[name], after[name])}
    assert changed == {
        "patch_embed.proj.weight",
        "blocks.0.mlp.fc1.weight",
        "blocks.0.mlp.fc2.weight",
    }
    assert {name: tensor.shape for name, tensor in after.items()} == {
        name: tensor.shape for name, tensor in before.items()
    }


def test_noise_has_the_deviation_of_the_correlations_of_rows() -> None:
    name = "blocks.0.mlp.fc1.weight"
    wide = {
        name: torch.cat([MATRIX[:, :1]] * 400, 1) + torch.arange(400.0) % 7
    }  # (3, 400): rows are its columns
    scale = 1e-5 * torch.corrcoef(wide[name].mT).std()
    noise = (
        process_tensors({name: wide[name].double()}, "noise", seed=0, spec=SPEC)[name]
        - wide[name].double()
    )
    assert noise.std() == pytest.approx(float(scale), rel=0.1)


def test_a_constant_row_does_not_count() -> None:
    name, draw = "blocks.0.mlp.fc1.weight", torch.Generator().manual_seed(0)
    rest = torch.randn(31, 8, generator=draw)
    matrix = torch.cat([torch.full((1, 8), 0.5), rest])
    expected = 1e-5 * torch.corrcoef(rest).std()
    noisy = process_tensors({name: matrix.double()}, "noise", seed=0, spec=SPEC)[name]
    assert (noisy - matrix).std() == pytest.approx(float(expected), rel=0.1)
    orthogonal = process_tensors({name: matrix}, "orthogonal", seed=0, spec=SPEC)[name]
    torch.testing.assert_close(orthogonal.mT @ orthogonal, torch.eye(8), rtol=0, atol=1e-5)


@pytest.mark.parametrize("shape", [(32, 8), (8, 32), (8, 1), (1, 1)])
@pytest.mark.parametrize("value", [0.0, 0.3])
def test_rows_that_are_all_constant_become_different(shape: tuple[int, int], value: float) -> None:
    name, short = "blocks.0.mlp.fc1.weight", min(shape)
    matrix = torch.full(shape, value)
    noisy = process_tensors({name: matrix.double()}, "noise", seed=0, spec=SPEC)[name]
    difference = (noisy - matrix).abs()
    assert 0 < difference.max() < 1e-4
    orthogonal = process_tensors({name: matrix}, "orthogonal", seed=0, spec=SPEC)[name]
    product = orthogonal.mT @ orthogonal if shape[1] == short else orthogonal @ orthogonal.mT
    torch.testing.assert_close(product, torch.eye(short), rtol=0, atol=1e-5)


def test_dependent_columns_become_orthonormal() -> None:
    matrix = orthogonalise(torch.tensor([[1.0, 0.0], [2.0, 0.0], [0.0, 0.0]]))
    torch.testing.assert_close(matrix.mT @ matrix, torch.eye(2), rtol=0, atol=1e-6)


def test_it_is_a_function_of_the_seed_and_none_is_the_default() -> None:
    name, before = "blocks.0.mlp.fc1.weight", tensors()
    first, again, other = (
        process_tensors(before, "orthogonal", seed, SPEC)[name] for seed in (0, 0, 1)
    )
    assert torch.equal(first, again)
    assert not torch.equal(first, other)
    assert process_tensors(before, "none", 0, SPEC) is before
