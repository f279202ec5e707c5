"""The suite `vtab`: VTAB-1k, 19 tasks of 800 training and 200 validation images each.

Zhai et al., A Large-scale Study of Representation Learning with the Visual Task Adaptation
Benchmark, arXiv 1910.04867. The data are looked for in the folder that `LGZOO_VTAB` names, in the
usual layout with lists (`cifar/train800.txt` ...), and otherwise in copies on the Hub, of which
1,000 training images are drawn.
"""

from __future__ import annotations

from learngene_zoo.plugin import Entry, HubSource, Suite, Task, split_sizes
from lgzoo_vtab.places import (
    PARQUET,
    TRAIN,
    VALIDATION,
    VARIABLE,
    Row,
    find_folder,
    find_source,
)


def _make_row(
    name: str,
    title: str,
    classes: int,
    test: int,
    folder: str,
    copy: str,
    description: str,
    *,
    licence: str = "unknown",
    flip: bool = True,
) -> Row:
    entry = Entry(
        name=f"vtab-{name}",
        title=f"{title} (VTAB-1k)",
        classes=classes,
        sizes=split_sizes(TRAIN, VALIDATION, test),
        licence=licence,
        description=f"{description} 1,000 training images, from {VARIABLE} or the Hub.",
        source=f"clip-benchmark/{copy}",
        image_size=224,
        flip=flip,
    )
    return Row(entry, folder, f"clip-benchmark/{copy}@{PARQUET}")


# Pictures in which left and right are part of the class are not flipped. Natural, specialised and
# structured tasks, in the order of the paper.
TASKS = (
    _make_row("caltech101", "Caltech-101", 102, 6_084, "caltech101", "wds_vtab-caltech101",
        "Photographs of 101 kinds of objects and of backgrounds.", licence="CC-BY-4.0"),
    _make_row("cifar100", "CIFAR-100", 100, 10_000, "cifar", "wds_vtab-cifar100",
        "Small photographs of 100 kinds of objects."),
    _make_row("dtd", "Describable Textures", 47, 1_880, "dtd", "wds_vtab-dtd",
        "Photographs of textures described by 47 words."),
    _make_row("flowers102", "Oxford Flowers-102", 102, 6_149, "oxford_flowers102",
        "wds_vtab-flowers", "Photographs of 102 kinds of flowers."),
    _make_row("pets", "Oxford-IIIT Pet", 37, 3_669, "oxford_iiit_pet", "wds_vtab-pets",
        "Photographs of 37 breeds of cats and dogs.", licence="CC-BY-SA-4.0"),
    _make_row("sun397", "SUN397", 397, 21_750, "sun397", "wds_sun397",
        "Photographs of 397 kinds of scenes."),
    _make_row("svhn", "Street View House Numbers", 10, 26_032, "svhn", "wds_vtab-svhn",
        "Photographs of digits on houses.", flip=False),
    _make_row("camelyon", "Patch Camelyon", 2, 32_768, "patch_camelyon", "wds_vtab-pcam",
        "Patches of microscope images, with and without tumour tissue."),
    _make_row("eurosat", "EuroSAT", 10, 5_400, "eurosat", "wds_vtab-eurosat",
        "Satellite images of ten kinds of land use.", licence="MIT"),
    _make_row("resisc45", "RESISC45", 45, 6_300, "resisc45", "wds_vtab-resisc45",
        "Aerial photographs of 45 kinds of scenes."),
    _make_row("retinopathy", "Diabetic Retinopathy", 5, 42_670, "diabetic_retinopathy",
        "wds_vtab-diabetic_retinopathy", "Photographs of retinas with five degrees of disease."),
    _make_row("clevr-count", "CLEVR, number of objects", 8, 15_000, "clevr_count",
        "wds_vtab-clevr_count_all", "Rendered scenes with three to ten objects.",
        licence="CC-BY-4.0"),
    _make_row("clevr-distance", "CLEVR, distance of the closest object", 6, 15_000, "clevr_dist",
        "wds_vtab-clevr_closest_object_distance", "Rendered scenes with six ranges of distance.",
        licence="CC-BY-4.0"),
    _make_row("dmlab", "DMLab", 6, 22_735, "dmlab", "wds_vtab-dmlab",
        "Views of a maze, by distance and kind of the next object."),
    _make_row("dsprites-location", "dSprites, location", 16, 73_728, "dsprites_loc",
        "wds_vtab-dsprites_label_x_position", "Shapes at 16 ranges of horizontal positions.",
        licence="Apache-2.0", flip=False),
    _make_row("dsprites-orientation", "dSprites, orientation", 16, 73_728, "dsprites_ori",
        "wds_vtab-dsprites_label_orientation", "Shapes in 16 ranges of orientations.",
        licence="Apache-2.0", flip=False),
    _make_row("kitti", "KITTI, distance of the closest vehicle", 4, 711, "kitti",
        "wds_vtab-kitti_closest_vehicle_distance", "Street scenes with four ranges of distance.",
        licence="CC-BY-NC-SA-3.0"),
    _make_row("smallnorb-azimuth", "SmallNORB, azimuth", 18, 12_150, "smallnorb_azi",
        "wds_vtab-smallnorb_label_azimuth", "Toys from 18 sides.", flip=False),
    _make_row("smallnorb-elevation", "SmallNORB, elevation", 9, 12_150, "smallnorb_ele",
        "wds_vtab-smallnorb_label_elevation", "Toys from nine heights."),
)  # fmt: skip
ROWS = {row.entry.name: row for row in TASKS}


def find_on_hub(entry: Entry) -> HubSource | None:
    """Return the source on the Hub from which an entry would be read; None if it is local."""
    row = ROWS[entry.name]
    return find_source(row) if find_folder(row) is None else None


def open_task(entry: Entry, offline: bool) -> Task:
    """Open the task of an entry of this suite."""
    from lgzoo_vtab.opening import open_row

    return open_row(ROWS[entry.name]._replace(entry=entry), offline)


VTAB = Suite(
    name="vtab",
    title="VTAB-1k: 19 tasks of 1,000 training images each",
    entries=tuple(row.entry for row in TASKS),
    open=open_task,
    hub=find_on_hub,
)
