"""`Place`: where a data set of the papers is found: in a folder of the user's, in the Visual
Decathlon's archive, or on the Hub.
"""

import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from learngene_zoo.plugin import BadData, HubSource

NO_TEST = (
    "its test labels are withheld, so its validation split is the test and validation is cut from"
    " train"
)
# The folder in which the Visual Decathlon's devkit and data are unpacked
ARCHIVE = "LGZOO_DECATHLON"
DECATHLON_DEVKIT = "http://www.robots.ox.ac.uk/~vgg/share/decathlon-1.0-devkit.tar.gz"
DECATHLON_DATA = "http://www.robots.ox.ac.uk/~vgg/share/decathlon-1.0-data.tar.gz"


@dataclass(frozen=True, kw_only=True)
class Place:
    """Where one data set is found.

    The user's own folder comes first, then the Decathlon's archive, then the Hub.
    """

    hub: str | None = None  # org/name[:config][@revision]
    # Beginning of the commit that was reviewed, if the revision is a branch that can move
    pin: str = ""
    # A split -> the stored split that is used for it
    roles: Mapping[str, str] = field(default_factory=dict)
    label: str | None = None  # the label column, where the features do not say
    # The environment variable that names the user's own folder; "": there is no such folder
    variable: str = ""
    usual: str = ""  # where that folder is if the variable is not set
    # Of that folder; None: there is none, and the Hub's small pictures are used at the catalogue's
    # size.
    layout: Literal["classes", "inaturalist", "ade20k", "voc", "idx"] | None = "classes"
    archived: str = ""  # its name in the Visual Decathlon's archive
    also_classes: tuple[int, ...] = ()  # further numbers of classes that copies of it have
    note: str = ""  # what to know when comparing with a paper
    advice: str = ""  # how to get it where it cannot be downloaded

    def folder(self) -> Path | None:
        """The user's own folder, None if there is none.

        Raises `BadData` if the variable does not name a folder.
        """
        named = os.environ.get(self.variable) if self.variable else None
        if named:
            return find_folder(self.variable, named)
        return Path(self.usual) if self.usual and Path(self.usual).is_dir() else None

    def archive(self) -> Path | None:
        """Where the Visual Decathlon's archive is unpacked if it has this data set.

        Raises `BadData` as `folder` does.
        """
        named = os.environ.get(ARCHIVE) if self.archived else None
        return find_folder(ARCHIVE, named) if named else None

    def hub_source(self) -> HubSource | None:
        """Where it is on the Hub, None if there is no copy."""
        if self.hub is None:
            return None
        return HubSource(
            reference=self.hub,
            pin=self.pin,
            roles=self.roles,
            label=self.label,
            also_classes=self.also_classes,
            alternative=f"set {self.variable} to a folder of it" if self.variable else "",
        )


def find_folder(variable: str, named: str) -> Path:
    """The folder that an environment variable names. Raises `BadData` if there is none."""
    path = Path(os.path.expanduser(named))
    if not path.is_dir():
        raise BadData(f"{variable} is {named!r}, which is not a folder; correct it or unset it")
    return path
