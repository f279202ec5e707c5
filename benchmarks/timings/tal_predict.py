"""Time GHN-3 and LoGAH from a configuration to an initialised ViT of 12 layers.

CPU seconds of the process, so that other programs disturb them less (with `--device cuda` wall
seconds of a GPU): the median over the repeats. Ours is the graph, the prediction and a timm model
that holds it, with a loaded hypernetwork. It is compared with the same weights decoded like in the
released code, everything and then cropped, with the edge bias of every pair, copied into a model as
timm builds it; both must give the same tensors. The released code's seconds were measured before,
on another machine with two cores, also with one thread.

Memory is the peak of the process while ours ran, above its memory after all imports and a tiny
prediction (which imports more), in units of the model and the hypernetwork together. One thread,
about five minutes, 6 GB of memory.
"""

from __future__ import annotations

import itertools
import resource
import time
from argparse import ArgumentParser, Namespace
from collections.abc import Iterator
from typing import Any

import timm
import torch
from torch import Tensor
from torch.nn import functional

from learngene_zoo.families.spec import Spec
from learngene_zoo.families.tensors import build_empty
from learngene_zoo.families.vit.names import ARCHITECTURES, list_arguments
from learngene_zoo.families.vit.spec import ViTSpec
from learngene_zoo.method.installed import METHODS
from lgzoo_tal.hypernet_spec import HypernetSpec, LowRank, count_decoded_channels
from lgzoo_tal.modules.conv_decoder import MatrixDecoder
from lgzoo_tal.modules.graph import Graph, build_graph
from lgzoo_tal.modules.hypernet import Hypernet, compute_class_position
from lgzoo_tal.modules.low_rank_decoder import LowRankDecoder
from lgzoo_tal.modules.tensors import TensorGroup, get_kernel, is_vector
from machine import read
from timings.case import (
    Case,
    Row,
    measure_medians,
    run_part,
    synchronise_and_read_clock,
)

SIZES = ("tiny", "small", "base")
RELEASED = {
    "ghn3-t": (0.19, 0.43, 1.29),
    "ghn3-xl": (6.50, 6.73, 7.84),
    "logah-small": (3.16, 3.46, 4.97),
}
TARGET_TIMES = {
    "ghn3-t": (4, 5, 8),
    "ghn3-xl": (8, 5, 5),
    "logah-small": (20, 20, 10),
}  # times faster than the released code
TARGET_MEMORY = 1.5
HEADER = (
    "                     ours    plain  released*      x plain   x released* (target)   memory"
    f" (target {TARGET_MEMORY})   (* another machine)"
)


def add_options(parser: ArgumentParser) -> None:
    """Add the options of this case."""
    parser.add_argument("--hypernets", nargs="+", choices=RELEASED, default=[*RELEASED])
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--device", default="cpu")


def measure(args: Namespace) -> Iterator[tuple[Row, str]]:
    """Measure each hypernetwork with each size in a separate process."""
    options = ["--device", args.device, "--repeats", str(args.repeats)]
    header = f"{HEADER}\n"
    for hypernet in args.hypernets:
        for number, size in enumerate(SIZES):
            row = run_part("tal_predict", [hypernet, size], options)
            released, target = RELEASED[hypernet][number], TARGET_TIMES[hypernet][number]
            row |= {"released_elsewhere_s": released, "wanted_times": target}
            yield (
                row,
                f"{header}{hypernet:12} {size:6} {row['ours_s']:6.3f} {row['plain_s']:8.3f}"
                f" {released:8.2f} {row['plain_s'] / row['ours_s']:14.1f}"
                f" {released / row['ours_s']:12.1f} ({target}){row['memory']:20.2f}      built in"
                f" {row['built_s']:.2f} s",
            )
            header = ""


def measure_pair(args: Namespace) -> Row:
    """Return seconds and memory of both ways for one hypernetwork and one size."""
    torch.set_num_threads(1)
    name, size = args.part
    spec, device = ARCHITECTURES[f"vit_{size}_patch16_224"], args.device
    clock = time.process_time if device == "cpu" else synchronise_and_read_clock
    toy = Hypernet(LowRank(hidden=8, widest=64, chunk=2048).build_spec()).to(device)
    predict_model(toy, ViTSpec(layers=1, width=16, heads=1))
    peak_before, started = measure_peak(), clock()
    hypernet = Hypernet(get_variant(name), seed=0).requires_grad_(False).eval().to(device)
    build_seconds = clock() - started
    ours = measure_medians(
        {"ours_s": lambda: predict_model(hypernet, spec)}, args.repeats, rounds=1, clock=clock
    )
    peak_growth = measure_peak() - peak_before
    model = predict_model(hypernet, spec)
    model_bytes = sum(
        4 * parameter.numel() for module in (hypernet, model) for parameter in module.parameters()
    )
    plain = measure_medians(
        {"plain_s": lambda: predict_plainly(hypernet, spec)},
        repeats=1 if name == "ghn3-xl" else 3,
        rounds=1,
        warm_ups=0,
        clock=clock,
    )
    for key, tensor in predict_plainly(hypernet, spec).state_dict().items():
        torch.testing.assert_close(model.state_dict()[key], tensor, rtol=1e-4, atol=1e-5, msg=key)
    memory = {"peak_bytes": peak_growth, "memory": peak_growth / model_bytes}
    return {"hypernet": name, "size": size, **ours, **plain, "built_s": build_seconds, **memory}


def get_variant(name: str) -> HypernetSpec:
    """Return a published hypernetwork, by method and size."""
    method, _, size = name.partition("-")
    preset: Any = METHODS.load(method).presets[{"xl": "paper", "small": "paper"}.get(size, size)]
    spec: HypernetSpec = preset.hypernet.build_spec()
    return spec


def predict_model(hypernet: Hypernet, spec: ViTSpec) -> torch.nn.Module:
    """Return the model with the predicted tensors, which are not copied."""
    model = build_empty(spec)
    model.load_state_dict(hypernet.predict(build_graph(spec)), strict=True, assign=True)
    return model.eval()


def measure_peak() -> int:
    """Return the most memory that this process ever held, in bytes."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


@torch.no_grad()
def predict_plainly(hypernet: Hypernet, spec: ViTSpec) -> torch.nn.Module:
    """Return the model as the released code makes it: build, encode every pair, decode everything,
    tile, normalise, copy.
    """
    model = timm.create_model("vit_base_patch16_224", **list_arguments(spec)).to(
        hypernet.embed.weight.device
    )
    state, everything = model.state_dict(), PlainHypernet(hypernet)
    for group, blocks, scale in everything.decode_blocks(build_graph(spec)):
        for name, block in zip(group.names, blocks):
            target = state[name][0, 1:] if group.role == "positions" else state[name]
            if is_vector(group):
                block = block[:, 0]
            for axis in range(min(2, target.dim())):
                times = [1] * block.dim()
                times[axis] = -(-target.shape[axis] // block.shape[axis])
                block = block.repeat(times).narrow(axis, 0, target.shape[axis])
            target.copy_(block * scale)
    state["cls_token"].zero_()
    state["pos_embed"][0, 0] = compute_class_position(spec.width)
    return model


class PlainHypernet(Hypernet):
    """The same hypernetwork, with shared modules, that decodes everything."""

    def __init__(self, hypernet: Hypernet) -> None:
        torch.nn.Module.__init__(self)
        self.__dict__.update(hypernet.__dict__)

    def encode(self, graph: Graph, task: Tensor | None = None) -> Tensor:
        """Encode with the edge bias of every pair of nodes."""
        graph = graph.to(self.embed.weight.device)
        first = self.gnn[0]
        nodes = first.embed_places(self.embed(graph.types) + self.shape_enc(graph), graph)
        paths = graph.distances + 2
        embed = first.attn.edge_embed["embed"]
        bias = first.attn.proj_e(torch.cat((embed(paths), embed(paths.T)), dim=2)).permute(2, 0, 1)
        for layer in self.gnn:
            nodes = layer(nodes, bias, task)
        return self.ln(nodes)

    def _decode(
        self, nodes: Tensor, groups: list[TensorGroup], spec: Spec
    ) -> Iterator[tuple[TensorGroup, Tensor]]:
        """Decode the groups in full."""
        if isinstance(self.decoder, LowRankDecoder):
            yield from ((group, _decode_low_rank(self.decoder, nodes, group)) for group in groups)
            return
        yield from self.decoder_1d(
            nodes, [group for group in groups if is_vector(group)], self.bias_class
        )
        yield from (
            (g, _decode_conv(self.decoder, nodes[list(g.nodes)], g))
            for g in groups
            if not is_vector(g)
        )


def _decode_conv(decoder: MatrixDecoder, nodes: Tensor, group: TensorGroup) -> Tensor:
    """Decode all positions of all images, then all channels of the selected positions."""
    side, wide, (rows, columns) = decoder.side, decoder.widest, get_kernel(group.shape)
    images = functional.relu(decoder.fc(nodes)).view(len(nodes), -1, side, side)
    low, left = side // 2 - rows // 2, side // 2 - columns // 2
    centre = images[:, :, low : low + rows, left : left + columns].permute(0, 2, 3, 1)
    decoded = (
        decoder.conv(centre).view(len(nodes), rows, columns, wide, wide).permute(0, 3, 4, 1, 2)
    )
    if group.role == "class weight":
        decoded = decoder.class_layer_predictor(decoded.transpose(1, 4)).transpose(1, 4)
    block = decoded[:, : group.shape[0], : group.shape[1]]
    return block[..., 0, 0] if (rows, columns) == (1, 1) else block


def _decode_low_rank(decoder: LowRankDecoder, nodes: Tensor, group: TensorGroup) -> Tensor:
    """Decode all 2 r rows of Y for every node."""
    r, c, wide = decoder.rank, decoder.chunk, decoder.widest
    group_nodes = nodes[list(group.nodes)]
    y = decoder.l2(functional.relu(decoder.mlp.fc(group_nodes)).view(-1, 2 * r, r))
    u, v = y[:, :r].reshape(-1, c, r), y[:, r:].reshape(-1, c, r)
    if is_vector(group):
        num_channels = count_decoded_channels(group.shape[0], wide)
        weight_and_bias = (u[:, : 2 * num_channels] @ v[:, :1].mT).view(-1, 2, num_channels)
        return weight_and_bias[:, 0 if group.role == "norm weight" else 1, : group.shape[0]]
    (o, i), (p, q) = group.shape[:2], get_kernel(group.shape)
    o, i = (o, i) if group.role == "positions" else (min(o, wide), min(i, wide))
    block = (u[:, : o * p] @ v[:, : i * q].mT).view(-1, o, p, i, q).transpose(2, 3)
    return block[..., 0, 0] if (p, q) == (1, 1) else block


def summarise(rows: list[Row], args: Namespace) -> Row:
    """Return the content of the results file, with the earlier rows of other hypernetworks."""
    before = read(f"tal_predict{name_suffix(args)}").get("rows", [])
    row_of_pair = {(row["hypernet"], row["size"]): row for row in [*before, *rows]}
    pairs = itertools.product(RELEASED, SIZES)
    return {"rows": [row_of_pair[pair] for pair in pairs if pair in row_of_pair], "threads": 1}


def name_suffix(args: Namespace) -> str:
    """Return the end of the name of the results file."""
    return "" if args.device == "cpu" else f"_{args.device}"


CASE = Case(
    measure=measure,
    summarise=summarise,
    add_options=add_options,
    measure_part=measure_pair,
    name_suffix=name_suffix,
)
