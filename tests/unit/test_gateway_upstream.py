"""The undocumented parts of aiohttp that the mock gateway's server uses are what they were when it was written."""

from __future__ import annotations

import pytest

from support import upstream

PARTS = {
    "aiohttp.web_server:Server.__init__": "04ea730a5b52",
    "aiohttp.web_server:Server.__call__": "6cf25a303a36",
    "aiohttp.web_server:Server.connection_made": "4f71ee83cadc",
    "aiohttp.web_server:Server.connection_lost": "e31c6867b7ff",
    "aiohttp.web_server:Server.pre_shutdown": "154f625814e5",
    "aiohttp.web_server:Server.shutdown": "39ff10dd66c8",
    "aiohttp.web_request:BaseRequest.__init__": "7ebe75fc6bde",
    "aiohttp.web_protocol:RequestHandler.shutdown": "1b544646c995",
}


@pytest.mark.parametrize(("part", "digest"), PARTS.items())
def test_a_part_of_aiohttp_is_unchanged(part: str, digest: str) -> None:
    upstream.check(part, digest, read_in="aiohttp 3.14.5", used_by="brimful_worker.gateway.server")
