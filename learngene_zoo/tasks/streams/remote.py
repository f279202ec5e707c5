"""A file at an http address, read forwards; a broken connection is resumed where it broke."""

import time
from http.client import HTTPException
from typing import Any
from urllib.error import HTTPError
from urllib.parse import urlsplit
from urllib.request import Request, urlopen

from learngene_zoo.errors import BadData, Unavailable

TRIES = 5
SECONDS = 60  # without a byte, before a connection counts as broken
CHUNK = 2**20
HUB = "huggingface.co"


class Remote:
    """What is at `address`, from its beginning. Raises `BadData` if there is nothing, `Unavailable` if it cannot be read."""

    def __init__(self, address: str, pause: float = 1.0) -> None:
        self.address, self.pause = address, pause
        self.place = 0
        self.length: int | None = None
        self._answer = self._connected()

    def read(self, size: int, /) -> bytes:
        """Up to `size` bytes; fewer only at the end. Raises `Unavailable` if the connection keeps breaking."""
        data, broken = bytearray(), 0
        while len(data) < size and self.place != self.length:
            try:
                if broken:
                    time.sleep(self.pause * 2 ** (broken - 1))
                    self._answer = self._connected()
                piece = self._answer.read(size - len(data))
                if not piece and self.length is None:
                    break
                if not piece:
                    raise HTTPException(f"{self.place} of {self.length} bytes came")
            except (OSError, HTTPException, Unavailable) as error:
                self._answer.close()
                broken += 1
                if broken == TRIES:
                    raise _unreachable(self.address, error) from None
                continue
            data += piece
            self.place += len(piece)
            broken = 0
        return bytes(data)

    def seekable(self) -> bool:
        """False: skipped bytes come over the network as well."""
        return False

    def close(self) -> None:
        """Close the connection."""
        self._answer.close()

    def _connected(self) -> Any:
        """The server's answer, from the byte that was reached."""
        request = Request(self.address)
        if self.place:
            request.add_header("Range", f"bytes={self.place}-")
        token = _token(self.address)
        if token:
            request.add_unredirected_header(
                "Authorization", f"Bearer {token}"
            )  # not sent on to where the Hub redirects
        try:
            answer = urlopen(request, timeout=SECONDS)
        except HTTPError as error:
            raise _refusal(self.address, error) from None
        except (OSError, HTTPException, ValueError) as error:
            raise _unreachable(self.address, error) from None
        begins = self.place if answer.status == 206 else 0
        length = answer.headers.get("Content-Length")
        self.length = begins + int(length) if length else None
        for skipped in range(begins, self.place, CHUNK):  # the server ignored the range
            answer.read(min(CHUNK, self.place - skipped))
        return answer


def _token(address: str) -> str | None:
    """The user's token, for the Hub only."""
    parts = urlsplit(address)
    if parts.scheme != "https" or parts.hostname != HUB:
        return None
    from huggingface_hub import get_token

    return get_token()


def _refusal(address: str, error: HTTPError) -> Exception:
    if error.code in (401, 403):
        return Unavailable(
            f"access to {address} is denied ({error.code}); ask its owner for access and log in to the Hub"
        )
    if error.code in (404, 410):
        return BadData(f"there is nothing at {address} ({error.code}); check the name and the range")
    return _unreachable(address, error)


def _unreachable(address: str, error: Exception) -> Unavailable:
    reason = " ".join(str(error).split())[:120] or type(error).__name__
    return Unavailable(f"{address} cannot be read ({reason}); check the connection and try again")
