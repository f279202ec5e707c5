"""`Hypernet`: from a model's graph to all its parameters.

GHN-3, LoGAH, TAL and PITH differ in two parts only.

    nodes    = LN(Graphormer(type + shape + place in the graph; task))     encoder.py
               one embedding per node
    blocks   = decoder(nodes)        conv_decoder.py, low_rank_decoder.py or projected_decoder.py
    tensors  = tiled copies of the normalised blocks                       tensors.py

The prediction is differentiable in the hypernetwork's own parameters. These have the released
code's names and shapes; tensors of the released files that nothing reads are left out.

Two parts of a ViT are not nodes of the graph: the class token and its row of the position
embedding. The released code leaves the token at zero and draws the row at random in every call;
here the row is fixed (`compute_class_position`), so that a prediction is a function of the
hypernetwork, the spec and the task.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from functools import lru_cache
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor, nn

from learngene_zoo.plugin import (
    BadFile,
    Run,
    Spec,
    StateDict,
    allocate_tensors,
    derive_seed,
    draw_uniform,
    get_shapes,
    open_device,
    read_shapes,
)
from lgzoo_tal.hypernet_spec import HypernetSpec
from lgzoo_tal.modules.conv_decoder import MatrixDecoder, VectorDecoder
from lgzoo_tal.modules.encoder import Graphormer, ShapeEmbedding, TaskLayer, build_table
from lgzoo_tal.modules.forms import (
    CHANGES,
    POSITIONS,
    VECTORS,
    build_activation,
    compute_writer_scale,
    is_interleaved,
    sort_rows,
)
from lgzoo_tal.modules.graph import TEXT_TYPES, TYPES, Graph, build_graph
from lgzoo_tal.modules.inheritance import Inheritance
from lgzoo_tal.modules.low_rank_decoder import LowRankDecoder
from lgzoo_tal.modules.projected_decoder import (
    FUSION_START,
    GradualDecoder,
    ProjectionDecoder,
    mix_blocks,
)
from lgzoo_tal.modules.tensors import (
    Blocks,
    TensorGroup,
    compute_scale,
    fill,
    fix_std,
    group_tensors,
    is_vector,
    squash_vectors,
    tile_blocks,
)

if TYPE_CHECKING:
    from lgzoo_tal.modules.text_embeddings import Tables

CLASS_POSITION_STD = 0.02
DECODERS: dict[str, Callable[[HypernetSpec], nn.Module]] = {
    "conv": MatrixDecoder,
    "low_rank": LowRankDecoder,
    "projected": GradualDecoder,
}


class Hypernet(nn.Module):
    """A hypernetwork with freshly initialised parameters.

    With `seed` None they have no memory (for `build_frozen_hypernet`). A projected decoder needs
    `inheritance` to be set.
    """

    def __init__(self, spec: HypernetSpec, seed: int | None = 0) -> None:
        super().__init__()
        self.spec = spec
        self.inheritance: Inheritance | None = None
        self.tables: Tables | None = None
        with torch.device("meta"):
            types = TYPES if spec.inputs == "images" else TEXT_TYPES
            self.embed = build_table(len(types), spec.hidden)
            self.shape_enc = ShapeEmbedding(spec)
            self.gnn = Graphormer(spec)
            self.ln = nn.LayerNorm(spec.hidden)
            self.decoder = DECODERS[spec.decoder](spec)
            if spec.decoder == "projected":
                self.decoderpq = ProjectionDecoder(spec)
                self.fusion_weight = nn.Parameter(torch.empty(()))
            if spec.decoder == "conv":
                self.decoder_1d = VectorDecoder(spec)
                self.bias_class = nn.Sequential(
                    build_activation(spec.form), nn.Linear(spec.widest, spec.classes)
                )
        if seed is not None:
            self.to_empty(device="cpu")
            initialise(self, spec, seed)

    def encode(self, graph: Graph, task: Tensor | None = None) -> Tensor:
        """Return (N, h) the embeddings of the graph's nodes.

        Raises `WrongCall` for a task embedding that does not fit.
        """
        if graph.types.device != self.embed.weight.device:
            graph = graph.to(self.embed.weight.device)
        return self.ln(self.gnn(self.embed(graph.types) + self.shape_enc(graph), graph, task))

    def forward(
        self, graph: Graph, *, task: Tensor | None = None, head: bool = True
    ) -> dict[str, Tensor]:
        """Predict every parameter of the graph's model by its name, and its sink's.

        The tensors are differentiable. GHN-3 makes as many classes as it was trained with and crops
        or repeats them for other numbers.

        Args:
            graph: of the model.
            task: the task's embedding.
            head: False leaves the head out.

        Raises:
            WrongCall: for a task embedding that does not fit, and a tensor beyond the decoder's
                reach.
        """
        parameters: dict[str, Tensor] = {}
        for group, blocks, scale in self.decode_blocks(graph, task, head):
            tensors = tile_blocks(blocks, *_get_plane(group), scale)
            for name, tensor in zip(group.names, tensors):
                tensor = tensor[:, 0] if is_vector(group) else tensor
                tensor = sort_rows(tensor) if self._is_interleaved(name, graph) else tensor
                tensor = fix_std(tensor) if self._has_fixed_std(group) else tensor
                writer_scale = self._get_writer_scale(name, graph)
                tensor = tensor if writer_scale == 1 else tensor * writer_scale
                parameters[name] = tensor.mT if name in graph.transposed else tensor
        if self.spec.inputs == "images":
            self._add_class_token(parameters, graph.spec)
        if self.tables is not None:
            tables = self.tables.narrow(graph.spec.width).items()
            parameters |= {name: table.to(self.embed.weight.device) for name, table in tables}
        return {name: parameters[name] for name in _list_shapes(graph) if name in parameters}

    def _add_class_token(self, parameters: dict[str, Tensor], spec: Spec) -> None:
        row_d = self._get_class_position(spec).to(parameters["pos_embed"])
        parameters["pos_embed"] = torch.cat((row_d[None], parameters["pos_embed"]))[None]
        parameters["cls_token"] = torch.zeros_like(row_d)[None, None]

    @torch.no_grad()
    def predict(self, graph: Graph, *, task: Tensor | None = None, head: bool = True) -> StateDict:
        """Return the result of `forward` without gradients, ready to be the parameters of a model.

        No two tensors share memory.

        Args:
            graph: of the model.
            task: the task's embedding.
            head: False leaves the head out.
        """
        classifier = () if head else (graph.class_weight, graph.class_bias)
        expected = {
            name: shape for name, shape in _list_shapes(graph).items() if name not in classifier
        }
        device = self.embed.weight.device
        if device.type == "cpu":
            parameters = allocate_tensors(expected, torch.float32)
        else:
            parameters = {
                name: torch.empty(shape, device=device) for name, shape in expected.items()
            }
        if self.spec.inputs == "images":
            parameters["cls_token"].zero_()
            parameters["pos_embed"][0, 0] = self._get_class_position(graph.spec)
        if self.tables is not None:
            for name, table in self.tables.narrow(graph.spec.width).items():
                parameters[name].copy_(table)
        for group, blocks, scale in self.decode_blocks(graph, task, head):
            for name, block in zip(group.names, blocks):
                target = parameters[name][0, 1:] if group.role == "positions" else parameters[name]
                target = target.mT if name in graph.transposed else target
                fill(target[:, None] if is_vector(group) else target, block, scale)
                if self._is_interleaved(name, graph):
                    target.copy_(sort_rows(target))
                if self._has_fixed_std(group):
                    target.copy_(fix_std(target))
                if (writer_scale := self._get_writer_scale(name, graph)) != 1:
                    target.mul_(writer_scale)
        return parameters

    def _get_class_position(self, spec: Spec) -> Tensor:
        inherited = self.inheritance.find_class_position(spec) if self.inheritance else None
        return compute_class_position(spec.width) if inherited is None else inherited

    def _get_writer_scale(self, name: str, graph: Graph) -> float:
        if self.spec.writers != "by_depth":
            return 1.0
        return compute_writer_scale(name, graph.spec.layers, graph.writers)

    def _is_interleaved(self, name: str, graph: Graph) -> bool:
        return is_interleaved(name, self.spec.form, graph.joint)

    def _has_fixed_std(self, group: TensorGroup) -> bool:
        """Return whether the tensors of a group are scaled to one standard deviation."""
        is_fixed = self.spec.inputs == "texts" and self.spec.scale == "std"
        return is_fixed and group.role in ("matrix", "class weight")

    def decode_blocks(
        self, graph: Graph, task: Tensor | None = None, head: bool = True
    ) -> Iterator[tuple[TensorGroup, Blocks, float]]:
        """Yield each group of tensors, the blocks that are tiled, and their factor before tiling.

        Blocks are (L, o, 1) for vectors, (1, patches, i) for positions, else (L, o, i, ...).
        Decoders always compute in float32.

        Args:
            graph: of the model.
            task: the task's embedding.
            head: False leaves the head out.
        """
        positions, vectors = (POSITIONS, VECTORS) if "scales" in CHANGES[self.spec.form] else (1, 1)
        nodes = self.encode(graph, task)
        with torch.autocast(nodes.device.type, enabled=False):
            find_origin = self.inheritance.find_origin if self.inheritance else None
            groups = group_tensors(graph, head, find_origin)
            if self.tables is not None:
                groups = [group for group in groups if group.role != "embedding"]
            for group, blocks in self._decode(nodes.float(), groups, graph.spec):
                if isinstance(blocks, Tensor) and is_vector(group):
                    squashed = squash_vectors(blocks * vectors, group.role)
                    if self.inheritance is not None:
                        squashed = self.inheritance.add_biases(squashed, group, graph.spec)
                    yield group, squashed[:, :, None], 1
                elif isinstance(blocks, Tensor) and group.role == "positions":
                    yield group, blocks[:, 0].flatten(2).mT, positions
                elif group.role == "embedding":
                    yield group, blocks, positions
                else:
                    is_fixed = self._has_fixed_std(group)
                    yield group, blocks, 1 if is_fixed else compute_scale(group.shape)

    def _decode(
        self, nodes: Tensor, groups: list[TensorGroup], spec: Spec
    ) -> Iterator[tuple[TensorGroup, Blocks]]:
        """Yield the decoders' outputs, group by group."""
        if isinstance(self.decoder, GradualDecoder):
            assert self.inheritance is not None
            alpha = torch.sigmoid(self.fusion_weight)
            projected = self.decoderpq.project(nodes, groups, self.inheritance, spec)
            for (group, blocks), inherited in zip(self.decoder(nodes, groups), projected):
                yield group, mix_blocks(blocks, inherited, alpha)
            return
        if isinstance(self.decoder, LowRankDecoder):
            yield from self.decoder(nodes, groups)
            return
        yield from self.decoder_1d(
            nodes, [group for group in groups if is_vector(group)], self.bias_class
        )
        yield from self.decoder(nodes, [group for group in groups if not is_vector(group)])


def build_graph_for(
    hypernet: HypernetSpec, spec: Spec, sink: tuple[int, int] | None = None
) -> Graph:
    """Build the graph of a model, of images or of texts, as a hypernetwork reads it.

    Args:
        hypernet: the spec of the hypernetwork.
        spec: of the model.
        sink: as for `build_graph`.

    Raises:
        WrongCall: for a model that the hypernetwork does not predict.
    """
    if hypernet.inputs == "images":
        return build_graph(spec, sink=sink, cutoff=hypernet.cutoff)
    from lgzoo_tal.modules.text_graph import build_text_graph

    return build_text_graph(
        spec, sink=sink, cutoff=hypernet.cutoff, transposed=hypernet.scale == "fan_in"
    )


def build_frozen_hypernet(spec: HypernetSpec, state: StateDict) -> Hypernet:
    """Build a frozen hypernetwork that shares the memory of these tensors.

    Raises `BadFile` as `check_shapes` does.
    """
    check_shapes(spec, read_shapes(state))
    hypernet = Hypernet(spec, seed=None)
    hypernet.load_state_dict(
        {name: state[name].float() for name in hypernet.state_dict()}, strict=True, assign=True
    )
    return hypernet.requires_grad_(False).eval()


def check_shapes(spec: HypernetSpec, shapes: Mapping[str, tuple[int, ...]]) -> None:
    """Check that all tensors of the hypernetwork are there with their shapes, and no others.

    Raises `BadFile`.
    """
    expected = {
        name: tuple(tensor.shape) for name, tensor in Hypernet(spec, seed=None).state_dict().items()
    }
    for name, shape in expected.items():
        if shapes.get(name) != shape:
            actual = f"got {shapes[name]}" if name in shapes else "it is missing"
            raise BadFile(
                f"expected the hypernetwork's tensor {name} to have shape {shape}, {actual}"
            )
    extra = next((name for name in shapes if name not in expected), None)
    if extra is not None:
        raise BadFile(f"got a tensor {extra!r:.80}, which this hypernetwork does not have")


def predict_tensors(
    hypernet: Hypernet, spec: Spec, embedding: Tensor | None, run: Run, *, head: bool = True
) -> StateDict:
    """Return the tensors of one model, on the CPU.

    Args:
        hypernet: the hypernetwork, which is moved to the run's device.
        spec: of the model.
        embedding: the task's embedding, for a hypernetwork with a task layer.
        run: how to compute.
        head: False leaves the head out.
    """
    device = open_device(run)
    hypernet.to(device).eval()
    task = None if embedding is None else embedding.to(device)
    return {
        name: tensor.cpu()
        for name, tensor in hypernet.predict(
            build_graph_for(hypernet.spec, spec), task=task, head=head
        ).items()
    }


@lru_cache(maxsize=64)
def compute_class_position(width: int) -> Tensor:
    """Return (d,) the row of the position embedding for the class token.

    Fixed normal numbers with a standard deviation of 0.02, a function of the width alone; a narrow
    model's are the first of a wide one's. They are not zeros although the token is: the gradient of
    the first norm at a row of zeros is a thousand times larger than anywhere else. By Box and
    Muller, each from two uniform numbers, so that it depends on its own index only. Cached: do not
    write into it.
    """
    first_d, second_d = (
        draw_uniform(derive_seed(0, "class position"), range(width), 2).astype(np.float64).T
    )
    normal_d = np.sqrt(-2 * np.log1p(-first_d)) * np.cos(2 * np.pi * second_d)
    with torch.inference_mode(False):
        return torch.from_numpy(np.float32(CLASS_POSITION_STD) * normal_d.astype(np.float32))


def _list_shapes(graph: Graph) -> dict[str, tuple[int, ...]]:
    """Return the shapes of all predicted parameters in the model's order, the sink's last."""
    known = get_shapes(graph.spec)
    added = {name: graph.shapes[node] for name, node in graph.sources.items() if name not in known}
    return known | {name: shape for name, shape in added.items() if shape is not None}


def _get_plane(group: TensorGroup) -> tuple[int, int]:
    """Return the rows and columns that blocks are tiled over."""
    if group.role == "positions":
        return group.shape[2] * group.shape[3], group.shape[1]
    return group.shape[0], 1 if is_vector(group) else group.shape[1]


# Initialisation, each tensor a function of the seed and its name: the released code's, and that of
# `centred`.


# The last layers of GHN-3's decoders start five times smaller and with zero biases. LoGAH's decoder
# has no such rule.
DAMPED = ("decoder.conv.2", "decoder.class_layer_predictor.1", "decoder_1d.fc.2")
DAMPING = 5

# In the form `centred`: factors of some of the encoder's embeddings, and the initial standard
# deviation of a decoder's outputs.
FACTORS = {"input_dist_embed.weight": 4.0, "embed_channel.weight": 0.1, "embed_spatial.weight": 0.1}
SPREAD = 0.25
GAIN = math.sqrt(1.5)
# Factors with the start `projections`, so that little is added to the copied model.
DEVIATIONS = {"decoder.l2_step3": 0.5, "decoderpq.l2": 0.15}
TANH = 0.65  # the root mean square of a tanh of numbers with variance 1.5 x 0.65^2


@torch.no_grad()
def initialise(hypernet: nn.Module, spec: HypernetSpec, seed: int) -> None:
    """Fill every parameter.

    Linear layers and their biases are uniform within 1/sqrt(fan in), embeddings normal with a
    standard deviation of 1/sqrt(their width), norms 1 and 0. A task layer starts as the identity,
    gamma 0 and beta 0. In the paper's form, which cannot be the identity, and in the form `centred`
    it starts as any other linear layer: in the latter, tasks must differ from the first step on,
    since otherwise their classifiers are one tensor and keep each other from learning.

    Args:
        hypernet: whose parameters are filled.
        spec: of the hypernetwork.
        seed: each tensor is a function of it and of the tensor's name.
    """
    identities = {
        f"{name}.{child}"
        for name, module in hypernet.named_modules()
        if isinstance(module, TaskLayer) and module.residual and "tasks" not in CHANGES[spec.form]
        for child in ("fc_gamma", "fc_beta")
    }
    for name, module in hypernet.named_modules():
        if isinstance(module, nn.Linear):
            _initialise_linear(module, name, seed, identity=name in identities)
        elif isinstance(module, nn.Embedding):
            module.weight.normal_(
                std=module.embedding_dim**-0.5, generator=_build_generator(seed, f"{name}.weight")
            )
        elif isinstance(module, nn.LayerNorm):
            module.reset_parameters()
        elif isinstance(module, Hypernet) and spec.decoder == "projected":
            module.fusion_weight.fill_(FUSION_START)
    if "start" in CHANGES[spec.form]:
        _initialise_centred(hypernet, spec, seed)


def _initialise_centred(hypernet: nn.Module, spec: HypernetSpec, seed: int) -> None:
    """Change the initial values to those of the form `centred`.

    Decoders have no biases and preserve the nodes' differences, see forms.py.
    """
    for name, parameter in hypernet.named_parameters():
        if "decoder" in name or name.startswith("bias_class"):
            layer, kind = name.rsplit(".", 1)
            if kind == "bias":
                parameter.zero_()
            else:
                parameter.normal_(
                    std=_compute_std(layer, spec, parameter.shape[1]),
                    generator=_build_generator(seed, name),
                )
        else:
            parameter.mul_(
                next((factor for end, factor in FACTORS.items() if name.endswith(end)), 1.0)
            )


def _compute_std(layer: str, spec: HypernetSpec, inputs: int) -> float:
    """Return the standard deviation of the weights of a decoder's layer."""
    if layer in ("decoder.l2", "decoderpq.l2", "decoder.l2_step3"):
        assert spec.rank is not None  # the factors are multiplied: a sum of r products
        std = math.sqrt(SPREAD / math.sqrt(spec.rank) / inputs) / TANH
        std = std if layer.endswith("step3") else std / GAIN
        return std * DEVIATIONS[layer] if spec.start == "projections" else std
    if layer == "decoder.l2_step1":
        return 1 / math.sqrt(inputs)  # its inputs are no tanh and have the variance that tanh needs
    if layer in ("decoder.class_layer_predictor.1", "bias_class.1"):
        return 1 / math.sqrt(inputs)  # its inputs have that spread already
    return (SPREAD / TANH if layer in DAMPED else GAIN) / math.sqrt(inputs)


def _initialise_linear(layer: nn.Linear, name: str, seed: int, identity: bool) -> None:
    bound = 1 / math.sqrt(layer.in_features)
    damped = name in DAMPED
    for kind, tensor in layer.named_parameters():
        if identity or (damped and kind == "bias"):
            tensor.zero_()
        else:
            reach = bound / DAMPING if damped else bound
            tensor.uniform_(-reach, reach, generator=_build_generator(seed, f"{name}.{kind}"))


def _build_generator(seed: int, name: str) -> torch.Generator:
    return torch.Generator().manual_seed(derive_seed(seed, "hypernet", name))
