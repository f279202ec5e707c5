"""Fixtures of the Hub's tests: a stand-in of the Hub, a client configured for it, and artifacts to
publish.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace

import pytest
from click.testing import CliRunner
from matrix import artifacts
from standin import TOKEN, StandIn

from learngene_zoo.cli.main import main

Lgzoo = Callable[..., SimpleNamespace]


@pytest.fixture
def hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[StandIn]:
    """Return the stand-in. The client read its address, its cache and the offline setting at
    import.
    """
    from huggingface_hub import constants

    with StandIn() as server:
        for name, value in {
            "ENDPOINT": server.url,
            "HUGGINGFACE_CO_URL_TEMPLATE": server.url + "/{repo_id}/resolve/{revision}/{filename}",
            "HF_HUB_OFFLINE": False,
            "HF_HUB_CACHE": str(tmp_path / "hub"),
            "HF_HUB_ETAG_TIMEOUT": 2,
            "HF_HUB_DOWNLOAD_TIMEOUT": 2,
        }.items():
            monkeypatch.setattr(constants, name, value)
        monkeypatch.setenv("HF_TOKEN", TOKEN)
        monkeypatch.setenv("NO_PROXY", "127.0.0.1,localhost")
        sleep = time.sleep
        monkeypatch.setattr(time, "sleep", lambda seconds: sleep(seconds / 50))
        yield server


@pytest.fixture(scope="session")
def made(tmp_path_factory: pytest.TempPathFactory) -> SimpleNamespace:
    """Return a learngene, a descendant of it, and another learngene. No test changes them."""
    (learngene, three), other = artifacts(tmp_path_factory.mktemp("made"))
    return SimpleNamespace(learngene=learngene, three=three, other=other)


@pytest.fixture
def lgzoo(hub: StandIn) -> Lgzoo:
    """Return a function that runs a command.

    It returns the exit code, the output, the error line, and the requests that were sent.
    """

    def run(*words: object, input: str | None = None) -> SimpleNamespace:
        before = len(hub.requests)
        result = CliRunner().invoke(main, [str(word) for word in words])
        errors = [line for line in result.stderr.splitlines() if line.startswith("error: ")]
        assert (
            len(errors) == (0 if result.exit_code == 0 else 1) or "interrupted" in result.stderr
        ), result.stderr
        error = errors[0].removeprefix("error: ") if errors else ""
        return SimpleNamespace(
            code=result.exit_code,
            out=result.stdout,
            told=result.stderr,
            error=error,
            requests=hub.requests[before:],
        )

    return run
