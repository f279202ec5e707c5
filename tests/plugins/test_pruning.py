"""Pruning: the laws of what is built, and what is refused."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from pruning_toy import SETTINGS, SPEC, sample_toy_pictures

import learngene_zoo as lg
from learngene_zoo.bench.grid.cell import Arm, Cell
from learngene_zoo.bench.running.trial import find_size
from learngene_zoo.errors import BadFile, WrongCall
from learngene_zoo.families.family import count_cost, load_family
from learngene_zoo.families.tensors import build_model
from learngene_zoo.lifecycle.comparison import make_flop_counter
from learngene_zoo.method.sizes import Target
from learngene_zoo.pretrained.ancestry import Ancestry
from learngene_zoo.runs.run import Run
from learngene_zoo.settings import Recipe
from learngene_zoo.testing import make_tiny_ancestry, make_tiny_task
from learngene_zoo.testing.expansion import check_family, check_members
from lgzoo_closed_form.calibration import Calibration
from lgzoo_closed_form.modules.importance import Criterion
from lgzoo_closed_form.pruned import check_prunable
from lgzoo_closed_form.pruning import PRUNING, PruningExpander, PruningExtractor, Scoring
from lgzoo_closed_form.sizes import SHARES, list_even_members


@pytest.fixture(scope="module")
def learngene() -> lg.Learngene:
    return extract_toy(make_tiny_ancestry(spec=SPEC), "energy")


def extract_toy(ancestry: Ancestry, criterion: Criterion) -> lg.Learngene:
    """Extract a learngene of an ancestry model."""
    extractor = PruningExtractor(each=Scoring(criterion=criterion, calibration=SETTINGS))
    learngene = extractor([ancestry], [make_tiny_task()], Run(seed=1))
    return learngene.with_config(method="pruning", ancestries=(ancestry.record,))


@pytest.fixture(autouse=True)
def tiny_in_the_catalogue(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        "learngene_zoo.tasks.catalogue._open_named", lambda name, offline: make_tiny_task(name)
    )


def test_the_ranking_through_all_blocks_keeps_the_contract(
    learngene: lg.Learngene, tmp_path: Path
) -> None:
    method = replace(PRUNING, expander=PruningExpander(ranking="global"))
    members = check_family(method, learngene.config)
    assert [member.settings["keep"] for member in members] == list(SHARES)
    assert (
        len(
            {member.spec for member in members[:-1]}
            - {member.spec for member in list_even_members(SPEC)}
        )
        > 10
    )
    check_members(method, learngene, [members[0], members[7], members[-1]], tmp_path)


# Descendants.


@pytest.mark.parametrize(
    "expander",
    [
        PruningExpander(),
        PruningExpander(keep=1.0),
        PruningExpander(ranking="global"),
        PruningExpander(compensate=False),
    ],
)
def test_with_nothing_cut_the_ancestry_model_is_left(
    learngene: lg.Learngene, expander: PruningExpander
) -> None:
    descendant = lg.expand(learngene, expander=expander)
    assert descendant.spec == SPEC
    assert all(
        torch.equal(descendant.state[name], learngene.state[name]) for name in descendant.inherited
    )
    assert len(descendant.inherited) == len(learngene.state) - 2
    assert "calibration" not in descendant.provenance


@pytest.mark.parametrize(
    "expander",
    [
        PruningExpander(keep=0.5),
        PruningExpander(ranking="global", keep=0.5),
        PruningExpander(ranking="global", keep=0.43),
    ],
)
def test_cost_is_that_of_the_built_model(
    learngene: lg.Learngene, expander: PruningExpander
) -> None:
    descendant = lg.expand(learngene, expander=expander)
    model = descendant.model().eval()
    for block in model.blocks:
        block.attn.fused_attn = False  # the counter sees its two products
    with make_flop_counter() as counter, torch.no_grad():
        model(torch.zeros(1, 3, 16, 16))
    assert descendant.spec.layers == 4
    norms = 5 * descendant.spec.tokens * 9 * 48
    assert count_cost(descendant.spec).flops == counter.get_total_flops() // 2 + norms
    assert count_cost(descendant.spec).params == sum(
        parameter.numel() for parameter in model.parameters()
    )
    counts = descendant.provenance["kept"]
    share = expander.keep or 1
    full = SPEC.heads * (1 if expander.ranking == "local" else SPEC.layers)
    assert sum(counts["heads"]) == round(share * full) * (4 if expander.ranking == "local" else 1)
    assert sum(counts["hidden"]) == round(share * 192 * 4)


def test_the_best_are_kept_of_each_block(learngene: lg.Learngene) -> None:
    descendant = lg.expand(
        learngene, expander=PruningExpander(compensate=False), heads=2, mlp_ratio=0.5
    )
    for block in range(4):
        worst = int(learngene.state["importance.heads"][block].argmin())
        rows = [row for row in range(48) if row // 16 != worst]
        weight = learngene.state[f"blocks.{block}.attn.proj.weight"]
        assert torch.equal(descendant.state[f"blocks.{block}.attn.proj.weight"], weight[:, rows])
        neurons = learngene.state["importance.hidden"][block].topk(24).indices.sort().values
        weight = learngene.state[f"blocks.{block}.mlp.fc1.weight"]
        assert torch.equal(descendant.state[f"blocks.{block}.mlp.fc1.weight"], weight[neurons])


def measure_error(learngene: lg.Learngene, expander: PruningExpander) -> float:
    """Return the squared error of the features, on the images of the extraction."""
    full = build_model(
        SPEC.with_(classes=0),
        {n: learngene.state[n] for n in learngene.state if "importance" not in n},
    )
    images = sample_toy_pictures(SPEC).images
    with torch.no_grad():
        target, features = (
            model.eval().forward_features(images)
            for model in (full, lg.expand(learngene, expander=expander).model())
        )
    return float((features - target).square().mean())


@pytest.mark.parametrize(
    "expander", [PruningExpander(keep=0.4), PruningExpander(ranking="global", keep=0.6)]
)
def test_compensation_comes_nearer_to_the_ancestry_model(
    learngene: lg.Learngene, expander: PruningExpander
) -> None:
    assert measure_error(learngene, expander) < 0.7 * measure_error(
        learngene, replace(expander, compensate=False)
    )


@pytest.mark.parametrize("expander", [PruningExpander(), PruningExpander(ranking="global")])
def test_a_budget_is_kept(learngene: lg.Learngene, expander: PruningExpander) -> None:
    full = count_cost(SPEC)
    for share in (0.4, 0.6, 0.8):
        descendant = lg.expand(learngene, expander=expander, max_flops=int(share * full.flops))
        assert 0.7 * share * full.flops < count_cost(descendant.spec).flops <= share * full.flops


@pytest.mark.parametrize(
    ("expander", "sizes", "said"),
    [
        (
            PruningExpander(),
            {"heads": 4},
            "heads is 4; the ancestry model has 3, and pruning only takes away",
        ),
        (PruningExpander(head_dim=64), {}, r"pruning only takes away; choose at most \d+$"),
        (PruningExpander(), {"mlp_ratio": 8.0}, "mlp_ratio is 8.0; the ancestry model has 4.0"),
        (
            PruningExpander(),
            {"mlp_ratio": 0.015},
            "leaves no hidden neuron; choose at least 0.0208",
        ),
        (
            PruningExpander(),
            {"layers": 2},
            "layers is 2, but all descendants of this learngene have layers 4",
        ),
        (
            PruningExpander(ranking="global", keep=0.2),
            {"heads": 3},
            "the ranking global gives each block its own; leave out heads",
        ),
        (
            PruningExpander(ranking="global", keep=0.5),
            {"mlp_ratio": 3.0},
            "leave out mlp_ratio, and name keep or a budget",
        ),
    ],
)
def test_sizes_that_cannot_be_are_refused(
    learngene: lg.Learngene, expander: PruningExpander, sizes: dict[str, float], said: str
) -> None:
    with pytest.raises(WrongCall, match=said):
        lg.expand(learngene, expander=expander, target=Target(**sizes))  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("settings", "said"),
    [({"calibration": "b"}, "calibration is b"), ({"damping": "each"}, "each")],
)
def test_settings_of_a_compensation_that_is_left_out_are_refused(
    learngene: lg.Learngene, settings: dict[str, Any], said: str
) -> None:
    with pytest.raises(WrongCall, match=f"{said}, but nothing is compensated"):
        lg.expand(learngene, keep=0.5, compensate=False, **settings)


def test_pictures_of_the_learngenes_maker_are_not_opened_unasked(learngene: lg.Learngene) -> None:
    foreign = learngene.with_config(details={**learngene.config.details, "task": "folder:theirs"})
    with pytest.raises(
        WrongCall, match="has seen folder:theirs, which is opened only if you name it"
    ):
        lg.expand(foreign, keep=0.5)
    assert lg.expand(foreign, keep=0.5, calibration="b").provenance["calibration"] == "b"
    assert lg.expand(foreign, keep=0.5, task="c").provenance["calibration"] == "c"
    assert "calibration" not in lg.expand(foreign, keep=0.5, compensate=False).provenance


def test_what_is_missing_or_wrong_in_a_learngene_is_named(learngene: lg.Learngene) -> None:
    state = {name: learngene.state[name] for name in learngene.state if name != "importance.hidden"}
    with pytest.raises(BadFile, match=r"lacks importance.hidden of shape \(4, 192\)"):
        lg.expand(replace(learngene, state=state), keep=0.5)
    broken = learngene.with_config(details={**learngene.config.details, "heads": [[3, 3, 3, 3]]})
    with pytest.raises(BadFile, match="details has 1 and 18 cuts for 18 shares"):
        lg.expand(broken, expander=PruningExpander(ranking="global", keep=0.5))


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"post_norm": True}, "norms after attention and MLP"),
        ({"scale_norms": True}, "norms within attention and MLP"),
    ],
)
def test_models_that_something_else_reads_are_refused(
    changes: dict[str, object], said: str
) -> None:
    with pytest.raises(WrongCall, match=f"pruning does not take models with {said}"):
        check_prunable(SPEC.with_(**changes), "pruning")


def test_elastic_refuses_learned_frequencies_before_it_measures_anything() -> None:
    mixed = load_family("eva").examples[0].with_(rope_type="mixed", attention="rope")
    check_prunable(mixed, "pruning")
    with pytest.raises(WrongCall, match="learned rotary frequencies for each head"):
        check_prunable(mixed, "elastic")


@pytest.mark.parametrize(
    "changes",
    [
        {"mlp": "swiglu"},
        {"mlp": "swiglu_packed"},
        {"qk_norm": True, "layer_scale": 0.1},
        {"qkv_bias": False, "proj_bias": False},
        {"class_token": False, "pool": "avg"},
        {"class_token": False, "pool": "map"},
    ],
)
def test_other_blocks_are_pruned(changes: dict[str, object]) -> None:
    spec = SPEC.with_(**changes)
    for criterion in ("energy", "magnitude"):
        learngene = extract_toy(make_tiny_ancestry(spec=spec), criterion)  # type: ignore[arg-type]
        for expander in (PruningExpander(keep=0.5), PruningExpander(ranking="global", keep=0.5)):
            small = lg.expand(learngene, expander=expander)
            assert small.model()(torch.zeros(1, 3, 16, 16)).isfinite().all()
            assert count_cost(small.spec).params < 0.75 * count_cost(spec).params


def test_without_stored_weights_the_ancestry_model_is_opened_again() -> None:
    run, settings = Run(seed=1), Scoring(calibration=Calibration(images=8))
    learngenes = [
        lg.extract("pruning", extractor=PruningExtractor(store=store, each=settings), run=run)
        for store in (True, False)
    ]
    assert set(learngenes[1].state) == {"importance.heads", "importance.hidden"}
    assert [learngene.config.details["stored"] for learngene in learngenes] == [True, False]
    first, second = (lg.expand(learngene, keep=0.5, run=run) for learngene in learngenes)
    assert first.inherited == second.inherited
    assert all(torch.equal(first.state[name], second.state[name]) for name in first.state)


# In the bench.


def test_a_cell_may_name_heads_and_the_ratio_of_the_mlp() -> None:
    cell = Cell(
        arm=Arm(name="pruning", method="pruning"),
        task="tiny",
        layers=SPEC.layers,
        width=SPEC.width,
        size={"heads": 1, "mlp_ratio": 0.5},
        seed=0,
        recipe=Recipe(epochs=0),
    )
    learngene = extract_toy(make_tiny_ancestry(spec=SPEC), "energy")
    target, expander = find_size(cell, learngene.config, make_tiny_task().classes)
    assert (target.heads, target.mlp_ratio, target.width) == (1, 0.5, SPEC.width)
    assert expander == PRUNING.expander
    smaller, full = (
        find_size(replace(cell, size=size), learngene.config, make_tiny_task().classes)[0]
        for size in ({"heads": 1}, {})
    )
    assert (smaller.heads, smaller.mlp_ratio) == (1, SPEC.mlp_ratio)
    assert full.heads == SPEC.heads


@pytest.mark.parametrize(
    ("criterion", "trained", "frozen"), [("energy", 0, 7), ("magnitude", 0, 7), ("taylor", 7, 0)]
)
def test_only_slopes_cost_what_training_costs(criterion: str, trained: int, frozen: int) -> None:
    extractor = PruningExtractor(
        each=Scoring(criterion=criterion, calibration=Calibration(images=24))
    )  # type: ignore[arg-type]
    for available, images in ((1000, 24), (10, 10)):
        (work,) = extractor.work([SPEC.with_(layers=7)], [available])
        assert (work.images, work.trained, work.frozen) == (images, trained, frozen)


def test_the_preset_smoke_scores_on_few_images() -> None:
    assert PRUNING.presets["smoke"] == PruningExtractor(
        each=Scoring(calibration=Calibration(images=24))
    )
    assert PRUNING.presets["mini"] != PRUNING.presets["smoke"]
