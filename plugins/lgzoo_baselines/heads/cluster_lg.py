"""Cluster-Learngene: heads with the same attention distance form a cluster; its centroid is kept.

Wang, Yang, Feng, Wang and Geng, Cluster-Learngene: Inheriting Adaptive Clusters for Vision
Transformers, NeurIPS
2024. In every block

    1  distance of a head    mean over images and patches q of
                             sum over patches k of attention(q, k) |q - k|        in pixels
    2  clusters              DBSCAN with eps, at least one member: heads, in the order of their
                             distances, with gaps of at most eps
    3  centroid              the head whose distance is nearest to its cluster's mean; larger
                             clusters come first
    4  descendant            head i of H' is the centroid i mod c of the c ones
                             ("priority weight-sharing")

so that the remainder of H' / c goes to the large clusters. A descendant has the first blocks and
any number of heads; norms and stem are the ancestry model's. Layers may share an MLP. Clusters are
in `clusters.py`, the tensors in `modules/cluster_lg.py`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import product
from types import MappingProxyType
from typing import TYPE_CHECKING, Annotated, Literal

from learngene_zoo.plugin import (
    FLAT,
    BadFile,
    Bounds,
    Expander,
    Extractor,
    Learngene,
    LearngeneConfig,
    Member,
    Method,
    Work,
    WrongCall,
    compute_once,
    name_option,
    parse_details,
    require_pictures,
)
from lgzoo_baselines.blocks.block_choice import build_descendant
from lgzoo_baselines.heads.clusters import (
    EPS_IMAGE_SIZE,
    RELEASED_MLPS,
    Clusters,
    HeadClustering,
    cluster_heads,
    get_released_clusters,
)
from lgzoo_baselines.learnt.auxiliary import load_tensors

if TYPE_CHECKING:
    from learngene_zoo.plugin import Ancestry, Descendant, Run, Spec, Target, Task


@dataclass(frozen=True, kw_only=True)
class ClusterLgDetails:
    """The method's own record in a learngene; before the extraction the clusters are unknown."""

    clusters: tuple[Clusters, ...] = ()  # of every block
    mlps: tuple[int, ...] = ()  # for every layer the one whose MLP it has
    # Whether all heads are in the clusters; of the published ones only centroids are known.
    whole: bool = True


@dataclass(frozen=True, kw_only=True)
class ClusterLgExtractor(Extractor):
    """Cluster the heads of every block, and keep the centroids."""

    released: Annotated[
        bool,
        "use the published centroids and MLPs of DeiT-Tiny, -Small or -Base instead of measuring",
    ] = False
    each: HeadClustering = field(default=HeadClustering(), metadata=FLAT)
    mlps: Annotated[
        tuple[int, ...],
        "for every layer, the layer whose MLP it uses, counted from 0 (default: its own)",
        Bounds(least=0),
    ] = ()

    def needs_tasks(self) -> bool:
        """Return False for published clusters."""
        return not self.released

    def outline(self, ancestries: Sequence[Spec]) -> LearngeneConfig:
        """Return the config with the ancestry model's shape.

        Raises `WrongCall` for a model whose heads cannot be shared, and for MLPs of later layers.
        """
        spec = ancestries[0]
        check_heads(spec, "cluster_lg")
        mlps = self.mlps or tuple(range(spec.layers))
        check_mlps(mlps, spec)
        details = ClusterLgDetails(mlps=mlps)
        if self.released:
            details = ClusterLgDetails(
                clusters=get_released_clusters(spec),
                mlps=self.mlps or RELEASED_MLPS[spec.width],
                whole=False,
            )
        return LearngeneConfig(spec=spec).with_details(details)

    def work(self, ancestries: Sequence[Spec], images: Sequence[int]) -> list[Work]:
        """Return the cost of one pass over the images."""
        if self.released:
            return []
        return [Work(images=self.each.images, trained=0, frozen=ancestries[0].layers)]

    def __call__(
        self, ancestries: Sequence[Ancestry], tasks: Sequence[Task], run: Run
    ) -> Learngene:
        """Return the centroids, steps 1 to 3; the distances are a part of the run."""
        from lgzoo_baselines.modules.cluster_lg import measure_distances, select_centroids

        ancestry, spec = ancestries[0], ancestries[0].spec
        config = self.outline([spec])
        details = parse_details(config, ClusterLgDetails)
        if not self.released:
            part, inputs = run.part("distances"), [ancestry, tasks[0]]
            metrics = compute_once(
                part, "cluster_lg.distances", measure_distances, self.each, inputs
            ).record
            eps = self.each.eps * require_pictures(spec).image_size / EPS_IMAGE_SIZE
            clusters = tuple(cluster_heads(block, eps) for block in metrics["distances"])
            details = replace(details, clusters=clusters)
            config = replace(config, metrics=metrics).with_details(details)
        state = select_centroids(ancestry.state, spec, details.clusters, details.mlps)
        return Learngene(config=config, state=state)


def check_mlps(mlps: Sequence[int], spec: Spec) -> None:
    """Raise `WrongCall` unless every layer has its MLP, or that of an earlier such layer."""
    if len(mlps) != spec.layers or any(
        source > layer or mlps[source] != source for layer, source in enumerate(mlps)
    ):
        raise WrongCall(
            f"mlps is {','.join(map(str, mlps))}; expected for each of {spec.layers} layers "
            "itself, or an earlier layer that has its own, as 0,1,1,3"
        )


def check_heads(spec: Spec, method: str, further: Mapping[str, str] = MappingProxyType({})) -> None:
    """Raise `WrongCall` for a model in which heads are more than rows and columns of matrices.

    Args:
        spec: the shape of the ancestry model.
        method: its name, for the message.
        further: properties of a spec that the method does not take either, with their description.
    """
    refused = {
        "scale_norms": "norms within attention",
        "pools_by_attention": "pooling by attention",
        **further,
    }
    features = [words for name, words in refused.items() if getattr(spec, name, False)]
    if not spec.plain or features:
        feature = (features or ["blocks of several sizes"])[0]
        raise WrongCall(f"{method} does not take models with {feature}; choose another")


@dataclass(frozen=True, kw_only=True)
class ClusterLgExpander(Expander):
    """Give every head the weights of a centroid."""

    axes = frozenset({"layers", "heads", "classes", "image_size"})

    projection: Annotated[
        Literal["clusters", "places"] | None,
        "output projection of a head: the sum over all heads of its cluster, or "
        "that of the head at the same position, as in the authors' code "
        "(default: clusters if they are known)",
    ] = None

    def family(self, config: LearngeneConfig) -> list[Member]:
        """Return every depth and number of heads up to the ancestry model's.

        More heads can be built by name.
        """
        spec = config.spec
        sizes = product(range(1, spec.layers + 1), range(1, spec.heads + 1))
        return [
            Member(spec=resize_heads(spec.with_(layers=layers), heads)) for layers, heads in sizes
        ]

    def __call__(self, learngene: Learngene, target: Target, run: Run) -> Descendant:
        """Build a descendant, step 4, with resized positions and a new head.

        Raises `WrongCall` for more layers than there are.
        """
        from lgzoo_baselines.modules.cluster_lg import list_shapes, share_centroids

        config, details = learngene.config, parse_details(learngene.config, ClusterLgDetails)
        source = config.spec
        if not (len(details.clusters) == len(details.mlps) == source.layers):
            raise BadFile(
                f"the cluster_lg learngene has clusters of {len(details.clusters)} and MLPs of "
                f"{len(details.mlps)} layers; expected {source.layers}"
            )
        heads = target.heads or source.heads
        spec = resize_heads(replace(target, heads=None).apply(source), heads)
        if spec.layers > source.layers:
            raise WrongCall(
                f"layers is {spec.layers}; the ancestry model has {source.layers}, and the first "
                "of them are taken"
            )
        projection = self.projection or ("clusters" if details.whole else "places")
        if projection == "clusters" and not details.whole:
            raise WrongCall(
                "of the published centroids the clusters are not known; use "
                f"{name_option('projection', 'places')}"
            )
        shallow = source.with_(layers=spec.layers)
        clusters, mlps = details.clusters[: spec.layers], details.mlps[: spec.layers]
        state = load_tensors(learngene, list_shapes(shallow, clusters, mlps))
        parts = share_centroids(state, shallow, clusters, mlps, heads, projection)
        centroids = [[cluster[0] for cluster in block] for block in clusters]
        return build_descendant(learngene, spec, parts, run, {"heads": centroids})


def resize_heads(spec: Spec, heads: int) -> Spec:
    """Return the shape with so many heads, each as wide as before, and the same stream.

    Raises `WrongCall` for more heads than the stream has channels.
    """
    if heads > spec.width:
        raise WrongCall(
            f"heads is {heads}; the stream has {spec.width} channels, and heads beyond them are "
            "refused"
        )
    width = heads * spec.head_width
    return spec.with_(heads=heads, attention_width=None if width == spec.width else width)


CLUSTER_LG = Method(
    name="cluster_lg",
    title=(
        "one head for each cluster of heads with similar attention distance; "
        "descendants with any number of heads repeat them"
    ),
    paper=(
        "Wang, Yang, Feng, Wang, Geng. Cluster-Learngene: Inheriting Adaptive Clusters for Vision "
        "Transformers. NeurIPS 2024"
    ),
    expander=ClusterLgExpander(),
    presets={
        "mini": ClusterLgExtractor(),
        "paper": ClusterLgExtractor(),
        "smoke": ClusterLgExtractor(each=HeadClustering(images=16)),
    },
    tasks="one",
    uses_labels=False,
    details=ClusterLgDetails,
)
