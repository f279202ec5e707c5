"""Options derived from the fields of settings, which are frozen dataclasses.

Also the group with one sub-command per registered method, and the argument `[MODEL]` of commands.
"""

from __future__ import annotations

import math
import shlex
from collections.abc import Callable, Container, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn, TypeVar

import click
from click.core import ParameterSource

from learngene_zoo.artifacts.shelf import find, is_card, list_learngenes, missing_model, read_kind
from learngene_zoo.cli.main import LazyGroup
from learngene_zoo.cli.sections import (
    SettingOption,
    SizeOption,
    TrainingOption,
    find_section,
    rank_in_help,
)
from learngene_zoo.errors import BadPlugin, WrongCall, ZooError, refuse_unknown
from learngene_zoo.families.spec import TIMM_NAMES
from learngene_zoo.families.timm_config import check_timm_source
from learngene_zoo.hub.client import parse_hub_reference
from learngene_zoo.method.contract import Method
from learngene_zoo.method.installed import METHODS
from learngene_zoo.method.sizes import Target
from learngene_zoo.pretrained.timm_model import is_timm_source
from learngene_zoo.settings import Recipe, Setting, list_settings, to_json, with_settings
from learngene_zoo.storage import CONFIG
from learngene_zoo.text import parse_count, parse_seconds, quote_word

if TYPE_CHECKING:
    from click.shell_completion import CompletionItem


T = TypeVar("T")
# Methods that are listed first: see docs/methods/index.md, "Choosing a method".
START_HERE = ("closed_form", "first_k", "pruning", "lsamd", "pool")
# timm's words for the sizes of this package. A method's setting of the same name may be no size.
SIZE_ALIASES = {
    name: other.replace("_", "-") for name, other in TIMM_NAMES.items() if other != name
}
ALIASES = {"tries": "try"}  # `try`, which no setting can be called in Python
MAX_PLACEHOLDER = 60  # characters of the choices in the help's left column
_KINDS = {int: "an integer", float: "a number", str: "a text", Path: "a path"}


def make_options(
    settings: Any,
    without: Container[str] = (),
    helps: Mapping[str, str] | None = None,
    kind: type[SettingOption] | None = None,
    defaults: Mapping[str, str] | None = None,
) -> list[click.Option]:
    """Return one option for every leaf of a settings instance.

    Args:
        settings: the instance; its values are the defaults that the help shows.
        without: names of leaves that get no option.
        helps: help texts by name, for leaves without one.
        kind: class of the options. None: `TrainingOption` for the leaves of a recipe, else
            `SettingOption`.
        defaults: texts by name, for defaults that are not plain values.
    """
    leaves = [setting for setting in list_settings(settings) if setting.name not in without]
    return [
        _make_option(
            leaf,
            (helps or {}).get(leaf.name, ""),
            kind or _choose_kind(settings, leaf),
            default=(defaults or {}).get(leaf.name, leaf.default),
        )
        for leaf in leaves
    ]


def add_options(
    method: Method, common: Sequence[click.Parameter], *parts: Sequence[click.Option]
) -> list[click.Parameter]:
    """Return the options of a method's settings and `common`, which all methods have.

    Raises `BadPlugin` for a setting whose option another option already has.
    """
    taken = {word for option in common for word in (*option.opts, *option.secondary_opts)}
    settings = [option for part in parts for option in part]
    for option in settings:
        words = {*option.opts, *option.secondary_opts}
        if words & taken:
            field = str(option.name).removeprefix(name_parameter(""))
            raise BadPlugin(
                f"the setting {field!r} of the method {method.name!r} has the option "
                f"{min(words & taken)}, which this command has already; rename the field"
            )
        taken |= words
    return [*settings, *common]


def _choose_kind(settings: Any, leaf: Setting) -> type[SettingOption]:
    """Return the class of the option for a leaf of `settings`."""
    for name in leaf.path[:-1]:
        settings = getattr(settings, name)
    return TrainingOption if isinstance(settings, Recipe) else SettingOption


def make_size_options(*without: str) -> list[click.Option]:
    """Return the size options, which `read_settings(Target())` reads back."""
    return make_options(Target(), without=("dense", *without), kind=SizeOption)


def make_budget_options() -> list[click.Option]:
    """Return the options for the fields of a `Budget`."""
    return [
        SizeOption(
            ["--max-params"],
            type=_accept(parse_count),
            metavar="COUNT",
            help="at most this many parameters, e.g. 20M",
        ),
        SizeOption(
            ["--max-flops"],
            type=_accept(parse_count),
            metavar="COUNT",
            help="at most this many FLOPs per image, e.g. 3G",
        ),
        SizeOption(
            ["--max-latency"],
            type=_accept(parse_seconds),
            metavar="DURATION",
            help="at most this time per image on this machine, e.g. 15ms",
        ),
    ]


def _accept(parse: Callable[[str], Any]) -> Callable[[str], Any]:
    """Return a function for the type of an option, whose errors name the option."""

    def convert(text: str) -> Any:
        try:
            return parse(text)
        except WrongCall as error:
            raise click.BadParameter(str(error)) from error

    return convert


def make_auto_options(settings: Any, names: Container[str], **defaults: str) -> list[click.Option]:
    """Return options as `make_options` does, for the leaves in `names`, which also accept `auto`.

    `defaults` has, by name, texts for defaults that are not plain values.
    """
    return [
        _make_option(
            setting,
            f"{setting.help}, or auto",
            _choose_kind(settings, setting),
            AutoType,
            default=defaults.get(setting.name, setting.default),
        )
        for setting in list_settings(settings)
        if setting.name in names
    ]


def _make_option(
    setting: Setting,
    help_text: str,
    kind: type[SettingOption],
    type_of: type[SettingType] | None = None,
    *,
    default: Any,
) -> SettingOption:
    """Build the option of one setting.

    Click gets no default: a preset chosen on the command line may have another one.
    """
    limits = f" ({setting.bounds})" if setting.bounds else ""
    text = (
        f"{help_text if type_of else setting.help or help_text}{limits}{_describe_default(default)}"
    )
    if setting.kind is bool:
        return kind(
            [f"--{setting.option}/{_name_opposite(setting.option)}", name_parameter(setting.name)],
            default=None,
            help=text,
        )
    value = (type_of or SettingType)(setting)
    if value.has_many_choices:
        text = f"one of {', '.join(setting.choices or ())}: {text}"
    aliases = SIZE_ALIASES if issubclass(kind, SizeOption) else ALIASES
    names = [setting.option, *filter(None, [aliases.get(setting.name)])]
    return kind(
        [*(f"--{name}" for name in names), name_parameter(setting.name)],
        type=value,
        metavar=value.metavar,
        multiple=setting.repeated,
        help=text,
    )


def _name_opposite(option: str) -> str:
    """Return the flag that unsets a flag: `--no-shared` for `shared`.

    For a name that begins with `no-`, it is the rest: `--embed-class` for `no-embed-class`.
    """
    return f"--{option.removeprefix('no-')}" if option.startswith("no-") else f"--no-{option}"


def name_parameter(name: str) -> str:
    """Return the name of the parameter of a setting's option."""
    return f"setting_{name}"


def _describe_default(default: Any) -> str:
    """Return the end of an option's help; a default of None is not shown."""
    if default is None or default == ():
        return ""
    if isinstance(default, bool):
        default = "yes" if default else "no"
    text = ",".join(map(str, default)) if isinstance(default, tuple) else str(to_json(default))
    return f"  [default: {text}]"


def read_settings(settings: T) -> T:
    """Return `settings` with the values typed on this command line. Raises `WrongCall`."""
    return with_settings(settings, list_typed(settings))


def list_typed(settings: Any) -> dict[str, Any]:
    """Return the values of `settings` that the user typed on this command line, by name."""
    context = click.get_current_context()
    values = {}
    for setting in list_settings(settings):
        name = name_parameter(setting.name)
        if context.get_parameter_source(name) is ParameterSource.COMMANDLINE:
            values[setting.name] = (
                _join_groups(context.params[name]) if setting.repeated else context.params[name]
            )
    return values


def find_typed(*names: str) -> str | None:
    """Return the first of these parameters that is an option typed on this command line.

    None, too, where a command's function is called without a command line.
    """
    context = click.get_current_context(silent=True)
    if context is None:
        return None
    for option in context.command.params:
        is_typed = context.get_parameter_source(str(option.name)) is ParameterSource.COMMANDLINE
        if option.name in names and is_typed:
            return option.opts[0]
    return None


def _join_groups(groups: tuple[tuple[Any, ...] | None, ...]) -> tuple[Any, ...] | None:
    """Join the groups of a repeated option: `--keep 1,4 --keep 5` equals `--keep 1,4,5`.

    `none` in any group gives None.
    """
    if None in groups:
        return None
    return tuple(item for group in groups for item in group or ())


class SettingType(click.ParamType):
    """Type of a setting's option: commas separate repeated values, `none` is None if allowed."""

    name = "setting"

    def __init__(self, setting: Setting) -> None:
        self.setting = setting

    @property
    def metavar(self) -> str:
        """Placeholder of the value in the help."""
        if self.has_many_choices:
            return "CHOICE"
        single = (
            "|".join(self.setting.choices)
            if self.setting.choices
            else _KINDS[self.setting.kind].split()[-1].upper()
        )
        placeholder = f"{single},..." if self.setting.repeated else single
        return f"[{placeholder}]" if self.setting.choices else placeholder

    @property
    def has_many_choices(self) -> bool:
        """Whether the choices are too long for the placeholder."""
        return len("|".join(self.setting.choices or ())) > MAX_PLACEHOLDER

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        """Return the value of the text. Raises click's usage error, which names the option."""
        if not isinstance(value, str):
            return value
        if self.setting.none_is_nothing and value.lower() == "none":
            return None
        if self.setting.repeated:
            return tuple(
                self._one(part.strip(), param, ctx) for part in value.split(",") if part.strip()
            )
        return self._one(value, param, ctx)

    def _one(self, text: str, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        if self.setting.choices:
            return click.Choice(self.setting.choices).convert(text, param, ctx)
        if self.setting.kind is bool:
            return click.BOOL.convert(text, param, ctx)
        if self.setting.kind is Path and not text:
            self.fail("the path is empty", param, ctx)
        try:
            value = self.setting.kind(text)
        except ValueError:
            is_data = self.setting.name == "images" and ":" in text
            hint = f"; give the data by --task {text}" if is_data else ""
            if text.lower() == "all" and self.setting.none_is_nothing:
                hint = "; give 'none' for all"
            self.fail(f"{text!r} is not {_KINDS[self.setting.kind]}{hint}", param, ctx)
        if isinstance(value, float) and not math.isfinite(value):
            self.fail(f"{text!r} is not a finite number", param, ctx)
        if self.setting.bounds and value not in self.setting.bounds:
            self.fail(f"{text} is out of range; it must be {self.setting.bounds}", param, ctx)
        return value

    def shell_complete(
        self, ctx: click.Context, param: click.Parameter, incomplete: str
    ) -> list[CompletionItem]:
        """Complete the choices of the setting, or the tasks of the catalogue."""
        if self.setting.name == "task":
            return complete_tasks(ctx, param, incomplete)
        return click.Choice(self.setting.choices or ()).shell_complete(ctx, param, incomplete)


class AutoType(SettingType):
    """Type of a setting's option that also accepts `auto`."""

    @property
    def metavar(self) -> str:
        """Placeholder of the value in the help."""
        return f"{super().metavar}|auto"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        """Return the value or `auto`. Raises as `SettingType.convert` does."""
        return value if value == "auto" else super().convert(value, param, ctx)


def complete_tasks(
    ctx: click.Context, param: click.Parameter, incomplete: str
) -> list[CompletionItem]:
    """Complete the tasks of the catalogue."""
    from learngene_zoo.tasks.catalogue import list_entries

    return click.Choice([entry.name for entry in list_entries()]).shell_complete(
        ctx, param, incomplete
    )


def complete_learngenes(
    ctx: click.Context, param: click.Parameter, incomplete: str
) -> list[CompletionItem]:
    """Complete the learngenes of the shelf, and folders."""
    from click.shell_completion import CompletionItem

    names = click.Choice(list_learngenes()).shell_complete(ctx, param, incomplete)
    return [*names, CompletionItem(incomplete, type="dir")]


def check_tasks(*names: str | None) -> None:
    """Raise an error for a task, a suite or a path of data that does not exist.

    torch is not imported. Raises as `catalogue.check_name` does.
    """
    references = [name for name in names if name is not None]
    if not references:
        return
    from learngene_zoo.tasks.catalogue import check_name, expand_suites

    for name in expand_suites(references):
        check_name(name)


def make_task_option(help_text: str, **settings: Any) -> click.Option:
    """Return `--task` of a command, which a shell can complete."""
    return click.Option(["--task"], help=help_text, shell_complete=complete_tasks, **settings)


def parse_setting(settings: Any, name: str, text: str, option: str) -> Any:
    """Parse the value of one setting of `settings`.

    Args:
        settings: the instance whose leaf is set.
        name: name of the leaf, with `-` or `_`.
        text: value, in the form that the leaf's option takes.
        option: option that the error names.

    Raises:
        WrongCall: the setting is unknown, or the value is invalid.
    """
    leaves = {setting.name: setting for setting in list_settings(settings)}
    setting = leaves.get(name.replace("-", "_"))
    if setting is None:
        raise WrongCall(f"{option}: {refuse_unknown('setting', name, leaves)}")
    try:
        return SettingType(setting).convert(text, None, None)
    except click.BadParameter as error:
        raise WrongCall(f"{option}: {error.message}") from None


# Sections with options that not every method has.
OF_A_METHOD = (SettingOption.section, TrainingOption.section)
# Help texts of parameters that every method has, with another text.
SHARED_HELPS = {
    "preset": "Preset for the settings that are not given; lgzoo extract METHOD --help lists those "
    "of a method.  [default: mini]"
}


class MethodGroup(LazyGroup):
    """A group of one command per method, which `build` makes and imports when it is named."""

    kind = "method"

    def __init__(self, *args: Any, build: Callable[[Method], click.Command], **kwargs: Any) -> None:
        super().__init__(*args, table={}, subcommand_metavar="METHOD [OPTIONS]", **kwargs)
        self.build = build

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Parse as click does. Raises `WrongCall` for options before the method."""
        helps = set(ctx.help_option_names)
        if args and args[0].startswith("-") and not helps & set(args):
            names = METHODS.references()
            position = next((i for i in reversed(range(len(args))) if args[i] in names), None)
            method = "closed_form" if position is None else args[position]
            rest = args if position is None else args[:position] + args[position + 1 :]
            example = shlex.join([*ctx.command_path.split(), method, *rest])
            raise WrongCall(
                f"name the method before its options, for example: {example}; see "
                f"{ctx.command_path} --help"
            )
        return super().parse_args(ctx, args)

    def list_commands(self, ctx: click.Context) -> list[str]:
        """Return the registered names."""
        return list(METHODS.references())

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """Return the command of one method."""
        return self.build(METHODS.load(cmd_name)) if cmd_name in METHODS.references() else None

    def refuse(self, name: str) -> NoReturn:
        """Raise `WrongCall` for an unknown method, and `BadFile` for a broken one."""
        if name not in METHODS.references() and (Path(name) / CONFIG).is_file():
            raise WrongCall(
                f"no method named {name!r}; for the folder of that name: lgzoo show "
                f"{quote_word(name)}"
            )
        METHODS.load(name)
        raise AssertionError(name)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the methods, and the options that all of them share."""
        titles = dict(self.summaries(ctx))
        first = {name: titles.pop(name) for name in START_HERE if name in titles}
        for section, names in (("Start here", first), ("Other methods", titles)):
            with formatter.section(section):
                formatter.write_dl(list(names.items()))
        shared: dict[str, tuple[str, str]] = {}
        for method in METHODS.load_all()[0]:
            try:
                params = self.build(method).params
            except ZooError:
                continue  # `lgzoo doctor` reports it
            for option in sorted(params, key=rank_in_help):
                record = option.get_help_record(ctx)
                if record is not None and find_section(option) not in OF_A_METHOD:
                    words, text = record
                    text = SHARED_HELPS.get(str(option.name), text)
                    shared.setdefault(option.opts[0], (words, text))
        with formatter.section("Options of every method"):
            formatter.write_dl(list(shared.values()))

    def summaries(self, ctx: click.Context) -> list[tuple[str, str]]:
        """Return names and titles; a plugin that does not load is listed as broken."""
        good, broken = METHODS.load_all()
        lost = {plugin.name: "(broken: see lgzoo doctor)" for plugin in broken}
        return sorted({**lost, **{method.name: method.title for method in good}}.items())


def make_model_argument() -> click.Argument:
    """Return the optional argument `[MODEL]`: a folder, or a repository on the Hub.

    It is optional because commands that write models have default folders.
    """
    return click.Argument(["model"], required=False, type=click.Path())


def find_any_model(named: str | None, *defaults: str, offline: bool = False) -> str | Path:
    """Return the model as `find_model` does, the folder of a model of transformers, or the name of
    a model of timm or a Hub repository.

    Raises `WrongCall` for a name that timm does not have, before timm is imported.
    """
    from learngene_zoo.pretrained.from_transformers import is_transformers_folder

    if named is not None and is_transformers_folder(Path(named)):
        return Path(named)
    if named is None or not is_timm_source(named):
        return find_model(named, *defaults, offline=offline)
    if named.startswith("timm:"):
        check_timm_source(named.removeprefix("timm:"))
    return named


def _describe_model_commands(defaults: Sequence[str]) -> str:
    """Return which command writes a model into one of these folders."""
    if "descendant" in defaults:
        return "build one with `lgzoo expand --layers 7`"
    return "train one with `lgzoo finetune`"


def find_model(named: str | None, *defaults: str, offline: bool = False) -> Path:
    """Return the folder of the model.

    Args:
        named: a folder, or a repository on the Hub, which is fetched.
        defaults: without a name, the first of these folders that exists.
        offline: never access the network.

    Raises:
        WrongCall: there is no such model, or the folder holds a learngene; also as
            `fetch.fetch_repository`.
    """
    folder = (
        Path(named)
        if named
        else next((Path(path) for path in defaults if Path(path).is_dir()), None)
    )
    if named and not Path(named).is_dir() and (parse_hub_reference(named) or is_card(named)):
        folder = find(named, offline=offline)
    if folder is None:
        searched = " or ".join(f"./{path}" for path in defaults)
        raise WrongCall(
            f"there is no model at {searched}; {_describe_model_commands(defaults)}, or name a "
            "folder"
        )
    if folder.is_file():
        raise WrongCall(
            f"{folder} is a file; name a model's folder, such as `lgzoo finetune` writes"
        )
    if not folder.is_dir() and is_timm_source(named):
        raise WrongCall(
            f"{named} is a timm model, not a folder; create a folder with `lgzoo finetune {named} "
            "--task TASK -o FOLDER`"
        )
    if not folder.is_dir():
        raise missing_model(named or folder)
    if read_kind(folder) == "learngene":
        raise WrongCall(
            f"{folder} is a learngene, not a model; build one with `lgzoo expand {folder}` (its "
            f"sizes: lgzoo show {folder} --all)"
        )
    return folder
