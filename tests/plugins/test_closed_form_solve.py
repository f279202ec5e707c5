"""Closed form: recorded streams, costs of runs, and layers that solve their regressions."""

import tempfile
from collections.abc import Sequence
from dataclasses import fields, replace
from pathlib import Path

import pytest
import torch
from closed_form_toy import EVA, EVAS, FIXED_WIDTH, SPEC

from learngene_zoo.families.spec import Spec
from learngene_zoo.families.tensors import StateDict, build_model, fill_missing_tensors
from learngene_zoo.runs.run import Run
from learngene_zoo.testing import make_tiny_ancestry, make_tiny_task
from lgzoo_closed_form.calibration import Calibration, record_teacher
from lgzoo_closed_form.modules.anatomy import run_stem, split_block
from lgzoo_closed_form.modules.ridge import Sums
from lgzoo_closed_form.modules.solve import (
    copy_blocks,
    measure_costs,
    solve_descendant,
)
from lgzoo_closed_form.modules.streams import (
    OpenFile,
    Streams,
    StreamTeacher,
    estimate_size,
    open_files,
    record_streams,
)
from lgzoo_closed_form.modules.width import build_projection, compute_directions


def record_toy(
    spec: Spec = SPEC, open_file: OpenFile | None = None, state: StateDict | None = None
) -> StreamTeacher:
    """Return the ancestry model with its streams, in memory or in files."""
    ancestry = make_tiny_ancestry(spec=spec)
    if state is not None:
        ancestry = replace(ancestry, state=state)
    settings = Calibration(images=24)
    return record_teacher(
        {name: ancestry.state[name] for name in ancestry.state if not name.startswith("head.")},
        ancestry.spec,
        settings,
        make_tiny_task(),
        ancestry.input_format,
        Run(seed=1),
        open_file,
    )


def test_the_costs_of_runs_are_errors_of_ridge_regressions() -> None:
    teacher, rho = record_toy(SPEC.with_(layer_scale=0.1)), 1e-2
    costs, root = measure_costs(teacher, rho), teacher.pictures.weights.sqrt()[:, None]

    def centred(rows: torch.Tensor) -> torch.Tensor:
        return root * (rows.double() - (root.square() * rows).sum(0) / root.square().sum())

    for first in range(SPEC.layers):
        block, middle = teacher.model.blocks[first], teacher.streams.middle[first]
        with torch.no_grad():
            hidden = centred(block.mlp.act(block.mlp.fc1(block.norm2(middle))))
            start = (block.ls2.gamma[:, None] * block.mlp.fc2.weight).double()
        penalty = (rho * hidden.square().sum(dim=0).mean()).sqrt()
        squares = torch.linalg.svdvals(hidden).square()
        freedom = float((squares / (squares + penalty.square())).sum())
        # Generalised cross-validation, relative to 8,192 rows
        optimism = ((1 - freedom / 8192) / (1 - freedom / len(hidden))) ** 2
        wide = torch.cat([hidden, penalty * torch.eye(SPEC.hidden, dtype=torch.float64)])
        assert costs[first][0] == 0
        for last in range(first + 1, SPEC.layers):
            leaving = teacher.streams.before[last + 1]
            target = centred(leaving - middle)
            weight = torch.linalg.lstsq(wide, torch.cat([target, penalty * start.T])).solution
            expected = float(
                (hidden @ weight - target).square().sum() / centred(leaving).square().sum()
            )
            assert costs[first][last - first] == pytest.approx(optimism * expected, rel=1e-4)


def test_the_costs_of_many_rows_are_those_of_a_share_of_them(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    teacher = record_toy()
    rows = len(teacher.pictures.weights)
    many = replace(
        teacher,
        pictures=replace(teacher.pictures, weights=teacher.pictures.weights.repeat(COPIES)),
        streams=Streams(
            *(
                [stream.repeat(COPIES, 1) for stream in getattr(teacher.streams, kind.name)]
                for kind in fields(Streams)
            )
        ),
    )
    monkeypatch.setattr("lgzoo_closed_form.modules.streams.ROWS_AT_ONCE", rows)
    monkeypatch.setattr("lgzoo_closed_form.modules.solve.MIN_COST_ROWS", 0)
    assert rows < 5 * SPEC.hidden < 3 * rows * COPIES / 4
    # Without the correction for few rows
    monkeypatch.setattr(Sums, "count_degrees", lambda self, rho: 0.0)
    for few_costs, many_costs in zip(measure_costs(teacher, 1e-2), measure_costs(many, 1e-2)):
        assert many_costs == pytest.approx(few_costs, rel=1e-4)


def test_rows_without_weight_do_not_change_the_costs() -> None:
    teacher = record_toy()
    ignored = torch.zeros_like(teacher.pictures.weights)
    padded = replace(
        teacher,
        pictures=replace(teacher.pictures, weights=torch.cat([teacher.pictures.weights, ignored])),
        streams=Streams(
            *(
                [stream.repeat(2, 1) for stream in getattr(teacher.streams, kind.name)]
                for kind in fields(Streams)
            )
        ),
    )
    for costs, padded_costs in zip(measure_costs(teacher, 1e-2), measure_costs(padded, 1e-2)):
        assert padded_costs == pytest.approx(costs, rel=1e-4)


def test_heads_and_neurons_are_selected_by_what_the_layer_scale_leaves_of_them() -> None:
    """A layer scale that is multiplied into the writers instead gives the same selection."""
    spec = SPEC.with_(layer_scale=1.0)
    scaled, folded = (
        dict(make_tiny_ancestry(spec=spec).state),
        dict(make_tiny_ancestry(spec=spec).state),
    )
    gamma = torch.logspace(-2, 1, spec.width)
    for number in range(spec.layers):
        for scale, writer in (("ls1", "attn.proj"), ("ls2", "mlp.fc2")):
            scaled[f"blocks.{number}.{scale}.gamma"] = gamma
            for part in ("weight", "bias"):
                name = f"blocks.{number}.{writer}.{part}"
                folded[name] = (folded[name].movedim(0, -1) * gamma).movedim(-1, 0)
    selections = []
    for state in (scaled, folded):
        teacher = record_toy(spec, state=state)
        columns_DD, _ = compute_directions(teacher.streams, teacher.pictures)
        small = spec.with_(width=spec.head_width, heads=1)
        copies = copy_blocks(teacher, small, [0, 1, 2], build_projection(columns_DD, small.width))
        selections.append((copies.heads, copies.neurons))
    assert selections[0] == selections[1]


def measure_gradient(inputs, targets, weights, layer, start, rho):  # type: ignore[no-untyped-def]
    """Return the gradient of a layer's regression, as a share of that at its start."""
    centred = layer.bias is not None
    means = [
        (rows.double() * weights[:, None]).sum(0) / weights.sum() * centred
        for rows in (inputs, targets)
    ]
    rows, centred_targets = inputs.double() - means[0], targets.double() - means[1]
    penalty = rho * (rows.square() * weights[:, None]).sum(0).mean()
    solution, start_weight = layer.weight.double(), start.weight.double()
    gradients = [
        (weight @ rows.T - centred_targets.T) @ (rows * weights[:, None])
        + penalty * (weight - start_weight)
        for weight in (solution, start_weight)
    ]
    if centred:
        torch.testing.assert_close(
            layer.bias.double(), means[1] - solution @ means[0], atol=1e-5, rtol=1e-4
        )
    return float(gradients[0].norm() / gradients[1].norm())


COPIES = 16  # of the rows of a toy
KINDS: list[dict[str, object]] = [
    {},
    {"layer_scale": 0.1},
    {"qkv_bias": False},
    {"mlp": "swiglu"},
    {"mlp": "swiglu_packed"},
    {"qk_norm": True},
]


@pytest.mark.parametrize("changes", KINDS, ids=str)
@pytest.mark.parametrize("heads", [1, 2])
def test_every_layer_of_the_last_block_solves_its_regression(
    changes: dict[str, object], heads: int
) -> None:
    teacher, runs, rho = record_toy(SPEC.with_(**changes)), [0, 2], 1e-2
    check_the_last_block(teacher, runs, rho, heads)


@pytest.mark.parametrize("off", [[0], range(SPEC.width)])
@pytest.mark.parametrize("heads", [1, 2])
def test_channels_that_a_layer_scale_turns_off_stay_finite(off: Sequence[int], heads: int) -> None:
    teacher = record_toy(SPEC.with_(layer_scale=0.1))
    for name in teacher.state:
        if ".ls" in name:
            teacher.state[name][list(off)] = 0.0
    columns_DD, _ = compute_directions(teacher.streams, teacher.pictures)
    width = heads * SPEC.head_width
    P_dD = build_projection(columns_DD, width) if width < SPEC.width else None
    spec = SPEC.with_(layers=2, width=width, heads=heads, layer_scale=0.1)
    parts = solve_descendant(teacher, spec, [0, 2], P_dD, rho=1e-2)
    assert all(bool(torch.isfinite(tensor).all()) for tensor in parts.values())
    assert max(float(tensor.abs().max()) for tensor in parts.values()) < 1e3


@pytest.mark.parametrize("changes", EVAS, ids=str)
@pytest.mark.parametrize("heads", [1, 2])
def test_every_layer_of_the_last_block_of_an_eva_does(
    changes: dict[str, object], heads: int
) -> None:
    check_the_last_block(record_toy(EVA.with_(**changes)), [0, 2], 1e-2, heads)


@pytest.mark.parametrize("changes", FIXED_WIDTH, ids=str)
def test_so_does_one_of_an_eva_that_keeps_its_width(changes: dict[str, object]) -> None:
    check_the_last_block(record_toy(EVA.with_(**changes)), [0, 2], 1e-2, 2)


@torch.no_grad()
def check_the_last_block(
    teacher: StreamTeacher, runs: Sequence[int], rho: float, heads: int
) -> None:
    """Check that the regressions of all linear layers in the second of two blocks have zero
    gradient.
    """
    spec = teacher.spec.with_(layers=2, width=heads * SPEC.head_width, heads=heads)
    columns, _ = compute_directions(teacher.streams, teacher.pictures)
    narrowing = build_projection(columns, spec.width) if heads == 1 else None
    copied, heads_of_blocks, neurons_of_blocks, _ = copy_blocks(teacher, spec, runs, narrowing)
    before, model = (
        build_model(spec, fill_missing_tensors(spec, parts, seed=0))
        for parts in (copied, solve_descendant(teacher, spec, runs, narrowing, rho=rho))
    )
    streams, weights = record_streams(model, teacher.pictures), teacher.pictures.weights
    P_dD = torch.eye(SPEC.width) if narrowing is None else narrowing.float()
    turn = run_stem(model, teacher.pictures.images[:1])[1][-1]
    new, copies = (split_block(part, len(part.blocks) - 1, turn) for part in (model, before))
    targets = teacher.streams.middle[2] @ P_dD.T, teacher.streams.before[-1] @ P_dD.T
    entering, entered = (
        (teacher.streams.before[2], teacher.streams.middle[2]),
        (streams.before[-2], streams.middle[-1]),
    )
    wide = SPEC.head_width
    channels = [head * wide + channel for head in heads_of_blocks[-1] for channel in range(wide)]
    reads = streams.heads[-1], new[1].compute_inputs(streams.middle[-1])
    for number, indices in enumerate((channels, neurons_of_blocks[-1])):
        branch, old = new[number], teacher.split_block(2)[number]
        gamma = torch.ones(1) if branch.gamma is None else branch.gamma
        missing = (targets[number] - entered[number]) / gamma
        assert (
            measure_gradient(
                reads[number], missing, weights, branch.writer, copies[number].writer, rho
            )
            < 1e-3
        )
        for reader, source, copied_reader in zip(
            branch.readers, old.readers, copies[number].readers
        ):
            values = source.select_outputs(indices)(old.norm(entering[number]))
            assert (
                measure_gradient(
                    branch.norm(entered[number]), values, weights, reader, copied_reader, rho
                )
                < 1e-3
            )


@pytest.mark.parametrize("is_kept", [True, False])
def test_streams_in_files_are_those_in_memory(
    is_kept: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("lgzoo_closed_form.modules.streams.MAX_IN_MEMORY", 0)
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    size = estimate_size(SPEC, 24, SPEC.tokens)
    assert size == 4 * 24 * SPEC.tokens * SPEC.width * (3 * SPEC.layers + 1)
    memory = record_toy().streams
    with open_files(size, tmp_path if is_kept else None) as open_file:
        files = record_toy(open_file=open_file).streams
        for kind in ("before", "middle", "heads"):
            assert len(getattr(memory, kind)) == len(getattr(files, kind))
            assert all(
                torch.equal(first, second)
                for first, second in zip(getattr(memory, kind), getattr(files, kind))
            )
        # Temporary files have no name, so that a killed process leaves none.
        names = list(tmp_path.iterdir())
        assert sum(path.stat().st_size for path in names) == (size if is_kept else 0)


def test_streams_in_bfloat16_are_near_those_in_single_precision() -> None:
    teacher = record_toy()
    exact = teacher.streams
    rounded = record_streams(teacher.model, teacher.pictures, in_bfloat16=True)
    for kind in ("before", "middle", "heads"):
        for first, second in zip(getattr(exact, kind), getattr(rounded, kind), strict=True):
            assert second.dtype == torch.float32
            error = (first - second).norm() / first.norm()
            assert 1e-5 < error < 2e-2


def test_a_small_recording_needs_no_files() -> None:
    with open_files(10**6) as open_file:
        assert open_file is None


@pytest.mark.parametrize(
    "spec", [SPEC, *(EVA.with_(**changes) for changes in (*EVAS, *FIXED_WIDTH))], ids=repr
)
@torch.no_grad()
def test_the_last_recorded_stream_is_what_timm_computes(spec: Spec) -> None:
    teacher = record_toy(spec)
    expected = teacher.pictures.select_rows(teacher.model.forward_features(teacher.pictures.images))
    torch.testing.assert_close(
        teacher.model.norm(teacher.streams.before[-1]), expected, atol=1e-5, rtol=1e-4
    )
