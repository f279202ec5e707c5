"""Closed form: recorded streams, what a run of blocks costs, and layers that solve their regressions."""

from collections.abc import Sequence
from pathlib import Path

import pytest
import torch
from closed_form_toy import EVA, EVAS, SPEC, WHOLE

from learngene_zoo.families.spec import Spec
from learngene_zoo.families.tensors import filled, model_of
from learngene_zoo.runs.run import Run
from learngene_zoo.testing import tiny_ancestry, tiny_task
from lgzoo_closed_form.anatomy import branches, stem
from lgzoo_closed_form.calibration import Calibration
from lgzoo_closed_form.recording import size_of
from lgzoo_closed_form.solve import Teacher, solved, start
from lgzoo_closed_form.streams import record
from lgzoo_closed_form.teaching import teacher_of
from lgzoo_closed_form.width import directions, projection


def recorded(spec: Spec = SPEC, folder: Path | None = None) -> Teacher:
    """The ancestry model with its streams, in memory or in files."""
    ancestry = tiny_ancestry(spec=spec)
    settings = Calibration(images=24)
    return teacher_of(
        {name: ancestry.state[name] for name in ancestry.state if not name.startswith("head.")},
        ancestry.spec,
        settings,
        tiny_task(),
        ancestry.input_format,
        Run(seed=1),
        folder,
    )


def test_the_costs_of_runs_are_errors_of_ridge_regressions() -> None:
    from lgzoo_closed_form.solve import costs_of_runs

    teacher, rho = recorded(SPEC.with_(layer_scale=0.1)), 1e-2
    costs, root = costs_of_runs(teacher, rho), teacher.shown.weights.sqrt()[:, None]

    def centred(rows: torch.Tensor) -> torch.Tensor:
        return root * (rows.double() - (root.square() * rows).sum(0) / root.square().sum())

    for first in range(SPEC.layers):
        block, middle = teacher.model.blocks[first], teacher.streams.middle[first]
        with torch.no_grad():
            hidden = centred(block.mlp.act(block.mlp.fc1(block.norm2(middle))))
            start = (block.ls2.gamma[:, None] * block.mlp.fc2.weight).double()
        penalty = (rho * hidden.square().sum(dim=0).mean()).sqrt()
        wide = torch.cat([hidden, penalty * torch.eye(SPEC.hidden, dtype=torch.float64)])
        assert costs[first][0] == 0
        for last in range(first + 1, SPEC.layers):
            leaving = teacher.streams.before[last + 1]
            wanted = centred(leaving - middle)
            weight = torch.linalg.lstsq(wide, torch.cat([wanted, penalty * start.T])).solution
            expected = float((hidden @ weight - wanted).square().sum() / centred(leaving).square().sum())
            assert costs[first][last - first] == pytest.approx(expected, rel=1e-6)


def normal_equations(inputs, targets, weights, layer, start, rho):  # type: ignore[no-untyped-def]
    """How far a layer is from where the gradient of its regression is 0, as a share of the gradient at its start."""
    centred = layer.bias is not None
    means = [(rows.double() * weights[:, None]).sum(0) / weights.sum() * centred for rows in (inputs, targets)]
    rows, wanted = inputs.double() - means[0], targets.double() - means[1]
    penalty = rho * (rows.square() * weights[:, None]).sum(0).mean()
    found, copied = layer.weight.double(), start.weight.double()
    gradients = [
        (weight @ rows.T - wanted.T) @ (rows * weights[:, None]) + penalty * (weight - copied)
        for weight in (found, copied)
    ]
    if centred:
        torch.testing.assert_close(layer.bias.double(), means[1] - found @ means[0], atol=1e-5, rtol=1e-4)
    return float(gradients[0].norm() / gradients[1].norm())


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
def test_every_layer_of_the_last_block_solves_its_regression(changes: dict[str, object], heads: int) -> None:
    teacher, runs, rho = recorded(SPEC.with_(**changes)), [0, 2], 1e-2
    check_the_last_block(teacher, runs, rho, heads)


@pytest.mark.parametrize("changes", EVAS, ids=str)
@pytest.mark.parametrize("heads", [1, 2])
def test_every_layer_of_the_last_block_of_an_eva_does(changes: dict[str, object], heads: int) -> None:
    check_the_last_block(recorded(EVA.with_(**changes)), [0, 2], 1e-2, heads)


@pytest.mark.parametrize("changes", WHOLE, ids=str)
def test_so_does_one_of_an_eva_that_keeps_its_width(changes: dict[str, object]) -> None:
    check_the_last_block(recorded(EVA.with_(**changes)), [0, 2], 1e-2, 2)


@torch.no_grad()
def check_the_last_block(teacher: Teacher, runs: Sequence[int], rho: float, heads: int) -> None:
    """Of a model of two layers: no gradient is left in any of its linear layers."""
    spec = teacher.spec.with_(layers=2, width=heads * SPEC.head_width, heads=heads)
    columns, _ = directions(teacher.streams, teacher.shown)
    narrowing = projection(columns, spec.width) if heads == 1 else None
    copied, kept_heads, kept_neurons = start(teacher, spec, runs, narrowing)
    before, model = (
        model_of(spec, filled(spec, parts, seed=0))
        for parts in (copied, solved(teacher, spec, runs, narrowing, rho=rho))
    )
    streams, weights = record(model, teacher.shown), teacher.shown.weights
    P_dD = torch.eye(SPEC.width) if narrowing is None else narrowing.float()
    turn = stem(model, teacher.shown.images[:1])[1][-1]
    new, copies = branches(model.blocks[-1], turn), branches(before.blocks[-1], turn)
    wanted = teacher.streams.middle[2] @ P_dD.T, teacher.streams.before[-1] @ P_dD.T
    entering, entered = (teacher.streams.before[2], teacher.streams.middle[2]), (streams.before[-2], streams.middle[-1])
    wide = SPEC.head_width
    channels = [head * wide + channel for head in kept_heads[-1] for channel in range(wide)]
    reads = streams.heads[-1], new[1].read(streams.middle[-1])
    for number, chosen in enumerate((channels, kept_neurons[-1])):
        branch, old = new[number], teacher.branches(2)[number]
        gamma = torch.ones(1) if branch.gamma is None else branch.gamma
        missing = (wanted[number] - entered[number]) / gamma
        assert normal_equations(reads[number], missing, weights, branch.writer, copies[number].writer, rho) < 1e-3
        for reader, source, begun in zip(branch.readers, old.readers, copies[number].readers):
            values = source.only(chosen)(old.norm(entering[number]))
            assert normal_equations(branch.norm(entered[number]), values, weights, reader, begun, rho) < 1e-3


def test_streams_in_files_are_those_in_memory(tmp_path: Path) -> None:
    memory, files = recorded().streams, recorded(folder=tmp_path).streams
    for kind in ("before", "middle", "heads"):
        assert len(getattr(memory, kind)) == len(getattr(files, kind))
        assert all(torch.equal(one, other) for one, other in zip(getattr(memory, kind), getattr(files, kind)))
    taken = sum(file.stat().st_size for file in tmp_path.iterdir())
    assert taken == size_of(SPEC, 24, SPEC.tokens) == 4 * 24 * SPEC.tokens * SPEC.width * (3 * SPEC.layers + 1)


@pytest.mark.parametrize("spec", [SPEC, *(EVA.with_(**changes) for changes in (*EVAS, *WHOLE))], ids=repr)
@torch.no_grad()
def test_the_last_recorded_stream_is_what_timm_computes(spec: Spec) -> None:
    teacher = recorded(spec)
    expected = teacher.shown.rows(teacher.model.forward_features(teacher.shown.images))
    torch.testing.assert_close(teacher.model.norm(teacher.streams.before[-1]), expected, atol=1e-5, rtol=1e-4)
