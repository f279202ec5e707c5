"""`plan` and `plot`: list the sizes of a learngene, and draw it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from pkgutil import resolve_name
from typing import Any

from learngene_zoo.artifacts import shelf
from learngene_zoo.artifacts.arguments import refuse_unknown_arguments
from learngene_zoo.artifacts.learngene import Learngene, read_config
from learngene_zoo.artifacts.records import SOURCES, parse_references
from learngene_zoo.atomic import check_file, new_file
from learngene_zoo.errors import WrongCall, find_nearest, refuse_unknown
from learngene_zoo.families.family import Convention
from learngene_zoo.lifecycle.expansion import adopt_purpose
from learngene_zoo.method.checks import list_members
from learngene_zoo.method.contract import Expander, Extractor
from learngene_zoo.method.installed import METHODS, check_family, find_method, report_failure
from learngene_zoo.method.sizes import Budget, Member, Target
from learngene_zoo.settings import check_setting_names, merge_synonyms, with_settings

SYNONYMS = {"ancestry": "ancestries"}
# Of `plan`, for the error about an unknown one.
ARGUMENTS = frozenset(
    {"extractor", "preset", "expander", "ancestries", "target", "budget", "pool", "convention"}
    | {"offline"}
)


def plan(
    name: str | Path,
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
        name: a method or a learngene.
        extractor: the settings of the extraction. None: those of the preset for these ancestry
            models (`Method.adapt_preset`).
        preset: a preset of the method; default: "mini".
        expander: settings of the expansion; default: the method's.
        ancestries: sources of ancestry models.
        target: narrows the list (layers, width, heads) or sets classes and image size.
        budget: bounds of the built model. Latency is not measured.
        pool: as for `extract`.
        convention: how the FLOPs for `budget` and the order are counted.
        offline: read only files that are cached.
        settings: settings of the extraction by name, where they differ from these (`top=3`), and
            the word `ancestry` of the command line.

    Raises:
        WrongCall: for an unknown setting; if `target` names a size that all descendants have in
            common, or if none fits.
    """
    from learngene_zoo.pretrained.ancestry import read_ancestry_spec

    given = {word: settings.pop(word) for word in SYNONYMS if word in settings}
    sources = merge_synonyms({"ancestries": ancestries or None, **given}, SYNONYMS)
    if str(name) in METHODS.references():
        method = METHODS.load(str(name))
        size = target.image_size if target else None
        specs = [
            read_ancestry_spec(source, offline=offline).with_(image_size=size).with_pool(pool)
            for source in method.sources(
                parse_references("ancestries", sources.get("ancestries", ()), SOURCES)
            )
        ]
        for spec in specs:
            check_family(method, spec)
        with report_failure(method.name):
            chosen = extractor or method.adapt_preset(preset, specs)
            check_setting_names(settings, chosen, ARGUMENTS)
            config = with_settings(chosen, settings).outline(specs)
        config = replace(config, method=method.name)
    else:
        for word in settings:
            if find_nearest(word, ARGUMENTS):
                raise refuse_unknown("argument", word, ARGUMENTS)
        folder = shelf.find(name, offline=offline)
        if settings:
            raise WrongCall(
                f"{name} is a learngene, whose extraction is done; leave out {', '.join(settings)}"
            )
        config = read_config(folder)
        method = find_method(config, folder)
    expander = expander or method.expander
    members = list_members(config, expander, adopt_purpose(target or Target(), expander, config))
    if budget:
        from learngene_zoo.lifecycle.latency import require_fitting

        if budget.max_latency is not None:
            raise WrongCall(
                "plan does not measure latency; leave out max_latency, or use it with expand"
            )
        members = require_fitting(members, budget)
    return sorted(members, key=lambda member: member.cost(convention))


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
        plotting.save(draw(gene, expander or method.expander), draft)
    return path
