"""Open the tasks of the suite `pictures` from the folders of package managers."""

from __future__ import annotations

import os
import struct
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from learngene_zoo.plugin import (
    BadData,
    Entry,
    Files,
    Labelled,
    Task,
    Unavailable,
    assemble_task,
    parse_json,
)

VARIABLE = "LGZOO_PICTURES"
STAMPS_PLACE, STAMPS_PACKAGE = "tuxpaint/stamps", "tuxpaint-stamps-default"
CLIPART_PLACE, CLIPART_PACKAGE = "openclipart/png", "openclipart-png"
# The folders of each class. Other folders have few images, or no subject in common.
STAMP_CLASSES = {
    "animals": ("animals",),
    "clothes": ("clothes",),
    "food": ("food",),
    "household": ("household",),
    "music": ("hobbies/music",),
    "plants": ("plants",),
    "seasonal": ("seasonal",),
    "space": ("space",),
    "sports": ("sports",),
    "symbols": ("symbols/money", "symbols/math", "symbols/music", "symbols/chess"),
    "town": ("town",),
    "vehicles": ("vehicles",),
}
CLIPART_CLASSES = {
    name: (name,)
    for name in (
        *("animals", "buildings", "food", "geography", "office", "people"),
        *("plants", "recreation", "tools", "transportation"),
    )
}
COPIES = ("mirror", "flip")  # words in the names of stamps that are copies of other stamps
MIN_EMOJI = 8  # images of a class
MAX_PIXELS = 20_000_000  # of an image; a dozen of openclipart-png have up to 600 million


def open_stamps(entry: Entry) -> Task:
    """Open `stamps`.

    Raises `Unavailable` if the package is not installed, `BadData` if a folder of it is missing.
    """
    folder = find_debian_folder(entry, STAMPS_PLACE, STAMPS_PACKAGE)
    return _make_task(
        entry, {"train": list_pictures(folder, STAMP_CLASSES, COPIES)}, sorted(STAMP_CLASSES)
    )


def open_clipart(entry: Entry) -> Task:
    """Open `clipart`. Raises as `open_stamps` does."""
    folder = find_debian_folder(entry, CLIPART_PLACE, CLIPART_PACKAGE)
    return _make_task(
        entry, {"train": list_pictures(folder, CLIPART_CLASSES)}, sorted(CLIPART_CLASSES)
    )


def open_emoji(entry: Entry) -> Task:
    """Open `emoji`. Raises as `open_stamps` does."""
    folder = find_npm_folder(entry, "google")
    names, rows = list_emoji(folder, "google")
    return _make_task(entry, {"train": rows}, names)


def open_emoji_transfer(entry: Entry) -> Task:
    """Open `emoji-transfer`: only classes and things that both vendors draw.

    Raises as `open_stamps` does.
    """
    places = {vendor: find_npm_folder(entry, vendor) for vendor in ("google", "twitter")}
    names, train = list_emoji(places["google"], "google")
    other_names, test = list_emoji(places["twitter"], "twitter")
    if names != other_names:
        raise BadData(
            f"{places['google']} and {places['twitter']} differ in their classes; install equal"
            " versions"
        )
    return _make_task(entry, {"train": train, "test": test}, names)


def open_flags(entry: Entry) -> Task:
    """Open `flags`: the other vendor's flags are divided into validation and test by a fixed seed.

    Raises as `open_stamps` does.
    """
    google, twitter = (find_npm_folder(entry, vendor) for vendor in ("google", "twitter"))
    names, train = list_flags(google, "google")
    other_names, others = list_flags(twitter, "twitter")
    if names != other_names:
        raise BadData(f"{google} and {twitter} differ in their flags; install equal versions")
    order_N = np.random.default_rng(0).permutation(len(names))
    num_validating = len(names) * 60 // 259
    parts = {
        "validation": np.sort(order_N[:num_validating]),
        "test": np.sort(order_N[num_validating:]),
    }
    files = [others.rows[i].where for i in range(len(names))]
    held_out = {
        split: Labelled(Files(tuple(files[i] for i in chosen)), others.labels[chosen])
        for split, chosen in parts.items()
    }
    return _make_task(entry, {"train": train, **held_out}, names)


OPENERS: Mapping[str, Callable[[Entry], Task]] = {
    "stamps": open_stamps,
    "clipart": open_clipart,
    "emoji": open_emoji,
    "emoji-transfer": open_emoji_transfer,
    "flags": open_flags,
}


def _make_task(entry: Entry, found: Mapping[str, Labelled], names: Sequence[str]) -> Task:
    fields: dict[str, Any] = {
        "title": entry.title,
        "flip": entry.flip,
        "image_size": entry.image_size,
        "licence": entry.licence,
        "source": entry.source,
    }
    return assemble_task(entry.name, found, names, **{**fields, "name": entry.name})


def find_debian_folder(entry: Entry, place: str, package: str) -> Path:
    """Return the folder below /usr/share, or below `LGZOO_PICTURES`. Raises `Unavailable`."""
    tops = [Path(os.environ[VARIABLE])] if os.environ.get(VARIABLE) else []
    folder = next(
        (top / place for top in (*tops, Path("/usr/share")) if (top / place).is_dir()), None
    )
    if folder is None:
        raise Unavailable(
            f"the pictures of {entry.name} are not installed: apt-get install {package} "
            f"(or set {VARIABLE} to the folder that holds {place})"
        )
    return folder


def find_npm_folder(entry: Entry, vendor: str) -> Path:
    """Return the folder of an emoji package in a node_modules folder.

    It is searched below `LGZOO_PICTURES`, in the current folder, and in the global ones of this
    machine. Raises `Unavailable`.
    """
    package = f"emoji-datasource-{vendor}"
    tops = [Path(os.environ[VARIABLE])] if os.environ.get(VARIABLE) else []
    tops += [Path(), Path("/usr/local/lib"), Path("/usr/lib")]
    folder = next(
        (found for top in tops if (found := top / "node_modules" / package).is_dir()), None
    )
    if folder is None:
        packages = " ".join(f"emoji-datasource-{name}@16" for name in ("google", "twitter"))
        raise Unavailable(
            f"the pictures of {entry.name} are not installed: npm install --ignore-scripts"
            f" {packages} (or set {VARIABLE} to the folder that holds node_modules)"
        )
    return folder


def list_pictures(
    top: Path, classes: Mapping[str, Sequence[str]], without: Sequence[str] = ()
) -> Labelled:
    """Return the PNG files below the folders of each class, in a fixed order.

    Files with a word of `without` in their path, or of more than `MAX_PIXELS` pixels, are left out.

    Raises `BadData` for a class without images.
    """
    paths: list[str] = []
    labels: list[int] = []
    for label, name in enumerate(sorted(classes)):
        files = [path for folder in classes[name] for path in sorted((top / folder).rglob("*.png"))]
        wanted = [
            path
            for path in files
            if not any(word in str(path.relative_to(top)) for word in without)
        ]
        kept = [path for path in wanted if count_pixels(path) <= MAX_PIXELS]
        if not kept:
            raise BadData(f"{top / classes[name][0]} holds no pictures; install the package again")
        paths += map(str, kept)
        labels += [label] * len(kept)
    return Labelled(Files(tuple(paths)), np.array(labels, dtype=np.int64))


def count_pixels(path: Path) -> int:
    """Return the number of pixels that a PNG file's header states.

    Raises `BadData` for a file that is not PNG.
    """
    with path.open("rb") as file:
        header = file.read(24)
    if len(header) < 24 or header[:8] != b"\x89PNG\r\n\x1a\n":
        raise BadData(f"{path} is not a PNG file; install the package again")
    width, height = struct.unpack(">II", header[16:24])
    return int(width * height)


def read_emoji(folder: Path, vendor: str) -> list[Mapping[str, Any]]:
    """Return the rows of emoji.json that both vendors draw.

    Raises `BadData` if the file cannot be read.
    """
    path = folder / "emoji.json"
    try:
        rows = [
            row
            for row in parse_json(path.read_bytes())
            if row["has_img_google"] and row["has_img_twitter"]
        ]
        for row in rows:
            row["subcategory"], row["image"], row["short_name"]
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise BadData(
            f"{path} cannot be read ({error}); install emoji-datasource-{vendor} again"
        ) from error
    return rows


def list_emoji(folder: Path, vendor: str) -> tuple[list[str], Labelled]:
    """Return the names of the classes, and a vendor's drawings, without skin tones.

    Only drawings that the other vendor has too are listed. Raises `BadData` for a damaged package.
    """
    rows = [(str(row["subcategory"]), str(row["image"])) for row in read_emoji(folder, vendor)]
    counts = Counter(subgroup for subgroup, _ in rows)
    names = sorted(subgroup for subgroup, count in counts.items() if count >= MIN_EMOJI)
    kept = sorted((names.index(subgroup), image) for subgroup, image in rows if subgroup in names)
    return names, _find_drawings(kept, folder, vendor)


def list_flags(folder: Path, vendor: str) -> tuple[list[str], Labelled]:
    """Return the short names of the countries, and a vendor's drawing of the flag of each.

    Raises as `list_emoji` does.
    """
    rows = [row for row in read_emoji(folder, vendor) if row["subcategory"] == "country-flag"]
    images = {str(row["short_name"]).removeprefix("flag-"): str(row["image"]) for row in rows}
    names = sorted(images)
    return names, _find_drawings(
        [(label, images[name]) for label, name in enumerate(names)], folder, vendor
    )


def _find_drawings(rows: Sequence[tuple[int, str]], folder: Path, vendor: str) -> Labelled:
    """Return the files of a vendor's drawings with their classes.

    Raises `BadData` if a file is missing.
    """
    images = folder / "img" / vendor / "64"
    files = tuple(str(images / Path(image).name) for _, image in rows)
    missing = next((file for file in files if not Path(file).is_file()), None)
    if missing is not None:
        raise BadData(f"there is no picture {missing}; install emoji-datasource-{vendor} again")
    return Labelled(Files(files), np.array([label for label, _ in rows], dtype=np.int64))
