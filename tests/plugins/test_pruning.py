"""Pruning: the criteria, the ranking through all blocks, what compensation may and may not do, and the laws of what is built."""

from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import pytest
import torch
from torch import nn
from torch.utils.flop_counter import FlopCounterMode

import learngene_zoo as lg
from learngene_zoo.bench.cell import Arm, Cell
from learngene_zoo.bench.trial import size_of
from learngene_zoo.errors import BadFile, WrongCall
from learngene_zoo.families.family import cost, load_family
from learngene_zoo.families.tensors import model_of
from learngene_zoo.families.vit.spec import ViTSpec
from learngene_zoo.method import Target
from learngene_zoo.runs.run import Run
from learngene_zoo.settings import Recipe
from learngene_zoo.testing import check_method, tiny_ancestry, tiny_task
from learngene_zoo.testing.expansion import check_family, check_members
from lgzoo_closed_form.closed_form import Calibration
from lgzoo_closed_form.cutting import Kept, absorbed, best, compensated, cut, recordings
from lgzoo_closed_form.importance import importances
from lgzoo_closed_form.pruned import check_prunable, shown_to
from lgzoo_closed_form.pruning import PRUNING, Prune, Rank, Scoring
from lgzoo_closed_form.ridge import Sums, weighted_mean
from lgzoo_closed_form.sizes import SHARES, Counts, begun, even_members, ranked, ratio, uneven_spec
from lgzoo_closed_form.streams import Pictures, inputs_of

SPEC = load_family("vit").examples[0].with_(layers=4, width=48, heads=3)
SETTINGS = Calibration(images=24)


def test_contract() -> None:
    check_method(PRUNING)


@pytest.fixture(scope="module")
def learngene() -> lg.Learngene:
    ancestry = tiny_ancestry(spec=SPEC)
    made = Rank(each=Scoring(calibration=SETTINGS))([ancestry], [tiny_task()], Run(seed=1))
    return made.with_config(ancestries=(ancestry.record,))


@pytest.fixture(autouse=True)
def tiny_in_the_catalogue(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("learngene_zoo.tasks.catalogue._named", lambda name, offline: tiny_task(name))


def test_the_ranking_through_all_blocks_keeps_the_contract(learngene: lg.Learngene, tmp_path: Path) -> None:
    method = replace(PRUNING, expander=Prune(ranking="global"))
    members = check_family(method, learngene.config)
    assert [member.settings["keep"] for member in members] == list(SHARES)
    assert len({member.spec for member in members[:-1]} - {member.spec for member in even_members(SPEC)}) > 10
    check_members(method, learngene, [members[0], members[7], members[-1]], tmp_path)


# The criteria.


def pictures_of(spec: ViTSpec) -> Pictures:
    ancestry = tiny_ancestry(spec=spec)
    return shown_to(spec, SETTINGS, tiny_task(), ancestry.input_format, Run(seed=1))


def linear(inputs: int, outputs: int, bias: bool = True) -> nn.Linear:
    """The same one every time."""
    layer, generator = nn.Linear(inputs, outputs, bias=bias), torch.Generator().manual_seed(1)
    for parameter in layer.parameters():
        parameter.data.copy_(torch.randn(parameter.shape, generator=generator))
    return layer


def sums_of(inputs_RI: torch.Tensor, weights_R: torch.Tensor, centred: bool = True) -> Sums:
    return Sums.over([(inputs_RI, inputs_RI[:, :0], weights_R)], centred=centred)


@torch.no_grad()
def read_by(model: nn.Module, layer: nn.Module, shown: Pictures) -> torch.Tensor:
    """What a layer reads of the recorded tokens, with all images at once."""
    with inputs_of(layer) as found:
        model(shown.images)
    return shown.rows(found[0])


def test_magnitudes_by_number() -> None:
    ancestry = tiny_ancestry(spec=SPEC)
    heads, hidden = importances("magnitude", ancestry, pictures_of(SPEC))
    wide, squares = SPEC.head_width, {name: ancestry.state[name].double() ** 2 for name in ancestry.state}

    def of_head(head: int) -> float:
        rows = slice(head * wide, (head + 1) * wide)
        qkv = squares["blocks.2.attn.qkv.weight"]
        written = sum(part[rows].sum() for part in qkv.split(SPEC.width))
        return float(written + squares["blocks.2.attn.proj.weight"][:, rows].sum())

    expected = torch.tensor([of_head(head) for head in range(3)]).double()
    torch.testing.assert_close(heads[2], expected / expected.mean())
    expected = squares["blocks.1.mlp.fc1.weight"].sum(dim=1) + squares["blocks.1.mlp.fc2.weight"].sum(dim=0)
    torch.testing.assert_close(hidden[1], expected / expected.mean())


def test_slopes_are_those_of_the_loss() -> None:
    """Of two hidden neurons, by differences of the loss in every weight."""
    ancestry, neurons = tiny_ancestry(spec=SPEC), (3, 40)
    shown = replace(pictures_of(SPEC), images=pictures_of(SPEC).images[:8])
    _, hidden = importances("taylor", ancestry, shown)
    model = model_of(SPEC, ancestry.state).double()
    images, mlp = shown.images.double(), model.blocks[1].mlp
    with torch.no_grad():
        labels = model(images).argmax(dim=1)

        def slope(vector: torch.Tensor, index: int) -> float:
            losses, old = [], float(vector[index])
            for step in (1e-5, -1e-5):
                vector[index] = old + step
                losses.append(float(nn.functional.cross_entropy(model(images), labels)))
            vector[index] = old
            return abs(old * (losses[0] - losses[1]) / 2e-5)

        found = [
            sum(slope(vector, index) for vector in (mlp.fc1.weight[j], mlp.fc2.weight[:, j]) for index in range(48))
            for j in neurons
        ]
    assert found[0] / found[1] == pytest.approx(float(hidden[1, 3] / hidden[1, 40]), rel=1e-3)


def test_energies_are_the_variance_of_what_is_added() -> None:
    ancestry, shown = tiny_ancestry(spec=SPEC), pictures_of(SPEC)
    heads, hidden = importances("energy", ancestry, shown)
    model = model_of(SPEC, ancestry.state)
    block = model.blocks[2]
    outputs, neurons = (read_by(model, layer, shown) for layer in (block.attn.proj, block.mlp.fc2))
    share = shown.weights / shown.weights.sum()

    def variance(inputs: torch.Tensor, layer: nn.Linear, columns: slice) -> float:
        added = (inputs[:, columns] @ layer.weight[:, columns].T).detach().double()
        mean = (added * share[:, None]).sum(dim=0)
        return float(((added - mean).square().sum(dim=1) * share).sum())

    wide = SPEC.head_width
    of_heads = torch.tensor([variance(outputs, block.attn.proj, slice(i * wide, (i + 1) * wide)) for i in range(3)])
    of_neurons = torch.tensor([variance(neurons, block.mlp.fc2, slice(j, j + 1)) for j in range(SPEC.hidden)])
    torch.testing.assert_close(heads[2], (of_heads / of_heads.mean()).double(), rtol=1e-4, atol=0)
    torch.testing.assert_close(hidden[2], (of_neurons / of_neurons.mean()).double(), rtol=1e-4, atol=1e-5)


def test_a_model_without_classes_has_no_loss() -> None:
    spec = SPEC.with_(classes=0)
    with pytest.raises(WrongCall, match="criterion taylor needs an ancestry model with classes"):
        importances("taylor", tiny_ancestry(spec=spec), pictures_of(spec))


# The ranking through all blocks.


def test_a_ranking_goes_through_all_blocks_but_no_block_loses_its_best() -> None:
    scores = [[5.0, 4.0, 9.0], [0.2, 0.1, 0.3], [4.0, 1.0, 4.0]]
    ranking = ranked(scores, 1)
    assert ranking == [(0, 2), (2, 0), (1, 2), (0, 0), (0, 1), (2, 2), (2, 1), (1, 0), (1, 1)]
    assert begun(ranking, 5 / 9, 3, 1) == [[0, 1, 2], [2], [0]]
    assert begun(ranking, 0.01, 3, 1) == [[2], [2], [0]]
    assert begun(ranking, 1.0, 3, 1) == [[0, 1, 2]] * 3


def test_what_a_smaller_share_keeps_a_larger_one_keeps() -> None:
    scores = torch.rand(6, 40, generator=torch.Generator().manual_seed(0))
    ranking = ranked(scores.tolist(), 5)
    cuts = [begun(ranking, share, 6, 5) for share in SHARES]
    for fewer, more in pairwise(cuts):
        assert all(set(one) <= set(other) for one, other in zip(fewer, more))
    assert [sum(map(len, one)) for one in cuts] == [round(share * 240) for share in SHARES]
    assert all(one == best(scores, [len(block) for block in one]) for one in cuts)


@pytest.mark.parametrize("mlp", ["mlp", "swiglu", "swiglu_packed"])
def test_a_ratio_makes_its_hidden_width(mlp: str) -> None:
    for width in (48, 96, 240):
        whole = SPEC.with_(width=width, heads=3, mlp=mlp)
        for hidden in range(width // 40, whole.hidden + 1):
            assert whole.with_(mlp_ratio=ratio(whole, hidden)).hidden == hidden


def test_neighbours_of_one_size_are_one_segment() -> None:
    spec = uneven_spec(SPEC, Counts((3, 3, 1, 1), (192, 192, 100, 100)))
    assert [(part.layers, part.heads, part.heads_width, part.hidden) for part in spec.segments] == [
        (2, 3, 48, 192),
        (2, 1, 16, 100),
    ]
    assert uneven_spec(SPEC, Counts((3,) * 4, (192,) * 4)) == SPEC
    with pytest.raises(WrongCall, match="counts for 2 and 4 of 4 blocks"):
        uneven_spec(SPEC, Counts((3, 3), (192,) * 4))


# Compensation.


def test_every_block_is_recorded_a_few_images_at_a_time() -> None:
    shown, model = pictures_of(SPEC), model_of(SPEC, tiny_ancestry(spec=SPEC).state)
    parts = list(recordings(model, shown))
    assert [part.block for part in parts] == [0, 0, 1, 1, 2, 2, 3, 3]  # 24 images, of which 16 go through together
    for number, block in enumerate(model.blocks):
        own = [part for part in parts if part.block == number]
        torch.testing.assert_close(torch.cat([part.outputs for part in own]), read_by(model, block.attn.proj, shown))
        torch.testing.assert_close(torch.cat([part.hidden for part in own]), read_by(model, block.mlp.fc2, shown))
        assert torch.equal(torch.cat([part.weights for part in own]), shown.weights)


@pytest.mark.parametrize("bias", [True, False])
def test_what_is_an_affine_function_of_the_rest_is_not_missed(bias: bool) -> None:
    generator = torch.Generator().manual_seed(0)
    inputs = torch.randn(200, 6, generator=generator)
    inputs[:, 4:] = inputs[:, :4] @ torch.randn(4, 2, generator=generator) + 3.0 * bias
    layer, weights = linear(6, 5, bias), torch.rand(200, generator=generator).double()
    wanted = layer(inputs)
    weight, offset = absorbed(layer, sums_of(inputs, weights, bias), range(4), 1e-12)
    got = inputs[:, :4] @ weight.T + (offset if offset is not None else 0)
    torch.testing.assert_close(got, wanted, atol=1e-4, rtol=0)
    cut_off = wanted - inputs[:, 4:] @ layer.weight[:, 4:].T
    assert (cut_off - wanted).abs().mean() > 0.3
    assert (offset is None) == (not bias)


def test_a_layer_without_a_bias_is_made_up_for_by_least_squares() -> None:
    generator = torch.Generator().manual_seed(0)
    inputs, layer = torch.randn(60, 5, generator=generator) + 2, linear(5, 3, False)
    weights = torch.rand(60, generator=generator).double()
    rows = inputs.double() * weights.sqrt()[:, None]
    expected = torch.linalg.lstsq(rows[:, :3], rows @ layer.weight.double().T).solution.T
    weight, _ = absorbed(layer, sums_of(inputs, weights, False), [0, 1, 2], 0.0)
    torch.testing.assert_close(weight.double(), expected, atol=1e-5, rtol=0)


def test_a_model_without_biases_is_made_up_for_by_least_squares() -> None:
    spec = SPEC.with_(proj_bias=False)
    ancestry, shown = tiny_ancestry(spec=spec), pictures_of(spec)
    model, kept = model_of(spec, ancestry.state), Kept([[0, 1]] * 4, [list(range(100))] * 4)
    found = compensated(model, ancestry.state, spec, kept, shown, 0.0)
    layer = model.blocks[1].attn.proj
    rows = read_by(model, layer, shown).double() * shown.weights.sqrt()[:, None]
    expected = torch.linalg.lstsq(rows[:, :32], rows @ layer.weight.detach().double().T).solution.T
    torch.testing.assert_close(found["blocks.1.attn.proj.weight"].double(), expected, atol=1e-4, rtol=0)


@pytest.mark.parametrize("rho", [0.0, 1e-3, 1.0, 1e6])
def test_the_error_never_rises(rho: float) -> None:
    ancestry, shown = tiny_ancestry(spec=SPEC), pictures_of(SPEC)
    model = model_of(SPEC, ancestry.state)
    for block in model.blocks:
        for layer in (block.attn.proj, block.mlp.fc2):
            inputs = read_by(model, layer, shown)
            kept = list(range(0, layer.in_features, 3))
            wanted, alone = layer(inputs).double(), inputs[:, kept] @ layer.weight[:, kept].T + layer.bias
            weight, bias = absorbed(layer, sums_of(inputs, shown.weights), kept, rho)
            got = inputs[:, kept] @ weight.T + bias
            with_it, without = (
                float((shown.weights * (one - wanted).square().sum(1)).sum().detach()) for one in (got, alone)
            )
            assert with_it < (0.9 if rho < 1 else 1.0) * without


def test_the_constant_part_is_not_missed_whatever_the_ridge() -> None:
    layer, weights = linear(3, 4), torch.ones(50).double()
    inputs = torch.randn(50, 3, generator=torch.Generator().manual_seed(0)) + 5
    weight, bias = absorbed(layer, sums_of(inputs, weights), [0], 1e9)
    missed = inputs[:, :1] @ weight.T + bias - layer(inputs)
    assert weighted_mean(missed.double(), weights).abs().max() < 1e-5


def test_copies_of_heads_and_neurons_are_not_missed() -> None:
    """With a copy of head 0 for head 2, and of neurons 0 to 9 for 10 to 19, the model computes the same without them."""
    ancestry, shown = tiny_ancestry(spec=SPEC), pictures_of(SPEC)
    state = {name: ancestry.state[name].clone() for name in ancestry.state}
    for block in range(SPEC.layers):
        for part in ("weight", "bias"):
            for rows in state[f"blocks.{block}.attn.qkv.{part}"].split(SPEC.width):
                rows[32:48] = rows[:16]
            state[f"blocks.{block}.mlp.fc1.{part}"][10:20] = state[f"blocks.{block}.mlp.fc1.{part}"][:10]
    kept = Kept([[0, 1]] * 4, [[*range(10), *range(20, 192)]] * 4)
    whole, spec = model_of(SPEC, state), uneven_spec(SPEC, Counts((2,) * 4, (182,) * 4))
    with torch.no_grad():
        wanted = whole(shown.images)
        with_it = model_of(spec, compensated(whole, state, SPEC, kept, shown, 1e-10))(shown.images)
        without = model_of(spec, cut(state, SPEC, kept))(shown.images)
    torch.testing.assert_close(with_it, wanted, atol=1e-4, rtol=0)
    assert (without - wanted).abs().max() > 0.1


def test_what_is_kept_of_a_layer_with_all_inputs_is_its_own() -> None:
    layer = linear(6, 5)
    weight, bias = absorbed(layer, sums_of(torch.randn(20, 6), torch.ones(20).double()), range(6), 1e-3)
    assert torch.equal(weight, layer.weight)
    assert bias is not None
    assert torch.equal(bias, layer.bias)


# Descendants.


@pytest.mark.parametrize("expander", [Prune(), Prune(keep=1.0), Prune(ranking="global"), Prune(compensate=False)])
def test_with_nothing_cut_the_ancestry_model_is_left(learngene: lg.Learngene, expander: Prune) -> None:
    made = lg.expand(learngene, expander=expander)
    assert made.spec == SPEC
    assert all(torch.equal(made.state[name], learngene.state[name]) for name in made.inherited)
    assert len(made.inherited) == len(learngene.state) - 2
    assert "calibration" not in made.provenance


@pytest.mark.parametrize(
    "expander", [Prune(keep=0.5), Prune(ranking="global", keep=0.5), Prune(ranking="global", keep=0.43)]
)
def test_cost_is_that_of_the_built_model(learngene: lg.Learngene, expander: Prune) -> None:
    made = lg.expand(learngene, expander=expander)
    model = made.model().eval()
    for block in model.blocks:
        block.attn.fused_attn = False  # the counter sees its two products
    with FlopCounterMode(display=False) as counter, torch.no_grad():
        model(torch.zeros(1, 3, 16, 16))
    assert made.spec.layers == 4
    norms = 5 * made.spec.tokens * 9 * 48
    assert cost(made.spec).flops == counter.get_total_flops() // 2 + norms
    assert cost(made.spec).params == sum(parameter.numel() for parameter in model.parameters())
    kept = made.provenance["kept"]
    share = expander.keep or 1
    whole = SPEC.heads * (1 if expander.ranking == "local" else SPEC.layers)
    assert sum(kept["heads"]) == round(share * whole) * (4 if expander.ranking == "local" else 1)
    assert sum(kept["hidden"]) == round(share * 192 * 4)


def test_the_best_are_kept_of_each_block(learngene: lg.Learngene) -> None:
    made = lg.expand(learngene, expander=Prune(compensate=False), heads=2, mlp_ratio=0.5)
    for block in range(4):
        worst = int(learngene.state["importance.heads"][block].argmin())
        rows = [row for row in range(48) if row // 16 != worst]
        whole = learngene.state[f"blocks.{block}.attn.proj.weight"]
        assert torch.equal(made.state[f"blocks.{block}.attn.proj.weight"], whole[:, rows])
        neurons = learngene.state["importance.hidden"][block].topk(24).indices.sort().values
        whole = learngene.state[f"blocks.{block}.mlp.fc1.weight"]
        assert torch.equal(made.state[f"blocks.{block}.mlp.fc1.weight"], whole[neurons])


def missed(learngene: lg.Learngene, expander: Prune) -> float:
    """How far the features are from the ancestry model's, on the images that it saw."""
    whole = model_of(SPEC.with_(classes=0), {n: learngene.state[n] for n in learngene.state if "importance" not in n})
    images = pictures_of(SPEC).images
    with torch.no_grad():
        wanted, got = (
            model.eval().forward_features(images) for model in (whole, lg.expand(learngene, expander=expander).model())
        )
    return float((got - wanted).square().mean())


@pytest.mark.parametrize("expander", [Prune(keep=0.4), Prune(ranking="global", keep=0.6)])
def test_compensation_comes_nearer_to_the_ancestry_model(learngene: lg.Learngene, expander: Prune) -> None:
    assert missed(learngene, expander) < 0.7 * missed(learngene, replace(expander, compensate=False))


@pytest.mark.parametrize("expander", [Prune(), Prune(ranking="global")])
def test_a_budget_is_kept(learngene: lg.Learngene, expander: Prune) -> None:
    whole = cost(SPEC)
    for share in (0.4, 0.6, 0.8):
        made = lg.expand(learngene, expander=expander, max_flops=int(share * whole.flops))
        assert 0.7 * share * whole.flops < cost(made.spec).flops <= share * whole.flops


@pytest.mark.parametrize(
    ("expander", "sizes", "said"),
    [
        (Prune(), {"heads": 4}, "heads is 4; the ancestry model has 3, and pruning only takes away"),
        (Prune(), {"mlp_ratio": 8.0}, "mlp_ratio is 8.0; the ancestry model has 4.0"),
        (Prune(), {"mlp_ratio": 0.015}, "leaves no hidden neuron; choose at least 0.0208"),
        (Prune(), {"layers": 2}, "layers is 2, but all descendants of this learngene have layers 4"),
        (
            Prune(ranking="global", keep=0.2),
            {"heads": 3},
            "--ranking global gives each block its own; leave out --heads",
        ),
        (Prune(ranking="global", keep=0.5), {"mlp_ratio": 3.0}, "leave out --mlp-ratio, and name --keep or a budget"),
    ],
)
def test_sizes_that_cannot_be_are_refused(
    learngene: lg.Learngene, expander: Prune, sizes: dict[str, float], said: str
) -> None:
    with pytest.raises(WrongCall, match=said):
        lg.expand(learngene, expander=expander, target=Target(**sizes))  # type: ignore[arg-type]


def test_pictures_of_the_learngenes_maker_are_not_opened_unasked(learngene: lg.Learngene) -> None:
    theirs = learngene.with_config(details={**learngene.config.details, "task": "folder:theirs"})
    with pytest.raises(WrongCall, match="has seen folder:theirs, which is opened only if you name it"):
        lg.expand(theirs, keep=0.5)
    assert lg.expand(theirs, keep=0.5, calibration="b").provenance["calibration"] == "b"
    assert lg.expand(theirs, keep=0.5, task="c").provenance["calibration"] == "c"
    assert "calibration" not in lg.expand(theirs, keep=0.5, compensate=False).provenance


def test_what_is_missing_or_wrong_in_a_learngene_is_named(learngene: lg.Learngene) -> None:
    state = {name: learngene.state[name] for name in learngene.state if name != "importance.hidden"}
    with pytest.raises(BadFile, match=r"lacks importance.hidden of shape \(4, 192\)"):
        lg.expand(replace(learngene, state=state), keep=0.5)
    broken = learngene.with_config(details={**learngene.config.details, "heads": [[3, 3, 3, 3]]})
    with pytest.raises(BadFile, match="details has 1 and 18 cuts for 18 shares"):
        lg.expand(broken, expander=Prune(ranking="global", keep=0.5))


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"post_norm": True}, "norms after attention and MLP"),
        ({"scale_norms": True}, "norms within attention and MLP"),
        ({"pool": "map"}, "pooling by attention"),
    ],
)
def test_models_that_something_else_reads_are_refused(changes: dict[str, object], said: str) -> None:
    with pytest.raises(WrongCall, match=f"pruning does not take models with {said}"):
        check_prunable(SPEC.with_(**changes), "pruning")


@pytest.mark.parametrize(
    "changes",
    [
        {"mlp": "swiglu"},
        {"mlp": "swiglu_packed"},
        {"qk_norm": True, "layer_scale": 0.1},
        {"qkv_bias": False, "proj_bias": False},
        {"class_token": False, "pool": "avg"},
    ],
)
def test_other_blocks_are_pruned(changes: dict[str, object]) -> None:
    spec = SPEC.with_(**changes)
    for criterion in ("energy", "magnitude"):
        extractor = Rank(each=Scoring(criterion=criterion, calibration=SETTINGS))  # type: ignore[arg-type]
        made = extractor([tiny_ancestry(spec=spec)], [tiny_task()], Run(seed=1))
        for expander in (Prune(keep=0.5), Prune(ranking="global", keep=0.5)):
            small = lg.expand(made, expander=expander)
            assert small.model()(torch.zeros(1, 3, 16, 16)).isfinite().all()
            assert cost(small.spec).params < 0.75 * cost(spec).params


def test_without_stored_weights_the_ancestry_model_is_opened_again() -> None:
    run, small = Run(seed=1), Scoring(calibration=Calibration(images=8))
    made = [lg.extract("pruning", extractor=Rank(store=store, each=small), run=run) for store in (True, False)]
    assert set(made[1].state) == {"importance.heads", "importance.hidden"}
    assert [gene.config.details["stored"] for gene in made] == [True, False]
    one, other = (lg.expand(gene, keep=0.5, run=run) for gene in made)
    assert one.inherited == other.inherited
    assert all(torch.equal(one.state[name], other.state[name]) for name in one.state)


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
    ancestry = tiny_ancestry(spec=SPEC)
    made = Rank(each=Scoring(calibration=SETTINGS))([ancestry], [tiny_task()], Run(seed=1))
    target, expander = size_of(cell, made, tiny_task())
    assert (target.heads, target.mlp_ratio, target.width) == (1, 0.5, SPEC.width)
    assert expander == PRUNING.expander
    smaller, whole = (size_of(replace(cell, size=size), made, tiny_task())[0] for size in ({"heads": 1}, {}))
    assert (smaller.heads, smaller.mlp_ratio) == (1, SPEC.mlp_ratio)
    assert whole.heads == SPEC.heads
