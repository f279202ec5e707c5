"""The matrices W and M, and the stitches that start from them."""

from __future__ import annotations

import pytest
import torch

from lgzoo_pool.transforms import Transformations, mean_matrix, stitch_weight

D, L, H = 12, 4, 8


def matrices(width: int, levels: int = 3, seed: int = 0) -> dict[str, torch.Tensor]:
    return {name: value.detach() for name, value in Transformations(D, width, levels, seed).state_dict().items()}


def test_where_the_widths_match_there_is_no_parameter() -> None:
    same = Transformations(D, D, 3, seed=0)
    assert not list(same.parameters())
    tokens = torch.randn(2, 5, D)
    assert all(torch.equal(matrix(tokens), tokens) for matrix in [*same.blocks, *same.attentions])
    assert torch.equal(mean_matrix({}, D, D), torch.eye(D, dtype=torch.float64))


def test_one_matrix_for_each_level_and_kind_of_output() -> None:
    found = matrices(L)
    assert {name: tuple(tensor.shape) for name, tensor in found.items()} == {
        f"{kind}.{level}.weight": (L, D) for kind in ("blocks", "attentions") for level in range(3)
    }
    assert len({tensor.sum().item() for tensor in found.values()}) == 6
    again, other = matrices(L), matrices(L, seed=1)
    assert all(torch.equal(again[name], found[name]) for name in found)
    assert not any(torch.equal(other[name], found[name]) for name in found)


def test_what_a_matrix_makes_has_the_size_of_what_it_is_given() -> None:
    wide = Transformations(4096, 64, 1, seed=0)
    made = wide.blocks[0](torch.randn(16, 4096, generator=torch.Generator().manual_seed(0)))
    assert made.std().item() == pytest.approx(1, abs=0.1)


def test_the_mean_is_over_the_block_matrices_alone() -> None:
    found = matrices(L)
    mean = sum(found[f"blocks.{level}.weight"].double() for level in range(3)) / 3
    torch.testing.assert_close(mean_matrix(found, D, L), mean)
    with pytest.raises(ValueError, match="no level was distilled"):
        mean_matrix({"attentions.0.weight": torch.ones(L, D)}, D, L)


def test_the_papers_start_is_the_transpose_of_the_mean() -> None:
    """The wide model has the ancestry's width: its matrix is the identity."""
    low = mean_matrix(matrices(L), D, L)
    weight = stitch_weight(low, torch.eye(D, dtype=torch.float64), "tm")
    assert weight.shape == (D, L)
    assert weight.dtype == torch.float32
    torch.testing.assert_close(weight, low.T.float())


def test_the_pseudo_inverse_undoes_the_matrix_on_the_narrow_side() -> None:
    low = mean_matrix(matrices(L), D, L)
    weight = stitch_weight(low, torch.eye(D, dtype=torch.float64), "pinv").double()
    torch.testing.assert_close(low @ weight, torch.eye(L, dtype=torch.float64), atol=1e-5, rtol=1e-5)


def test_with_orthonormal_rows_transpose_and_pseudo_inverse_are_one() -> None:
    low = torch.linalg.qr(torch.randn(D, L, dtype=torch.float64)).Q.T
    eye = torch.eye(D, dtype=torch.float64)
    torch.testing.assert_close(stitch_weight(low, eye, "tm"), stitch_weight(low, eye, "pinv"))


def test_a_wide_model_of_another_width_is_reached_by_its_own_matrix() -> None:
    """Of an ancestry stream x the narrow model has W x and the wide one V x: the stitch goes from W x back, and on by V."""
    low, high = torch.randn(D, D, dtype=torch.float64), torch.randn(H, D, dtype=torch.float64)
    stream = torch.randn(D, dtype=torch.float64)
    weight = stitch_weight(low, high, "pinv").double()
    torch.testing.assert_close(weight @ (low @ stream), high @ stream, atol=1e-4, rtol=1e-4)
    assert stitch_weight(mean_matrix(matrices(L), D, L), mean_matrix(matrices(H), D, H), "tm").shape == (H, L)
