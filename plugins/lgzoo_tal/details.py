"""What the `details` of the three methods' learngenes hold. Cold.

    hypernet   the hypernetwork's sizes (absent before a released checkpoint was read)
    layers     least and most layers of the architectures it was trained on
    tasks      those that stage 2 trained on, in their order
    apart      whether each of them has a hypernetwork of its own
    embedded   the tasks whose embedding is stored
    source     the record of the task of stage 1 (absent without one)

A learngene may come from anywhere, so nothing in it is trusted.
"""

from __future__ import annotations

from dataclasses import dataclass, fields

from learngene_zoo.plugin import LIMITS, BadFile, Json, LearngeneConfig, TaskRecord, WrongCall, from_json, to_json
from lgzoo_tal.variants import HypernetSpec

# Far beyond any hypernetwork that exists: they catch a config.json that would exhaust the memory.
MOST = {"hidden": 4096, "layers": 256, "heads": 256, "rank": 4096, "widest": 65536, "chunk": 2**22, "classes": 10**6}


@dataclass(frozen=True, kw_only=True)
class Details:
    """Which hypernetworks a learngene holds, and what they were trained on."""

    hypernet: HypernetSpec | None = None
    layers: tuple[int, ...] = (3, 12)
    tasks: tuple[str, ...] = ()
    apart: bool = False
    embedded: tuple[str, ...] = ()
    source: TaskRecord | None = None

    def json(self) -> dict[str, Json]:
        """As they are written; what is not there is left out."""
        return {name: value for name, value in to_json(self).items() if value is not None}


def read_details(config: LearngeneConfig) -> Details:
    """What a learngene's config says. Raises `BadFile` for what cannot be."""
    known = {field.name for field in fields(Details)}
    told = {name: value for name, value in config.details.items() if name in known}
    try:
        details = from_json(Details, to_json(told), "details of the learngene")
    except WrongCall as error:
        raise BadFile(f"details of the learngene: {error}") from error
    least, most = details.layers if len(details.layers) == 2 else (0, 0)
    if not 1 <= least <= most <= LIMITS["layers"]:
        raise BadFile(
            f"details of the learngene: layers {list(details.layers)}; wanted are the least and the most, up to {LIMITS['layers']}"
        )
    _check_size(details.hypernet)
    return details


def hypernet_in(config: LearngeneConfig) -> HypernetSpec:
    """The hypernetwork of a learngene. Raises `BadFile` if its config names none."""
    found = read_details(config).hypernet
    if found is None:
        raise BadFile("details of the learngene: there is no hypernetwork; extract or fetch it again")
    return found


def _check_size(spec: HypernetSpec | None) -> None:
    for name, most in MOST.items() if spec is not None else ():
        value = getattr(spec, name)
        if value is not None and value > most:
            raise BadFile(f"details of the learngene: a hypernetwork with {name} {value}; at most {most} is believed")
