"""Heads of closed_form descendants with fewer channels than the ancestry model's."""

import pytest
import torch
from closed_form_toy import EVA, SPEC, extract_toy

import learngene_zoo as lg
from learngene_zoo.errors import WrongCall
from learngene_zoo.families.family import load_family
from learngene_zoo.families.spec import Spec
from learngene_zoo.families.surgery import Along, map_axes
from learngene_zoo.families.tensors import build_model, fill_missing_tensors, remove_head
from learngene_zoo.method.sizes import Target
from learngene_zoo.runs.run import Run
from learngene_zoo.storage import StateDict
from learngene_zoo.testing import make_tiny_ancestry, make_tiny_task
from lgzoo_closed_form.calibration import Calibration, record_teacher
from lgzoo_closed_form.closed_form import ClosedFormExpander, ClosedFormExtractor
from lgzoo_closed_form.modules import solve
from lgzoo_closed_form.modules.narrow_attention import narrow_copied_heads
from lgzoo_closed_form.modules.solve import CopiedBlocks, solve_descendant
from lgzoo_closed_form.modules.streams import StreamTeacher, record_streams
from lgzoo_closed_form.modules.width import build_basis, build_projection, compute_directions

WIDE = SPEC.with_(width=48, heads=3, layers=2, classes=0)  # heads of 16 channels


def record_wide(state: StateDict | None = None, spec: Spec = WIDE) -> StreamTeacher:
    ancestry = make_tiny_ancestry(spec=spec)
    task = make_tiny_task() if spec.family == "vit" else make_tiny_task("texts", image_size=0)
    return record_teacher(
        remove_head(ancestry.state, spec) if state is None else state,
        spec,
        Calibration(images=24),
        task,
        ancestry.input_format,
        Run(seed=1),
    )


def build_last_stream(teacher: StreamTeacher, spec: Spec, parts: StateDict) -> torch.Tensor:
    model = build_model(spec, fill_missing_tensors(spec, dict(parts), seed=0))
    return record_streams(model, teacher.pictures).before[-1]


@pytest.mark.parametrize("family", ["vit", "gpt2"])
@pytest.mark.parametrize("is_solved", [False, True])
def test_at_full_rank_a_descendant_is_that_without_maps(
    family: str, is_solved: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    if family == "gpt2":
        pytest.importorskip("transformers")
    wide = WIDE if family == "vit" else load_family("gpt2").examples[0].with_(classes=0)
    teacher = record_wide(spec=wide)
    spec = wide.with_(width=2 * wide.head_width, heads=2)
    P_dD = build_projection(compute_directions(teacher.streams, teacher.pictures)[0], spec.width)
    runs, copy_blocks = range(wide.layers), solve.copy_blocks

    def build() -> torch.Tensor:
        parts = solve_descendant(teacher, spec, runs, P_dD, rho=1e-9, solve=is_solved)
        return build_last_stream(teacher, spec, parts)

    def copy_with_maps(*arguments: object) -> CopiedBlocks:
        copies = copy_blocks(*arguments)  # type: ignore[arg-type]
        parts = dict(copies.state)
        maps = [
            narrow_copied_heads(parts, number, teacher, number, heads, wide.head_width)
            for number, heads in enumerate(copies.heads)
        ]
        assert maps[0].queries.shape[1:] == (wide.head_width, wide.head_width)
        return copies._replace(state=parts, maps=maps)

    expected = build()
    monkeypatch.setattr(solve, "copy_blocks", copy_with_maps)
    error = (build() - expected).abs().max()
    assert error < 1e-3 * expected.abs().max()


def embed(state: StateDict, small: Spec) -> StateDict:
    """Return a model of the shape `WIDE` that computes the same as a small one with plain norms.

    The stream is turned, heads have the channels of the small ones twice as wide, and hidden
    neurons are filled up with zeros.
    """
    generator = torch.Generator().manual_seed(3)

    def draw(rows: int, columns: int) -> torch.Tensor:
        raw = torch.randn(rows, columns, generator=generator, dtype=torch.float64)
        return torch.linalg.qr(raw - raw.mean(dim=0))[0]

    P_Dd = draw(WIDE.width, small.width - 1) @ build_basis(small.width).T
    shape = WIDE.head_width, small.head_width
    heads, scale = torch.linalg.qr(torch.randn(shape, generator=generator).double())[0], 2**0.25
    maps = {
        "width": Along(write=P_Dd, read=(small.width / WIDE.width) ** 0.5 * P_Dd),
        "head_width": Along(write=scale * heads, read=heads / scale),
        "hidden": torch.eye(WIDE.hidden, small.hidden, dtype=torch.float64),
    }
    wide = dict(map_axes(state, small, maps))
    for name in wide:
        if "norm" in name:
            wide[name] = torch.full((WIDE.width,), float(name.endswith("weight")))
    return wide


@pytest.mark.parametrize("is_solved", [False, True])
def test_heads_of_low_rank_lose_nothing(is_solved: bool) -> None:
    small = WIDE.with_(width=24, heads=3)
    state = dict(remove_head(make_tiny_ancestry(spec=small).state, small))
    for name in state:
        if "norm" in name:
            state[name] = torch.full((small.width,), float(name.endswith("weight")))
        elif not name.startswith("blocks."):
            state[name] = 30 * state[name]  # so that the epsilon of the norms does not count
    teacher = record_wide(embed(state, small))
    P_dD = build_projection(compute_directions(teacher.streams, teacher.pictures)[0], small.width)
    parts = solve_descendant(teacher, small, [0, 1], P_dD, rho=1e-6, solve=is_solved)
    expected = teacher.streams.before[-1] @ P_dD.float().T
    torch.testing.assert_close(expected.norm(dim=1), teacher.streams.before[-1].norm(dim=1))
    error = (build_last_stream(teacher, small, parts) - expected).abs().max()
    assert error < 1e-3 * expected.abs().max()
    torch.testing.assert_close(
        build_last_stream(teacher, small, state).var(dim=1),
        expected.var(dim=1),
        rtol=1e-3,
        atol=1e-5,
    )


def test_solving_comes_nearer_than_the_copies() -> None:
    teacher, spec = record_wide(), WIDE.with_(width=24, heads=3)
    P_dD = build_projection(compute_directions(teacher.streams, teacher.pictures)[0], spec.width)
    expected = teacher.streams.before[-1] @ P_dD.float().T
    errors = [
        float(
            (
                build_last_stream(
                    teacher, spec, solve_descendant(teacher, spec, [0, 1], P_dD, rho=1e-3, solve=on)
                )
                - expected
            ).norm()
        )
        for on in (True, False)
    ]
    assert errors[0] < errors[1]


@pytest.fixture
def learngene(monkeypatch: pytest.MonkeyPatch) -> lg.Learngene:
    monkeypatch.setattr(
        "learngene_zoo.tasks.catalogue._open_named", lambda name, offline: make_tiny_task(name)
    )
    return extract_toy(make_tiny_ancestry(spec=WIDE))


def test_width_and_heads_or_channels_name_the_same_model(learngene: lg.Learngene) -> None:
    built = [
        lg.expand(learngene, layers=1, **sizes)
        for sizes in ({"width": 24, "heads": 3}, {"width": 24, "head_dim": 8}, {"head_dim": 8})
    ]
    assert {(model.spec.width, model.spec.heads) for model in built} == {(24, 3)}
    assert all(torch.equal(built[0].state[n], built[2].state[n]) for n in built[0].inherited)
    assert built[0].model()(torch.zeros(1, 3, 16, 16)).isfinite().all()
    fewer = lg.expand(learngene, layers=1, heads=2, head_dim=8)
    assert (fewer.spec.width, fewer.spec.heads) == (16, 2)


def test_the_list_has_every_number_of_heads_of_these_channels(learngene: lg.Learngene) -> None:
    sizes = {
        head_dim: {
            (member.spec.width, member.spec.heads)
            for member in ClosedFormExpander(head_dim=head_dim).family(learngene.config)
        }
        for head_dim in (None, 8)
    }
    assert sizes == {None: {(16, 1), (32, 2), (48, 3)}, 8: {(8, 1), (16, 2), (24, 3)}}


@pytest.mark.parametrize(
    ("sizes", "settings", "said"),
    [
        (
            {"width": 48, "heads": 6},
            {},
            "with 6 heads of 8 channels; this learngene has 3 heads of 16 channels and a width of "
            "48: choose width 16, 32, 48, or at most 3 heads of at most 16 channels, such as "
            "width 48 with 3 heads",
        ),
        ({"width": 42, "heads": 5}, {}, "5 heads do not divide.* such as width 42 with 3 heads"),
        ({"width": 30, "heads": 7}, {}, "7 heads do not divide.* such as width 30 with 3 heads"),
        ({"width": 47, "heads": 2}, {}, "at most 3 heads of at most 16 channels$"),
        ({"width": 100, "heads": 7}, {}, "at most 3 heads of at most 16 channels$"),
        ({"width": 24, "heads": 1}, {}, "this learngene has 3 heads of 16"),
        ({"width": 24}, {}, "not a multiple of the head width of 16"),
        ({"width": 100}, {}, "width is 100; .*: choose width 16, 32, 48"),
        ({"width": 20}, {"head_dim": 8}, "2 heads of 8 channels .* choose that .*or head_dim 10"),
        ({"width": 48}, {"head_dim": 10}, "3 heads of 10 channels .* width of 30; choose .*dim 16"),
        ({}, {"head_dim": 32}, "this learngene has 3 heads of 16.*a head_dim of at most 16"),
        ({}, {"head_dim": 32, "nested": True}, "leave out head_dim"),
        ({"width": 24}, {"nested": True}, "leave out nested, or choose width 16, 32, 48"),
        ({"width": 24, "heads": 3}, {"nested": True}, "leave out nested"),
    ],
)
def test_heads_that_cannot_be_are_refused(
    learngene: lg.Learngene, sizes: dict[str, int], settings: dict[str, int], said: str
) -> None:
    expander = ClosedFormExpander(**settings)  # type: ignore[arg-type]
    with pytest.raises(WrongCall, match=said):
        lg.expand(learngene, target=Target(**sizes), expander=expander)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("spec", "said"),
    [
        (WIDE.with_(qk_norm=True), "norms of queries and keys, so its heads keep their 16"),
        (
            EVA.with_(width=48, heads=3, rotary=True),
            "rotary positions, which turn pairs of channels",
        ),
        (EVA.with_(width=48, heads=3, rotary=False), "attention of the family 'eva', which is not"),
    ],
    ids=["vit", "eva", "eva without rotary positions"],
)
def test_models_whose_heads_keep_their_channels(spec: Spec, said: str) -> None:
    config = ClosedFormExtractor().outline([spec])
    with pytest.raises(WrongCall, match=said):
        ClosedFormExpander().check_target(config, Target(width=24, heads=3))
    with pytest.raises(WrongCall, match=said):
        ClosedFormExpander(head_dim=8).family(config)
