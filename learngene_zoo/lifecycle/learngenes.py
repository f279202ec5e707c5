"""`plan` and `plot`: list the sizes of a learngene, and draw it."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from pkgutil import resolve_name
from typing import Any, get_args

from learngene_zoo.artifacts import shelf
from learngene_zoo.artifacts.arguments import refuse_unknown_arguments
from learngene_zoo.artifacts.learngene import Learngene
from learngene_zoo.artifacts.records import SOURCES, LearngeneConfig, parse_references
from learngene_zoo.atomic import check_file, new_file
from learngene_zoo.errors import WrongCall, check_choice, find_nearest, refuse_unknown
from learngene_zoo.families.family import Convention
from learngene_zoo.families.spec import Spec
from learngene_zoo.lifecycle.expansion import adopt_purpose
from learngene_zoo.method.checks import list_members
from learngene_zoo.method.contract import Expander, Extractor, Method
from learngene_zoo.method.installed import METHODS, check_family, find_method, report_failure
from learngene_zoo.method.sizes import SIZES, Budget, Member, Target, parse_sizes
from learngene_zoo.settings import (
    check_setting_names,
    check_type,
    list_settings,
    merge_synonyms,
    with_settings,
)

OF_ALL_SIZES = ("classes", "image_size")  # every descendant has those that are named
SYNONYMS = {"ancestry": "ancestries"}
# Of `plan`, for the error about an unknown one.
ARGUMENTS = frozenset(
    {"extractor", "preset", "expander", "ancestries", "target", "budget", "pool", "convention"}
    | {"offline"}
)


def plan(
    name: str | Path | Learngene,
    *,
    extractor: Extractor | None = None,
    preset: str | None = None,
    expander: Expander | None = None,
    ancestries: str | Sequence[str] = (),
    target: Target | None = None,
    budget: Budget | None = None,
    pool: str | None = None,
    convention: Convention = "exact",
    offline: bool = False,
    **settings: Any,
) -> list[Member]:
    """List every descendant that a method would build from these ancestries.

    For an existing learngene, list those that it builds. They are sorted by cost, smallest first.

    Args:
        name: a method, or a learngene or a reference to one.
        extractor: the settings of the extraction. None: those of the preset for these ancestry
            models (`Method.adapt_preset`).
        preset: a preset of the method; default: "mini".
        expander: settings of the expansion; default: the method's.
        ancestries: sources of ancestry models. With a learngene, these, `extractor`, `preset` and
            `pool` are refused: its extraction is done.
        target: narrows the list (layers, width, heads) or sets classes and image size.
        budget: bounds of the built model. Latency is not measured.
        pool: as for `extract`.
        convention: how FLOPs are counted for the order; those of `budget` are always "exact".
        offline: read only files that are cached.
        settings: settings of the extraction by name, where they differ from these (`top=3`), sizes
            and bounds by name (`layers=7, max_params="1M"`), and the word `ancestry` of the command
            line.

    Raises:
        WrongCall: for an unknown setting; if `target` names a size that all descendants have in
            common; if none has the sizes of `target`, or fits the budget.
    """
    check_choice("convention", convention, get_args(Convention))
    check_type("extractor", extractor, Extractor, optional=True)
    check_type("expander", expander, Expander, optional=True)
    given = {word: settings.pop(word) for word in SYNONYMS if word in settings}
    sources = merge_synonyms({"ancestries": ancestries or None, **given}, SYNONYMS)
    is_method = isinstance(name, str) and name in METHODS.references()
    method = METHODS.load(str(name)) if is_method else None
    known = {s.name for s in list_settings(extractor or method.extractor)} if method else set()
    sizes = {word: settings.pop(word) for word in [*settings] if word in SIZES - known}
    config: LearngeneConfig | None = None
    if method is None:
        arguments = {"extractor": extractor, "preset": preset, "pool": pool}
        named = [word for word, value in {**arguments, **sources}.items() if value is not None]
        method, config = _open_config(name, settings, named, offline)
    builder = expander or method.expander
    target, budget, builder = parse_sizes(target or Target(), budget or Budget(), builder, sizes)
    if config is None:
        listed = parse_references("ancestries", sources.get("ancestries", ()), SOURCES)
        specs = [
            spec.with_(image_size=target.image_size).with_pool(pool)
            for spec in _read_specs(method, listed, offline)
        ]
        config = _outline(method, extractor, preset, specs, settings)
    members = list_members(config, builder, adopt_purpose(target, builder, config))
    if not members:
        depths = {member.spec.layers for member in list_members(config, builder, Target())}
        raise WrongCall(f"{method.name} {_explain_empty(target, depths)}")
    if budget:
        from learngene_zoo.lifecycle.latency import require_fitting

        if budget.max_latency is not None:
            raise WrongCall(
                "plan does not measure latency; leave out max_latency, or use it with expand"
            )
        members = require_fitting(members, budget)
    return sorted(members, key=lambda member: member.cost(convention))


def _explain_empty(target: Target, depths: Collection[int]) -> str:
    """Return why no descendant has the sizes of a target; `depths` are those of all descendants."""
    if target.layers is not None and depths and target.layers not in depths:
        others = f"{min(depths)}" if len(depths) == 1 else f"{min(depths)} to {max(depths)}"
        return f"lists no size of {target.layers} layers; its sizes have {others} layers"
    sizes = {name: value for name, value in target.axes().items() if name not in OF_ALL_SIZES}
    if not sizes:
        return "lists no size with these settings; leave them out to see all sizes"
    named = " and ".join(f"{name} {value}" for name, value in sizes.items())
    return f"lists no size of {named}; leave out {', '.join(sizes)} to see all sizes"


def _read_specs(method: Method, sources: Sequence[str], offline: bool) -> list[Spec]:
    """Return the shapes of the ancestry models, which are of a family that the method serves."""
    from learngene_zoo.pretrained.ancestry import read_ancestry_spec

    specs = [read_ancestry_spec(each, offline=offline) for each in method.sources(sources)]
    for spec in specs:
        check_family(method, spec)
    return specs


def _outline(
    method: Method,
    extractor: Extractor | None,
    preset: str | None,
    specs: Sequence[Spec],
    settings: Mapping[str, Any],
) -> LearngeneConfig:
    """Return the config of the learngene that a method would extract."""
    with report_failure(method.name):
        chosen = extractor or method.adapt_preset(preset, specs)
        check_setting_names(settings, [chosen], ARGUMENTS | SIZES)
        config = with_settings(chosen, settings).outline(specs)
    return replace(config, method=method.name)


def _open_config(
    name: str | Path | Learngene, settings: Mapping[str, Any], named: Sequence[str], offline: bool
) -> tuple[Method, LearngeneConfig]:
    """Return the method and the config of a learngene.

    Raises `WrongCall` for any setting, and for arguments of an extraction, which are `named`.
    """
    for word in settings:
        if find_nearest(word, ARGUMENTS | SIZES):
            raise refuse_unknown("argument", word, ARGUMENTS | SIZES)
    methods = METHODS.references()
    is_word = isinstance(name, str) and "/" not in name and not Path(name).exists()
    if is_word and shelf.find_card(str(name)) is None and find_nearest(str(name), methods):
        raise refuse_unknown("method", str(name), methods)
    source, config = shelf.find_with_config(name, offline)
    if settings or named:
        label = "this" if isinstance(name, Learngene) else name
        raise WrongCall(
            f"{label} is a learngene, whose extraction is done; leave out "
            f"{', '.join([*named, *settings])}"
        )
    folder = source if isinstance(source, Path) else source.folder
    return find_method(config, folder or "it"), config


@refuse_unknown_arguments
def plot(
    learngene: str | Path | Learngene,
    path: str | Path,
    *,
    expander: Expander | None = None,
    force: bool = False,
) -> Path:
    """Draw a learngene, as PNG or SVG by the suffix of `path`.

    If the picture highlights one descendant, the expander's settings select it.
    """
    path = Path(path)
    check_file(path, force)
    from learngene_zoo import plotting

    plotting.check_suffix(path)
    source, config = shelf.find_with_config(learngene)
    method = find_method(config, source if isinstance(source, Path) else source.folder or "it")
    if method.plot is None:
        names = ", ".join(other.name for other in METHODS.load_all()[0] if other.plot is not None)
        raise WrongCall(
            f"the method {method.name} cannot draw its learngenes; methods that can: {names}"
        )
    gene = shelf.open_learngene(source)
    draw: Any = resolve_name(method.plot)
    with new_file(path, force) as draft, plotting.style():
        with report_failure(method.name):
            figure = draw(gene, expander or method.expander)
        plotting.save(figure, draft)
    return path
