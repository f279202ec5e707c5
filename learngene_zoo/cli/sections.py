"""The sections of a command's help.

An option's class names its section; `SettingsCommand` writes the sections in order, and within them
first the options that most calls need.
"""

from __future__ import annotations

import click


class RunningOption(click.Option):
    """An option about computing and printing; the help lists these last."""

    section = "Machine and output"


class DetailOption(click.Option):
    """An option that few calls need."""

    section = "Settings"


class SettingOption(click.Option):
    """An option derived from a setting."""

    section = "Settings"


class SizeOption(SettingOption):
    """An option derived from a field of `Target`, or an upper bound of the size."""

    section = "Sizes"


class TrainingOption(SettingOption):
    """An option derived from a setting of a training."""

    section = "Training"


START = "Start here"
SECTIONS = (
    START,
    SizeOption.section,
    SettingOption.section,
    TrainingOption.section,
    RunningOption.section,
)
# Names of parameters that come first in their section, and of those that come last.
FIRST = ("task", "out", "setting_epochs", "setting_lr", "setting_batch_size", "setting_images")
LAST = ("force", "resume")


class SettingsCommand(click.Command):
    """A command whose help has a section for each group of options."""

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the sections that have options; the first is "Options" if there is no setting."""
        sections: dict[str, list[tuple[str, str]]] = {title: [] for title in SECTIONS}
        for parameter in sorted(self.get_params(ctx), key=rank_in_help):
            if isinstance(parameter, click.Argument):
                continue
            record = parameter.get_help_record(ctx)
            if record is not None:
                sections[find_section(parameter)].append(record)
        has_settings = any(sections[title] for title in SECTIONS[1:-1])
        for title, records in sections.items():
            if records:
                is_start = title == START and not has_settings
                with formatter.section("Options" if is_start else title):
                    formatter.write_dl(records)


def find_section(option: click.Parameter) -> str:
    """Return the section of an option."""
    if option.name in LAST:
        return RunningOption.section
    return str(getattr(option, "section", START))


def rank_in_help(parameter: click.Parameter) -> int:
    """Return the key by which the options of a section are sorted."""
    name = str(parameter.name)
    if name in FIRST:
        return FIRST.index(name)
    return len(FIRST) + (name in LAST)
