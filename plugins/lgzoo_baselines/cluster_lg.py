"""Cluster-Learngene: heads that look equally far are one cluster; its centroid is kept, and stands for all of them in a descendant.

Wang, Yang and Geng and others, Cluster-Learngene: Inheriting Adaptive Clusters for Vision Transformers, NeurIPS 2024. In every block

    1  distance of a head    mean over images and patches q of  sum over patches k of attention(q, k) |q - k|        in pixels
    2  clusters              DBSCAN with eps, at least one member: heads, in the order of their distances, with gaps of at most eps
    3  centroid              the head whose distance is nearest to its cluster's mean; larger clusters come first
    4  descendant            head i of H' is the centroid i mod c of the c ones        "priority weight-sharing"

so that what does not divide goes to the large clusters. A descendant has the first blocks and any number of heads; norms and stem are the
ancestry model's. Layers may share an MLP. Clusters are in `head_clusters.py`, the measuring is in `head_distances.py`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
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
    details_of,
    once,
    to_json,
)
from lgzoo_baselines.auxiliary import held
from lgzoo_baselines.block_choice import completed
from lgzoo_baselines.head_clusters import AT, RELEASED_MLPS, Clusters, Looking, clustered, published

if TYPE_CHECKING:
    from learngene_zoo.plugin import Ancestry, Descendant, Run, Spec, Target, Task


@dataclass(frozen=True, kw_only=True)
class Details:
    """What a learngene's `details` hold; before the extraction the clusters are not known."""

    clusters: tuple[Clusters, ...] = ()  # of every block
    mlps: tuple[int, ...] = ()  # for every layer the one whose MLP it has
    whole: bool = True  # whether all heads are in the clusters; of the published ones only centroids are known


@dataclass(frozen=True, kw_only=True)
class Cluster(Extractor):
    """Cluster the heads of every block, and keep the centroids."""

    released: Annotated[
        bool, "the published centroids and MLPs of DeiT-Tiny, -Small and -Base; nothing is measured"
    ] = False
    each: Looking = field(default=Looking(), metadata=FLAT)
    mlps: Annotated[
        tuple[int, ...], "for every layer, counted from 0, the one whose MLP it has (default: its own)", Bounds(least=0)
    ] = ()

    def needs_tasks(self) -> bool:
        """Not for what is published."""
        return not self.released

    def outline(self, ancestries: Sequence[Spec]) -> LearngeneConfig:
        """The ancestry model's shape. Raises `WrongCall` for one whose heads cannot be shared, and for MLPs of later layers."""
        spec = ancestries[0]
        check_heads(spec, "cluster_lg")
        details = Details(mlps=self._mlps(spec))
        if self.released:
            details = Details(clusters=published(spec), mlps=self.mlps or RELEASED_MLPS[spec.width], whole=False)
        return LearngeneConfig(method="cluster_lg", spec=spec, details=to_json(details))

    def _mlps(self, spec: Spec) -> tuple[int, ...]:
        found = self.mlps or tuple(range(spec.layers))
        if len(found) != spec.layers or any(
            place > layer or found[place] != place for layer, place in enumerate(found)
        ):
            raise WrongCall(
                f"mlps is {','.join(map(str, found))}; expected for each of {spec.layers} layers itself, or an earlier layer "
                "that has its own, as 0,1,1,3"
            )
        return found

    def work(self, ancestries: Sequence[Spec], images: Sequence[int]) -> list[Work]:
        """One pass over the images."""
        return [] if self.released else [Work(images=self.each.images, trained=0, frozen=ancestries[0].layers)]

    def __call__(self, ancestries: Sequence[Ancestry], tasks: Sequence[Task], run: Run) -> Learngene:
        """Steps 1 to 3; the distances are a part of the run."""
        from lgzoo_baselines.head_distances import centroids_of, measured

        ancestry, config = ancestries[0], self.outline([ancestries[0].spec])
        details, metrics = details_of(config, Details), {}
        if not self.released:
            metrics = once(
                run.part("distances"), "cluster_lg.distances", measured, self.each, [ancestry, tasks[0]]
            ).record
            eps = self.each.eps * ancestry.spec.image_size / AT
            details = replace(details, clusters=tuple(clustered(block, eps) for block in metrics["distances"]))
        config = replace(config, details=to_json(details), metrics=metrics)
        return Learngene(
            config=config, state=centroids_of(ancestry.state, ancestry.spec, details.clusters, details.mlps)
        )


def check_heads(spec: Spec, method: str, further: Mapping[str, str] = MappingProxyType({})) -> None:
    """Raises `WrongCall` for a model in which heads are more than rows and columns of attention's matrices.

    `further` names what else the method does not take, as `what` below.
    """
    what = {"scale_norms": "norms within attention", "pools_by_attention": "pooling by attention", **further}
    found = [words for name, words in what.items() if getattr(spec, name, False)]
    if not spec.plain or found:
        raise WrongCall(
            f"{method} does not take models with {(found or ['blocks of several sizes'])[0]}; choose another"
        )


@dataclass(frozen=True, kw_only=True)
class Share(Expander):
    """Give every head the weights of a centroid."""

    axes = frozenset({"layers", "heads", "classes", "image_size"})

    projection: Annotated[
        Literal["clusters", "places"] | None,
        "what reads a head: the projections of all heads of its cluster, or as in the authors' code that of the head in its place "
        "(default: clusters, where they are known)",
    ] = None

    def family(self, config: LearngeneConfig) -> list[Member]:
        """Every depth and number of heads up to the ancestry model's. More heads can be built by name."""
        whole = config.spec
        return [
            Member(spec=with_heads(whole.with_(layers=layers), heads))
            for layers in range(1, whole.layers + 1)
            for heads in range(1, whole.heads + 1)
        ]

    def __call__(self, learngene: Learngene, target: Target, run: Run) -> Descendant:
        """Step 4. Positions resized, a new head. Raises `WrongCall` for more layers than there are."""
        from lgzoo_baselines.head_distances import expected, shared

        config, details = learngene.config, details_of(learngene.config, Details)
        whole = config.spec
        if not (len(details.clusters) == len(details.mlps) == whole.layers):
            raise BadFile(
                f"the cluster_lg learngene has clusters of {len(details.clusters)} and MLPs of {len(details.mlps)} layers; expected "
                f"{whole.layers}"
            )
        spec = with_heads(replace(target, heads=None).apply(whole), target.heads or whole.heads)
        if spec.layers > whole.layers:
            raise WrongCall(
                f"layers is {spec.layers}; the ancestry model has {whole.layers}, and the first of them are taken"
            )
        clusters, mlps = details.clusters[: spec.layers], details.mlps[: spec.layers]
        projection = self.projection or ("clusters" if details.whole else "places")
        if projection == "clusters" and not details.whole:
            raise WrongCall("of the published centroids the clusters are not known; use --projection places")
        state = held(learngene, expected(whole.with_(layers=spec.layers), clusters, mlps))
        parts = shared(state, whole.with_(layers=spec.layers), clusters, mlps, spec.heads, projection)
        return completed(config, spec, parts, run, {"heads": [[group[0] for group in block] for block in clusters]})


def with_heads(spec: Spec, heads: int) -> Spec:
    """The shape with so many heads, each as wide as before, and a stream as wide as before.

    Raises `WrongCall` for more heads than the stream has channels.
    """
    if heads > spec.width:
        raise WrongCall(f"heads is {heads}; the stream has {spec.width} channels, and heads beyond them are refused")
    width = heads * spec.head_width
    return spec.with_(heads=heads, attention_width=None if width == spec.width else width)


CLUSTER_LG = Method(
    name="cluster_lg",
    title="one head for each cluster that attends equally far; descendants of any number of heads repeat them",
    paper="Wang et al. Cluster-Learngene: Inheriting Adaptive Clusters for Vision Transformers. NeurIPS 2024",
    expander=Share(),
    presets={"mini": Cluster(), "paper": Cluster(), "smoke": Cluster(each=Looking(images=16))},
    tasks="one",
    details=Details,
)
