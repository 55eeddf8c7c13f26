"""RabbitMQ's URL: what is taken, what is refused and how, and what Celery makes of it."""

from __future__ import annotations

from pathlib import Path

import pytest
from kombu import Connection

from brimful.addresses import FleetAddress
from brimful.addresses.broker_address import parse_broker_url
from brimful.celery import app_for, configuration
from brimful.config import Settings
from brimful.errors import BrokerUnreachable, BrokerUnusable, SettingError
from brimful.names import NO_BROKER
from brimful.state.rabbitmq.reach import broker_unreachable, check_broker
from brimful_worker.local.processes.environment import keyless_environment
from brimful_worker.local.server.valkey import free_port

PASSWORD, QUOTED = "p/w@1:#?%", "p%2Fw%401%3A%23%3F%25"
URL = f"amqp://fleet:{QUOTED}@rabbit.example:5673/of%2Fus"


def test_celery_connects_with_what_the_url_says() -> None:
    with Connection(parse_broker_url(URL).url) as connection:
        assert (connection.userid, connection.password) == ("fleet", PASSWORD)
        assert (connection.hostname, connection.port, connection.virtual_host) == ("rabbit.example", 5673, "of/us")


@pytest.mark.parametrize(
    ("url", "shown"),
    [
        ("amqp://host", "amqp://host:5672/%2F"),
        ("amqp://u:p@host/", "amqp://host:5672/%2F"),
        ("amqp://host//", "amqp://host:5672/%2F"),
        ("amqps://u:p@[::1]/v", "amqps://[::1]:5671/v"),
        ("amqp://u:p@a/v;amqp://u:p@b:1/v", "amqp://a:5672/v;amqp://b:1/v"),
    ],
)
def test_forms(url: str, shown: str) -> None:
    address = parse_broker_url(url)
    assert address.shown == shown
    assert "hush" not in repr(parse_broker_url("amqp://u:hush@host"))


@pytest.mark.parametrize(
    ("url", "said"),
    [
        ("redis://host", "must begin with amqp://"),
        ("host:5672", "must begin with amqp://"),
        ("amqp://u:hush@host:port/", "valid host and port"),
        ("amqp://u:hush/hush@host/", "host and port"),
        ("amqp://u:12/hush@host/", "percent-encoded"),
        ("amqp://u:12?hush@host/", "percent-encoded"),
        ("amqp://u:12/v?hush@host/", "percent-encoded"),
        ("amqp://u:12?hush&a@host/", "percent-encoded"),
        ("amqp://u:12#hush@host/", "percent-encoded"),
        ("amqp://u:hush@", "names no host"),
        ("amqp://u:hush@host/a/b", "percent-encoded"),
        ("amqp://u:hush@host?heartbeat=1", "'heartbeat' is no parameter"),
        ("amqp://u:hush@host?ssl_ca_certs=/x", "needs amqps://"),
        ("amqps://u:hush@host?ssl_ca_certs=/no/such", "cannot use its certificates"),
        ("amqps://u:hush@a;amqps://u:hush@b", "several nodes with TLS"),
    ],
)
def test_refusals_name_the_setting_and_no_password(url: str, said: str) -> None:
    with pytest.raises(SettingError, match=r"^BRIMFUL_BROKER_URL: ") as refused:
        parse_broker_url(url)
    assert said in str(refused.value)
    assert "hush" not in str(refused.value)


def test_the_setting_needs_a_redis(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("BRIMFUL_BROKER_URL", URL)
    with pytest.raises(SettingError, match=r"^BRIMFUL_BROKER_URL: BRIMFUL_REDIS_URL must be set too"):
        Settings.load()
    settings = Settings.load(redis_url="redis://here/0")
    assert settings.broker_url == URL
    assert QUOTED not in repr(settings)
    with pytest.raises(SettingError, match=r"^BRIMFUL_BROKER_URL: must begin"):
        Settings.load(redis_url="redis://here/0", broker_url="redis://there/0")


def test_only_the_environments_redis_has_the_environments_broker(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("BRIMFUL_BROKER_URL", URL)
    monkeypatch.setenv("BRIMFUL_REDIS_URL", "redis://here/1")
    found = configuration()
    assert found["broker_url"] == URL
    assert found["result_backend"] == "redis://here:6379/1"
    assert found["broker_transport_options"]["confirm_publish"] is True
    assert configuration(FleetAddress("redis://other/2"))["broker_url"] == "redis://other:6379/2"
    with app_for(FleetAddress("redis://here/1", "evals", URL)) as app:
        assert app.conf.broker_url == URL
        assert PASSWORD not in app.connection().as_uri()
        assert PASSWORD not in str(app.conf)


def test_a_rehearsal_has_no_part_in_it(monkeypatch: pytest.MonkeyPatch) -> None:
    environ = {"BRIMFUL_BROKER_URL": URL, "BRIMFUL_REDIS_URL": "redis://here/1", "ACS_API_KEY": "sk-unit-test"}
    for name, value in environ.items():
        monkeypatch.setenv(name, value)
    settings = Settings.load()
    assert keyless_environment(settings, environ)["BRIMFUL_BROKER_URL"] == URL
    own = settings.placed(redis_url="redis://own/0", api_base="http://127.0.0.1:1/v1")
    assert own.broker_url is None
    assert URL not in keyless_environment(own, environ).values()


def test_the_processes_of_a_rehearsal_do_not_read_the_broker_from_a_file(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / ".env").write_text(f"BRIMFUL_BROKER_URL={URL}\nBRIMFUL_REDIS_URL=redis://here/1\nACS_API_KEY=sk-unit\n")
    own = Settings.load().placed(redis_url="redis://own/0", api_base="http://127.0.0.1:1/v1")
    for name, value in keyless_environment(own, {}).items():
        monkeypatch.setenv(name, value)
    settings = Settings.load()
    assert (settings.redis_url, settings.broker_url) == ("redis://own/0", None)
    assert keyless_environment(settings)["BRIMFUL_BROKER_URL"] == NO_BROKER, "for processes that these start"


def test_the_tls_settings_verify_the_server(tmp_path: Path) -> None:
    tls = parse_broker_url("amqps://host").tls
    assert tls is not None
    assert tls["cert_reqs"].name == "CERT_REQUIRED"
    assert tls["server_hostname"] is None  # kombu puts the host's in
    (tmp_path / "broken.pem").write_text("no certificate")
    with pytest.raises(SettingError, match="cannot use its certificates"):
        parse_broker_url(f"amqps://host?ssl_ca_certs={tmp_path / 'broken.pem'}")


def test_what_is_said_of_a_server_that_is_away_or_refuses() -> None:
    from amqp import AccessRefused

    url = f"amqp://fleet:hush@127.0.0.1:{free_port()}/v"
    with pytest.raises(
        BrokerUnreachable, match=r"^no RabbitMQ at amqp://127.0.0.1:\d+/v: .*; check BRIMFUL_BROKER_URL"
    ):
        check_broker(url)
    said = broker_unreachable(url, AccessRefused("user fleet with hush"))
    assert isinstance(said, BrokerUnusable)
    assert "hush" not in str(said)
