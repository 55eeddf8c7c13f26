"""The undocumented parts of aiohttp that ``provider`` uses are what they were when its code was written."""

from __future__ import annotations

import ast
import re

import pytest

from support import house, upstream

MODULE = "brimful_worker.provider.transport.connections"
READ_IN = "aiohttp 3.14.5"
PARTS = {
    "aiohttp.connector:BaseConnector.__init__": "22e727926401",
    "aiohttp.connector:BaseConnector.connect": "feb27e0b4f13",
    "aiohttp.connector:BaseConnector._close": "bab2e01cf148",
    "aiohttp.connector:BaseConnector._get": "acea11d856aa",
    "aiohttp.connector:BaseConnector._release": "3c5da31d798b",
    "aiohttp.connector:BaseConnector._update_proxy_auth_header_and_build_proxy_req": "c06d4e4550ff",
    "aiohttp.connector:TCPConnector._create_connection": "342f43566d78",
    "aiohttp.connector:TCPConnector._create_direct_connection": "0e60301f509a",
    "aiohttp.connector:Connection": "b5df5f2510a8",
    "aiohttp.client_proto:ResponseHandler.abort": "61ffdc62df4a",
    "aiohttp.client_proto:ResponseHandler.close": "831a023faf06",
    "aiohttp.client_proto:ResponseHandler.connection_lost": "48256764c136",
    "aiohttp.client_proto:ResponseHandler.data_received": "7671fc74ce6a",
    "aiohttp.client_proto:ResponseHandler.pause_reading": "29fe844fdc4d",
    "aiohttp.client_proto:ResponseHandler.resume_reading": "634678be6273",
    "aiohttp.client_proto:ResponseHandler.set_response_params": "12a1a5114d39",
    "aiohttp.client_proto:ResponseHandler.should_close": "d05f9153e06e",
    "aiohttp.streams:DataQueue.exception": "d9e5eeaba353",
    "aiohttp.base_protocol:BaseProtocol.pause_reading": "ecb722655536",
    "aiohttp.base_protocol:BaseProtocol.resume_reading": "b90021d1d4ee",
    "aiohttp.streams:DataQueue.read": "e9e75dff543d",
    "aiohttp.streams:StreamReader.exception": "d9e5eeaba353",
    "aiohttp.streams:StreamReader.is_eof": "bd243c1ac1f8",
    "aiohttp.streams:StreamReader.set_exception": "0cdeadf2e820",
    "aiohttp.client_reqrep:ClientRequest.__init__": "2376fdd81b8c",
    "aiohttp.client_reqrep:ClientRequest.connection_key": "5e24a71ada56",
    "aiohttp.client_reqrep:ClientRequest.is_ssl": "224915acfa5d",
    "aiohttp.client_reqrep:ClientRequest.update_auto_headers": "927c0a3917a0",
    "aiohttp.client_reqrep:ClientRequest.update_body_from_data": "cb87160e8e48",
    "aiohttp.http_exceptions:ContentEncodingError": "063539991cce",
    "aiohttp.http_exceptions:HttpProcessingError": "c67974252eff",
}


@pytest.mark.parametrize(("part", "digest"), PARTS.items())
def test_a_part_of_aiohttp_is_unchanged(part: str, digest: str) -> None:
    upstream.check(part, digest, read_in=READ_IN, used_by=MODULE)


def test_a_changed_part_is_named_with_what_to_do() -> None:
    for part in ("aiohttp.connector:Connection", "aiohttp.connector:Connection.gone"):
        with pytest.raises(pytest.fail.Exception, match=f"not what it was in {re.escape(READ_IN)}") as raised:
            upstream.check(part, "0" * 12, read_in=READ_IN, used_by=MODULE)
        assert part in str(raised.value)
        assert MODULE in str(raised.value)


def test_one_module_of_the_provider_imports_aiohttp_s_internals() -> None:
    """``aiohttp`` itself and ``aiohttp.web`` are its public modules."""
    users = set()
    for module, file in house.modules().items():
        for node in ast.walk(ast.parse(file.read_text("utf-8"))):
            names = [node.module or ""] if isinstance(node, ast.ImportFrom) else []
            names += [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
            if any(name.startswith("aiohttp.") and name != "aiohttp.web" for name in names):
                users.add(module)
    assert {user for user in users if user.startswith("brimful_worker.provider")} == {MODULE}
