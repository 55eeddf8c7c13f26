"""Redis URLs: what is understood, what is refused, and that no message shows a password."""

from __future__ import annotations

from pathlib import Path

import pytest

from brimful.addresses import FleetAddress
from brimful.addresses.redis_address import parse_redis_url
from brimful.config import Settings
from brimful.errors import SettingError
from brimful.state.redis_url import broker_url, celery_settings, redis_client, without_password
from support.tls import certificate_in

PASSWORD = "p/w@1"
QUOTED = "p%2Fw%401"


@pytest.mark.parametrize(
    ("url", "places", "db", "login"),
    [
        ("redis://host", (("host", 6379),), 0, (None, None)),
        (f"redis://:{QUOTED}@host:1?db=6", (("host", 1),), 6, (None, PASSWORD)),
        (f"redis://fleet:{QUOTED}@[::1]/5/", (("::1", 6379),), 5, ("fleet", PASSWORD)),
        (f"redis://host/4?username=a%40b&password={QUOTED}", (("host", 6379),), 4, ("a@b", PASSWORD)),
        ("redis://host/4?password=p/w@1", (("host", 6379),), 4, (None, PASSWORD)),
        (f"rediss://:{QUOTED}@host/3", (("host", 6379),), 3, (None, PASSWORD)),
        (f"unix:///run/a%20b.sock?db=5&password={QUOTED}", (), 5, (None, PASSWORD)),
        (f"unix://fleet:{QUOTED}@/run/a%20b.sock", (), 0, ("fleet", PASSWORD)),
        (f"sentinel://fleet:{QUOTED}@a;b:2/1?master=m", (("a", 26379), ("b", 2)), 1, ("fleet", PASSWORD)),
        (f"sentinel://:{QUOTED}@a/1;sentinel://:{QUOTED}@b/1", (("a", 26379), ("b", 26379)), 1, (None, PASSWORD)),
    ],
)
def test_every_form_means_the_same_to_celery_and_to_redis_py(
    url: str, places: tuple[tuple[str, int], ...], db: int, login: tuple[str | None, str | None]
) -> None:
    from celery import Celery

    address = parse_redis_url(url)
    assert (address.places, address.db, (address.username, address.password)) == (places, db, login)
    with Celery("test", set_as_current=False) as app:
        app.conf.update(celery_settings(FleetAddress(url), 15))
        channel = app.connection_for_read().transport.Channel
        broker = channel._connparams(
            type("C", (channel,), {"connection": _Connected(app), "__init__": lambda _: None})()
        )
        backend = app.backend.connparams
    own = redis_client(url).connection_pool.connection_kwargs
    for name, value in (("db", db), ("username", login[0]), ("password", login[1])):
        assert [broker.get(name), backend.get(name), own.get(name)] == [value] * 3, name
    if address.scheme == "unix":
        assert {options["path"] for options in (broker, backend, own)} == {"/run/a b.sock"}


class _Connected:
    """What kombu's channel asks of its transport."""

    default_port = 6379

    def __init__(self, app: object) -> None:
        self.client = app.connection_for_read()  # type: ignore[attr-defined]


@pytest.mark.parametrize(
    ("url", "why"),
    [
        ("http://x", "must begin with redis://, rediss://, unix:// or sentinel://"),
        ("host:6379", "must begin with"),
        (f"redis://:{PASSWORD}@host", "write / as %2F"),
        ("redis://:hush#1@host", "write / as %2F"),
        ("redis://u:12/hush@host", "write / as %2F"),
        ("redis://u:12?hush@host", "write / as %2F"),
        ("redis://u:12/0?hush@host/0", "write / as %2F"),
        ("redis://u:12?hush&a@host/0", "write / as %2F"),
        ("unix://:hush/hush@/run/valkey.sock", "write / as %2F"),
        ("sentinel://u:12;hush@host", "; as %3B"),
        ("redis://host:port", "no valid host and port"),
        ("redis://a:1,b:2", "no valid host and port"),
        ("redis://host/main", "the database must be one number"),
        ("sentinel://a/1;b/2", "the database must be one number"),
        ("sentinel://:hush@a;:hush2@b", "several users or passwords"),
        ("redis://host?timeout=5", "'timeout' is no parameter of a redis:// URL"),
        ("redis://host?ssl_cert_reqs=required", "'ssl_cert_reqs' is no parameter of a redis:// URL"),
        ("rediss://host?ssl_cert_reqs=maybe", "ssl_cert_reqs=maybe: must be required or none"),
        ("rediss://host?ssl_ca_certs=/nowhere.pem", "cannot read certificates from /nowhere.pem"),
        ("rediss://host?ssl_keyfile=/k.pem", "a client key needs its certificate"),
        ("sentinel://host?ssl_ca_certs=/c.pem", "needs ssl=true"),
        ("unix://run/valkey.sock", "a socket's path begins with /"),
        ("unix://", "names no socket"),
    ],
)
def test_what_cannot_be_done_is_refused_with_the_reason(url: str, why: str) -> None:
    with pytest.raises(SettingError, match=r"^BRIMFUL_REDIS_URL: ") as refused:
        Settings.load(redis_url=url)
    assert why in str(refused.value)
    assert "hush" not in str(refused.value)
    assert PASSWORD not in str(refused.value)


@pytest.mark.parametrize("stated", ["required", "CERT_REQUIRED", "optional"])
def test_tls_is_verified_whatever_a_library_calls_it(stated: str) -> None:
    for url in (
        "rediss://host",
        f"rediss://host?ssl_cert_reqs={stated}",
        f"sentinel://h?ssl=true&ssl_cert_reqs={stated}",
    ):
        told = celery_settings(FleetAddress(url), 15)
        assert told["broker_use_ssl"]["ssl_cert_reqs"] == told["redis_backend_use_ssl"]["ssl_cert_reqs"] == "required"
        assert redis_client(url).connection_pool.connection_kwargs["ssl_cert_reqs"] == "required"


def test_the_settings_name_ca_and_client_certificate(tmp_path: Path) -> None:
    certificate, _ = certificate_in(tmp_path)
    files = {"redis_ca_file": certificate, "redis_cert_file": certificate, "redis_key_file": tmp_path / "key.pem"}
    url = Settings.load(redis_url="rediss://host/2", **files).redis_url
    assert url is not None
    tls = parse_redis_url(url).tls
    assert tls is not None
    assert tls["ssl_ca_certs"] == tls["ssl_certfile"] == str(certificate)
    assert Settings.load(redis_url=url, **files).redis_url == url, "it may be given again"
    assert without_password(url) == "rediss://host:6379/2"
    assert Settings.load(redis_url="redis://host", **files).redis_url == "redis://host"
    with pytest.raises(SettingError, match="BRIMFUL_REDIS_CA_FILE"):
        Settings.load(redis_url="rediss://host", redis_ca_file=tmp_path / "key.pem")
    with pytest.raises(SettingError, match="BRIMFUL_REDIS_CERT_FILE"):
        Settings.load(redis_url="rediss://host", redis_cert_file=certificate)


@pytest.mark.parametrize("url", ["redis://u:12/hush@host", "u:hush@host", "u:hush://@host", "hush"])
def test_nothing_of_a_url_that_is_not_understood_is_shown(url: str) -> None:
    assert "hush" not in without_password(url)
    assert without_password(url).endswith("…")


def test_the_settings_repr_shows_no_url() -> None:
    assert QUOTED not in repr(Settings.load(redis_url=f"redis://:{QUOTED}@host"))


def test_sentinels_may_have_a_login_of_their_own() -> None:
    url = "sentinel://:hush@a?sentinel_username=s&sentinel_password=t&ssl=true"
    kwargs = celery_settings(FleetAddress(url), 15)["broker_transport_options"]["sentinel_kwargs"]
    assert (kwargs["username"], kwargs["password"], kwargs["ssl"]) == ("s", "t", True)
    assert broker_url(url) == "sentinel://:hush@a:26379/0"
    assert "hush" not in repr(parse_redis_url(url))
