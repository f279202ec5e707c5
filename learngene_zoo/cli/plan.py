"""`lgzoo plan METHOD`: every size that it would build, with its cost, before anything is computed."""

from collections.abc import Iterable
from typing import Any, get_args

import click

from learngene_zoo import lifecycle
from learngene_zoo.cli.extract import ancestry_option, pool_option, preset_option
from learngene_zoo.cli.job import Row, choice_option, json_option, offline_option, print_rows
from learngene_zoo.cli.options import MethodGroup, SettingsCommand, budget_options, chosen, options_of, size_options
from learngene_zoo.errors import WrongCall
from learngene_zoo.families.family import Convention
from learngene_zoo.families.spec import Spec
from learngene_zoo.method import AXES, Budget, Member, Method, Target
from learngene_zoo.settings import settings_of

SHOWN = ("layers", "width", "heads")  # the sizes in every row


def size_rows(members: Iterable[Member], convention: Convention) -> list[Row]:
    """One row per member: its sizes, its cost, and the expander's settings that lead to it.

    Sizes beyond layers, width and heads are in the rows only where the members differ in them; `front`, what comes
    before the blocks of this width, only where any is stitched.
    """
    members = list(members)
    names = [name for name in AXES if name in SHOWN or len({getattr(member.spec, name) for member in members}) > 1]
    stitched = any(member.spec.stitched for member in members)
    rows: list[Row] = []
    for member in members:
        sizes = {name: getattr(member.spec, name) for name in names}
        front = {"front": front_text(member.spec)} if stitched else {}
        cost = member.cost(convention)
        rows.append({**sizes, **front, "params": cost.params, "flops": cost.flops, **member.settings})
    return rows


def front_text(spec: Spec) -> str:
    """The segments before the last as `layers x width`, such as "4x192+5x384"; empty for a plain model."""
    return "+".join(f"{segment.layers}x{segment.width}" for segment in spec.sizes[:-1])


def convention_option() -> click.Option:
    """`--convention`: how parameters and FLOPs are counted."""
    return choice_option(
        "--convention",
        get_args(Convention),
        "exact",
        "How parameters and FLOPs are counted: exact, the built model; fvcore, as Learngene Pool and SN-Net published "
        "it (stitched models without class token, positions and the final norm's FLOPs); thop, as LSAMD did (without "
        "attention's products, tokens and positions).",
    )


def build(method: Method) -> click.Command:
    """The command of one method: the options of its extractor, and those of its expander."""
    taken = tuple(setting.name for setting in settings_of(method.extractor))

    def plan(
        ancestry: tuple[str, ...],
        preset: str | None,
        pool: str | None,
        convention: Convention,
        offline: bool,
        as_json: bool,
        max_params: int | None,
        max_flops: int | None,
        **given: Any,
    ) -> None:
        target = chosen(Target())
        members = lifecycle.plan(
            method.name,
            extractor=chosen(method.preset(preset)),
            expander=chosen(method.expander),
            ancestries=ancestry,
            target=target,
            budget=Budget(max_params=max_params, max_flops=max_flops),
            pool=pool,
            convention=convention,
            offline=offline,
        )
        if not members:
            named = ", ".join(f"--{name.replace('_', '-')}" for name in target.axes())
            raise WrongCall(f"no size that {method.name} lists has these values; leave out {named} to see all")
        print_rows(size_rows(members, convention), as_json)

    return SettingsCommand(
        method.name,
        callback=plan,
        help=f"List every size that {method.name} would build, smallest first, without computing anything.",
        epilog=f"\b\nExamples:\n  lgzoo plan {method.name}\n"
        f"  lgzoo plan {method.name} --ancestry timm:deit_base_patch16_224 --classes 100 --json\n"
        f"  lgzoo plan {method.name} --max-params 700K",
        params=[
            *options_of(method.extractor),
            *options_of(method.expander, without=taken),
            ancestry_option(),
            preset_option(method),
            pool_option(),
            *size_options("task"),
            *(option for option in budget_options() if option.name != "max_latency"),
            convention_option(),
            offline_option(),
            json_option(),
        ],
    )


command = MethodGroup(
    "plan",
    build=build,
    help="List every size that a method would build from an ancestry model, with its cost, without computing anything.",
    epilog="\b\nExample:\n"
    "  lgzoo plan lsamd --ancestry timm:deit_base_patch16_224 --keep 1,4,5,7,8 --convention thop --classes 100",
)
