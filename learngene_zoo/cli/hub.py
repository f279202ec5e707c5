"""`lgzoo publish FOLDER REPOSITORY` and `lgzoo fetch REPOSITORY`."""

from __future__ import annotations

import sys
from pathlib import Path

import click

from learngene_zoo.artifacts.shelf import read_kind
from learngene_zoo.atomic import claim
from learngene_zoo.cli.job import (
    advise,
    make_json_option,
    make_offline_option,
    print_lines,
    print_progress,
    print_row,
    print_rows,
)
from learngene_zoo.cli.process.messages import print_note
from learngene_zoo.cli.sections import RunningOption, SettingsCommand
from learngene_zoo.errors import Unavailable, WrongCall
from learngene_zoo.hub.client import parse_repository
from learngene_zoo.hub.fetch import copy, fetch_repository
from learngene_zoo.settings import Json, to_json
from learngene_zoo.text import count_noun, escape_controls, quote_path


def publish(
    folder: Path,
    repository: str,
    tag: str | None,
    descendants: tuple[Path, ...],
    licence: str | None,
    private: bool,
    dry_run: bool,
    offline: bool,
    quiet: bool,
    as_json: bool,
) -> None:
    """Check the folder, then publish it or list the changes."""
    from learngene_zoo.publishing import publish as hub
    from learngene_zoo.publishing.publication import build_publication, parse_target

    if offline and not dry_run:
        raise WrongCall("publishing needs the network; leave out --offline, or add --dry-run")
    print_progress(is_wanted=not quiet)
    named = parse_target(repository, tag)
    publication = build_publication(folder, named, members=descendants, licence=licence)
    if publication.paths and not quiet:
        and_others = " and others" if len(publication.paths) > 1 else ""
        print_note(
            f"config.json makes {count_noun(len(publication.paths), 'path')} of this machine "
            f"public: {publication.paths[0]}{and_others}"
        )
    if dry_run:
        try:
            if offline:
                raise Unavailable(f"nothing was compared with {named.name}, as --offline is given")
            changes = hub.list_changes(publication)
        except Unavailable as error:
            print_note(f"{error}; these files would be published")
            changes = hub.list_files(publication)
        print_rows([to_json(change) for change in changes], as_json)
        return

    def tell(text: str) -> None:
        if not quiet:
            click.echo(escape_controls(text), err=True)

    published = hub.carry_out(
        publication, private=private, progress=not quiet and sys.stderr.isatty(), tell=tell
    )
    changed = [change for change in published.changes if change.change != "same"]
    row = {
        "repository": named.name,
        "commit": published.repository.revision,
        "tag": tag,
        "files": len(published.changes),
        "changed": len(changed),
        "bytes": sum(change.bytes for change in changed if change.change != "delete"),
        "url": published.url,
    }
    if as_json:
        print_row(row, as_json=True)
    else:
        print_lines([f"{named.name}@{published.repository.revision}"])
        advise(f"lgzoo fetch {named}", quiet)


publish_command = SettingsCommand(
    "publish",
    callback=publish,
    help="Publish a learngene or a model as one commit to a repository on the Hugging Face Hub. "
    "The repository is created if it does not exist.\n\n"
    "All files are read back and compared before the command reports success. Tags are never "
    "moved, and files that others published are never overwritten. Log in with: hf auth login.",
    epilog="\b\nExamples:\n"
    "  lgzoo publish learngene me/lsamd --tag v1.0 --dry-run\n"
    "  lgzoo publish finetuned me/seven --private\n"
    "  lgzoo publish learngene me/lsamd --tag v1.0 --descendant seven",
    params=[
        click.Argument(["folder"], type=click.Path(path_type=Path)),
        click.Argument(["repository"]),
        click.Option(["--tag"], help="Tag for this version, e.g. v1.0."),
        click.Option(
            ["--descendant", "descendants"],
            type=click.Path(path_type=Path),
            multiple=True,
            help="Folder of a descendant to publish with the learngene, under the same name; may "
            "be repeated.",
        ),
        click.Option(
            ["--license", "licence"],
            help="Licence, e.g. mit, if that of the ancestry models is unknown.",
        ),
        click.Option(["--private"], is_flag=True, help="Create a private repository."),
        click.Option(
            ["--dry-run"],
            is_flag=True,
            help="Only list the changes with file sizes; without a network, list the files.",
        ),
        make_offline_option(),
        RunningOption(["--quiet", "-q"], is_flag=True, help="Print no progress and no hints."),
        make_json_option(),
    ],
)


def fetch(
    repository: str, out: Path | None, force: bool, offline: bool, quiet: bool, as_json: bool
) -> None:
    """Fetch a repository, copy it to `out` if given, and print the path."""
    if out is not None:
        claim(out, force)
    named = parse_repository(repository)
    print_progress(is_wanted=not quiet)
    progress = not quiet and sys.stderr.isatty()
    fetched = fetch_repository(
        named, with_members=not named.inside, offline=offline, progress=progress
    )
    folder = copy(fetched, out, force) if out is not None else fetched.folder
    pinned = fetched.repository
    if as_json:
        facts: dict[str, Json] = {
            "repository": pinned.name,
            "commit": pinned.revision,
            "digest": fetched.manifest.digest,
        }
        facts |= {"files": len(fetched.files), "bytes": fetched.bytes}
        print_row({**facts, "path": str(folder)}, as_json=True)
        return
    print_lines([str(folder)])
    if not quiet:
        print_note(
            f"checked {count_noun(len(fetched.files), 'file')} of {pinned}, {fetched.bytes:,} "
            "bytes: as published"
        )
    name = quote_path(out if out is not None else str(pinned))
    advise(
        f"lgzoo expand {name}" if read_kind(folder) == "learngene" else f"lgzoo evaluate {name}",
        quiet,
    )


fetch_command = SettingsCommand(
    "fetch",
    callback=fetch,
    help="Fetch a published learngene or model from the Hugging Face Hub into the Hub's cache, "
    "and check every file.\n\n"
    "REPOSITORY is organisation/name, or organisation/name@REVISION with a tag, branch or commit. "
    "organisation/name/member is a descendant that was published with its learngene. The revision "
    "is resolved to a commit; a commit in the cache needs no network.",
    epilog="\b\nExamples:\n"
    "  lgzoo fetch me/lsamd@v1.0\n"
    "  lgzoo fetch me/lsamd/seven@v1.0 -o seven\n"
    "  lgzoo expand me/lsamd@v1.0 --layers 7",
    params=[
        click.Argument(["repository"]),
        click.Option(
            ["-o", "--out"],
            type=click.Path(path_type=Path),
            help="Also copy the files into this folder.",
        ),
        click.Option(["--force"], is_flag=True, help="Replace what already exists."),
        make_offline_option(),
        RunningOption(["--quiet", "-q"], is_flag=True, help="Print no progress and no hints."),
        make_json_option(),
    ],
)
