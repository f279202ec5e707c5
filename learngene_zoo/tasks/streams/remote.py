"""A file at an http address, read forwards; a broken connection is resumed where it broke.

(fsspec reads such addresses only with `aiohttp`, which none of our dependencies installs, and gives up where a connection breaks.)
"""

import io
import time
from http.client import HTTPException
from typing import Any
from urllib.request import Request, urlopen

from learngene_zoo.errors import BadData, Unavailable

TRIES = 5
SECONDS = 60  # without a byte, before a connection counts as broken
CHUNK = 2**20
HUB = "https://huggingface.co/"


class Remote(io.RawIOBase):
    """What is at `address`, from its beginning. Raises `BadData` if there is nothing, `Unavailable` if it cannot be read."""

    def __init__(self, address: str) -> None:
        self.address, self.place = address, 0
        self.length: int | None = None
        self._connect()

    def readable(self) -> bool:
        """True. It cannot seek: skipped bytes come over the network as well."""
        return True

    def readinto(self, buffer: Any, /) -> int:
        """As every file. Raises `Unavailable` if the connection keeps breaking."""
        reason: Exception = HTTPException()
        for broken in range(TRIES):
            try:
                if broken:
                    time.sleep(2 ** (broken - 1))
                    self._connect()
                count: int = self._answer.readinto(buffer)
                if not count and self.length not in (None, self.place):
                    raise HTTPException(f"{self.place} of {self.length} bytes came")
            except (OSError, HTTPException, Unavailable) as error:
                self._answer.close()
                reason = error
            else:
                self.place += count
                return count
        raise _refusal(self.address, reason)

    def close(self) -> None:
        """Close the connection."""
        if hasattr(self, "_answer"):
            self._answer.close()
        super().close()

    def _connect(self) -> None:
        """Asks for everything from the byte that was reached."""
        request = Request(self.address)
        if self.place:
            request.add_header("Range", f"bytes={self.place}-")
        if self.address.startswith(HUB):
            from huggingface_hub import get_token

            if token := get_token():  # of the user; not sent on to where the Hub redirects
                request.add_unredirected_header("Authorization", f"Bearer {token}")
        try:
            self._answer = urlopen(request, timeout=SECONDS)
        except (OSError, HTTPException, ValueError) as error:
            raise _refusal(self.address, error) from None
        begins = self.place if self._answer.status == 206 else 0
        length = self._answer.headers.get("Content-Length")
        self.length = begins + int(length) if length else None
        for skipped in range(begins, self.place, CHUNK):  # the server ignored the range
            self._answer.read(min(CHUNK, self.place - skipped))


def _refusal(address: str, error: Exception) -> Exception:
    code = getattr(error, "code", None)  # of an answer, where there was one
    if code in (401, 403):
        return Unavailable(f"access to {address} is denied ({code}); ask its owner for access and log in to the Hub")
    if code in (404, 410):
        return BadData(f"there is nothing at {address} ({code}); check the name and the range")
    reason = " ".join(str(error).split())[:120] or type(error).__name__
    return Unavailable(f"{address} cannot be read ({reason}); check the connection and try again")
