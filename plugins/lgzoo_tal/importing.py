"""A released checkpoint as a learngene: nothing is trained. Cold at its top."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from learngene_zoo.plugin import Learngene, LearngeneConfig, WrongCall
from lgzoo_tal.details import read_details
from lgzoo_tal.tensors import learngene_name
from lgzoo_tal.variants import Decoder

if TYPE_CHECKING:
    from learngene_zoo.plugin import Run


def imported(reference: str, decoder: Decoder, config: LearngeneConfig, run: Run) -> Learngene:
    """The hypernetwork in a file, local or `hf-hub:organisation/name/file`, under the outline `config`.

    Where it came from, with its licence, is recorded in `details.released`. Raises `WrongCall` for another kind of
    hypernetwork, and what `released.fetch` and `released.read` raise.
    """
    from lgzoo_tal.released import fetch, read

    release = fetch(reference, offline=run.offline)
    spec, state = read(release.path)
    if spec.decoder != decoder:
        method = {"conv": "ghn3", "low_rank": "logah"}[spec.decoder]
        raise WrongCall(f"{reference} is of another kind of hypernetwork; read it with `lgzoo extract {method}`")
    found = {name: getattr(release, name) for name in ("reference", "sha256", "revision", "licence")}
    details = {**replace(read_details(config), hypernet=spec).json(), "released": found}
    return Learngene(
        config=replace(config, details=details), state={learngene_name(name): state[name] for name in state}
    )
