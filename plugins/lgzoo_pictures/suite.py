"""The suite `pictures`: real photographs and drawings with free licences, from packages of Debian
and npm.

The images are not bundled. Each task looks in the folder where the package manager installs them,
and below the folder that `LGZOO_PICTURES` names; if they are not found, the error shows the command
that installs them. Splits are fixed by a seed.
"""

from __future__ import annotations

from learngene_zoo.plugin import Entry, Suite, Task, split_sizes


def _make_entry(
    name: str,
    title: str,
    classes: int,
    sizes: tuple[int, int, int],
    licence: str,
    description: str,
    image_size: int = 224,
    flip: bool = True,
) -> Entry:
    return Entry(
        name=name,
        title=title,
        classes=classes,
        sizes=split_sizes(*sizes),
        licence=licence,
        description=description,
        source=title,
        flip=flip,
        image_size=image_size,
    )


STAMPS = _make_entry(
    "stamps",
    "Tux Paint stamps",
    12,
    (426, 47, 118),
    "GPL-2.0-or-later",
    "Cut-out photographs and drawings of animals, plants, vehicles and other things, of very"
    " different sizes. From Debian's package tuxpaint-stamps-default.",
)
CLIPART = _make_entry(
    "clipart",
    "Open Clip Art Library",
    10,
    (1_903, 211, 528),
    "CC0-1.0",
    "Drawings by many artists, from animals to transportation. From Debian's package"
    " openclipart-png.",
)
EMOJI = _make_entry(
    "emoji",
    "Noto emoji",
    70,
    (1_267, 141, 352),
    "Apache-2.0",
    "Google's emoji; the classes are Unicode's subgroups of at least 8 emoji. From the npm package"
    " emoji-datasource-google.",
    image_size=64,
)
EMOJI_TRANSFER = _make_entry(
    "emoji-transfer",
    "Noto emoji, tested on Twemoji",
    70,
    (1_584, 176, 1_760),
    "Apache-2.0 and CC-BY-4.0",
    "As emoji, but tested on Twitter's drawings of the same things. From the npm packages"
    " emoji-datasource-google and emoji-datasource-twitter.",
    image_size=64,
)
FLAGS = _make_entry(
    "flags",
    "flags of countries, one drawing of each",
    259,
    (259, 60, 199),
    "Apache-2.0 and CC-BY-4.0",
    "One training image of each country, Google's waving flag; validated and tested on Twitter's"
    " flat flags, of different countries. From the npm packages emoji-datasource-google and"
    " emoji-datasource-twitter.",
    image_size=64,
    flip=False,
)


def open_task(entry: Entry, offline: bool) -> Task:
    """Open the task of an entry of this suite."""
    from lgzoo_pictures.opening import OPENERS

    return OPENERS[entry.name](entry)


PICTURES = Suite(
    name="pictures",
    title="photographs and drawings from packages of Debian and npm",
    entries=(STAMPS, CLIPART, EMOJI, EMOJI_TRANSFER, FLAGS),
    open=open_task,
)
