"""The settings: every ``BRIMFUL_*`` variable, and the provider's key and URL, from flags, environment and ``.env``.

A flag beats the environment, the environment beats ``.env``, ``.env`` beats the profile. The key is a
:class:`pydantic.SecretStr`, which prints as stars.
"""

from __future__ import annotations

import hashlib
import os
import re
from functools import cached_property
from pathlib import Path
from typing import Any

from pydantic import ByteSize, Field, SecretStr, ValidationError, ValidationInfo, field_validator
from pydantic_settings import SettingsConfigDict

from brimful.addresses import checked_broker_url, with_tls_files
from brimful.credentials import DOTENV, checked_url, first_set, in_dotenv, is_set, key_file, read_key
from brimful.errors import SettingError
from brimful.limits import default_guard_s
from brimful.names import BATCH_CALLER_VARIABLE, BATCH_VARIABLE, MOST_WEIGHT, LogFormat, LogLevel
from brimful.profile import DEFAULT_PROVIDER, Profile, ProviderChoice, choose_provider, load_prices, profile_in_use
from brimful.profile.slots import AUTO, Slots
from brimful.serve_settings import ServeSettings
from brimful.words.setting_faults import fault_text, former_values, unknown_variables

_REHEARSE = "`brimful run` and `brimful up` need none with --rehearse"
REHEARSAL_KEY = "rehearsal-"
"""How a generated key begins. It is no provider's."""


class Settings(ServeSettings):
    """One process's settings, built by :meth:`load`."""

    model_config = SettingsConfigDict(
        env_prefix="BRIMFUL_",
        env_file=DOTENV,
        extra="ignore",
        frozen=True,
        env_ignore_empty=True,
        hide_input_in_errors=True,
    )

    # where
    provider: str | None = None
    """The provider profile: acs, kios, openai, azure, openrouter, anthropic, portkey, local, or one of your own.
    Default: the one whose variables are set, or else acs."""
    profiles: Path | None = None
    """A TOML file with provider profiles of your own."""
    prices: Path | None = None
    """A TOML file with prices of models, which take precedence over the profile's."""
    redis_ca_file: Path | None = None
    """Certificate authorities that sign Redis's certificate, besides the system's."""
    redis_cert_file: Path | None = None
    """This process's own certificate for Redis, if the server asks for one."""
    redis_key_file: Path | None = None
    """The key of that certificate, if the certificate's file does not hold it."""
    fleet: str = ""
    """The fleet's name, where fleets of several API keys share a Redis. Default: the unnamed one."""
    redis_url: str | None = Field(None, repr=False)
    """Redis's URL: redis://, rediss://, unix:// or sentinel://. Default: an embedded Valkey on this machine."""
    broker_url: str | None = Field(None, repr=False)
    """URL of RabbitMQ as the broker beside Redis: amqp:// or amqps://; ``redis`` = none. Default: none."""

    # limits
    slots: Slots | None = None
    """Active requests of the key; ``auto`` = the workers learn how many it allows. Default: the profile's."""
    starts: int | None = Field(None, ge=0)
    """Requests started in any window; 0 = no limit. Default: the profile's."""
    window_s: float | None = Field(None, gt=0, lt=1e12)
    """The window, in seconds. Default: the profile's."""
    tokens: int | None = Field(None, ge=0)
    """Tokens requested in any window; 0 = no limit. Default: the profile's."""
    guard_s: float | None = Field(None, ge=0, lt=1e12)
    """Seconds by which the window is widened. Default: 0.2 s + 1 % of the window."""
    lease_s: float = Field(8.0, gt=0.5, le=60)
    """Seconds after which the slots of a silent process go to others."""
    cooldown_s: float = Field(1.0, ge=0, lt=1e12)
    """Seconds for which a slot stays taken after its request was aborted: the provider may still be working on it."""
    release_delay_s: float = Field(0.02, ge=0, le=1)
    """Most seconds between an answer and the release of its slot: the provider may count the request for a moment
    longer. The delay is 1 % of the request's time, at least 5 ms; 0 = none."""
    guardian: bool = True
    """Whether a companion process kills a worker that is stopped or frozen before its slots go to others: its requests
    may still be open."""
    reserve_slots: int = Field(0, ge=0)
    """Slots that batch requests leave to interactive ones."""
    reserve_starts: int = Field(0, ge=0)
    """Starts in a window that batch requests leave to interactive ones."""
    starvation_s: float = Field(30.0, gt=0, lt=1e12)
    """Seconds of waiting after which a batch request takes turns with interactive ones."""

    # one request
    model: str | None = None
    """The model of requests that name none. Default: the profile's."""
    timeout_s: float = Field(120.0, gt=0, lt=1e12)
    """Seconds of one attempt, from sending to the last byte of the answer."""
    connect_timeout_s: float = Field(10.0, gt=0, lt=1e12)
    """Seconds to connect to the provider."""
    attempts: int = Field(8, ge=1)
    """Attempts per request on transient failures, answers of 429 aside."""
    throttle_attempts: int = Field(50, ge=1)
    """Answers of 429 after which a request fails."""
    deadline_s: float = Field(3600.0, gt=0)
    """Seconds from a request's first start to its failure, retries and pauses included."""
    backoff_base_s: float = Field(0.5, gt=0, lt=1e12)
    """Most seconds before the second attempt; each further one may wait twice as long."""
    backoff_cap_s: float = Field(30.0, gt=0)
    """Most seconds between two attempts."""
    retry_after_cap_s: float = Field(300.0, gt=0)
    """Most seconds of a Retry-After that are obeyed."""
    max_answer_mb: float = Field(64.0, gt=0, lt=1e12)
    """Megabytes of an answer at most, decompressed; all that a process reads at once may be four times, and the values
    of one in memory eight times as large. A larger answer is a failure, and is not asked for again."""
    job_poll_s: float = Field(1.0, gt=0, lt=1e12)
    """Seconds before the second poll of a Job; the pauses grow to ten times this."""
    circuit_breaker: int = Field(20, ge=0)
    """Consecutive failures, fleet-wide, that open the circuit breaker; 0 = never."""

    # the fleet
    workers: int = Field(4, ge=1)
    """Worker processes of a fleet on this machine."""
    concurrency: int = Field(64, ge=1, le=100_000)
    """Tasks (shards and single requests) that one worker process runs at once; a quarter more if both workloads wait.
    More than what fills the slots, since a shard counts until its last request has ended."""
    worker_max_memory: ByteSize | None = None
    """Memory of a worker, such as 512MiB, beyond which it ends gracefully, to be started again. Default: no limit."""
    visibility_timeout_s: int = Field(15, ge=3)
    """Seconds without renewal after which a dead worker's task is redelivered."""
    result_expires_s: int = Field(86_400, ge=60)
    """Seconds for which Redis keeps a single request's result and its idempotency key, the front door's too. The
    workers' setting counts."""
    run_expires_s: int = Field(604_800, ge=60)
    """Seconds for which Redis keeps a run's completions that nobody collects. The workers' setting counts."""
    log_level: LogLevel = LogLevel.INFO
    """Level of a worker's log: DEBUG, INFO, WARNING or ERROR."""
    log_format: LogFormat = LogFormat.TEXT
    """Format of the logs of workers, front doors and Flower: text, or json (one object a record)."""
    state_dir: Path | None = None
    """Where the embedded Valkey keeps its data. Default: $XDG_STATE_HOME/brimful."""
    weight: float = Field(1.0, ge=1 / MOST_WEIGHT, le=MOST_WEIGHT)
    """The share of a run or a map beside others on the same fleet: one of weight 3 gets three times as many requests as
    one of weight 1. From 0.01 to 100."""

    # Flower and metrics
    flower_port: int = Field(0, ge=0, le=65535)
    """Flower's port; 0 = a free one."""
    flower_address: str = "127.0.0.1"
    """The address on which Flower listens."""
    flower_user: str = "brimful"
    """Flower's user."""
    flower_password: SecretStr | None = None
    """Flower's password. Default: one is generated and printed."""
    metrics_port: int | None = Field(None, ge=0, le=65535)
    """Port of a worker's Prometheus metrics and /healthz; further workers on the host take the next free ones. Default:
    no metrics."""
    metrics_address: str = "127.0.0.1"
    """The address on which the metrics are served."""
    metrics_token: SecretStr | None = None
    """Asked for by /metrics (``Authorization: Bearer …``), also by Flower's. Default: open to all local users."""
    flower_db: Path | None = None
    """A file where Flower keeps its history across restarts. Default: in a local fleet's directory; elsewhere none."""

    @field_validator("fleet")
    @classmethod
    def _check_fleet(cls, fleet: str) -> str:
        if not re.fullmatch(r"[A-Za-z0-9_-]{0,64}", fleet):
            raise ValueError("a fleet's name has letters, digits, - and _ only, 64 at most")
        return fleet

    @field_validator("redis_url")
    @classmethod
    def _check_redis_url(cls, url: str | None, others: ValidationInfo) -> str | None:
        """The URL with the files of the fields above, so that it stands for the whole connection."""
        if url is None:
            return None
        files = {name: others.data.get(f"redis_{name}_file") for name in ("ca", "cert", "key")}
        try:
            return with_tls_files(url, **files)
        except SettingError as error:
            raise ValueError(str(error).removeprefix("BRIMFUL_REDIS_URL: ")) from None

    @field_validator("broker_url")
    @classmethod
    def _check_broker_url(cls, url: str | None, others: ValidationInfo) -> str | None:
        return checked_broker_url(url, alone="redis_url" in others.data and not others.data["redis_url"])

    @classmethod
    def load(cls, *, typed: bool = False, **flags: Any) -> Settings:
        """``flags`` are fields (None = not given). Raises SettingError naming the variable; the option if ``typed``."""
        try:
            given = {name: value for name, value in flags.items() if value is not None}
            return cls(**former_values(given, {**in_dotenv(), **os.environ}), **given)
        except ValidationError as error:
            options = given if typed else ()
            raise SettingError("; ".join(fault_text(fault, options) for fault in error.errors())) from None

    @classmethod
    def unknown_variables(cls) -> list[tuple[str, str]]:
        """(what is wrong, what to do) for each ``BRIMFUL_*`` variable that is no setting, such as a misspelt limit."""
        stated = (*os.environ, *in_dotenv())
        return unknown_variables(cls.model_fields, stated, (BATCH_VARIABLE, BATCH_CALLER_VARIABLE))

    @property
    def slots_auto(self) -> bool:
        """Whether the workers learn how many slots the key has."""
        return self.slots == AUTO

    @cached_property
    def profile(self) -> Profile:
        """The provider's profile with the limits and the model of these settings."""
        names = ("slots", "starts", "window_s", "tokens", "model")
        # 0 starts or tokens: no such limit.
        values = {name: getattr(self, name) for name in names if name != "slots" or not self.slots_auto}
        given: dict[str, Any] = {name: value or None for name, value in values.items() if value is not None}
        profile = profile_in_use(self.provider_choice.name, self.profiles, first_set)
        return self._with_own_prices(profile.model_copy(update=given))

    def _with_own_prices(self, profile: Profile) -> Profile:
        if self.prices is None:
            return profile
        own = load_prices(self.prices)
        return profile.model_copy(update={"prices": own | profile.prices | own})  # own first, in order too

    @cached_property
    def provider_choice(self) -> ProviderChoice:
        """The provider that was named, or that the environment variables select. Raises SettingError."""
        return ProviderChoice(self.provider) if self.provider else choose_provider(self.profiles, first_set)

    def without_guess(self) -> Settings:
        """These settings, with the default provider if only OPENAI_API_KEY selected another one."""
        if self.provider_choice.sure:
            return self
        copy = self.model_copy(update={"provider": DEFAULT_PROVIDER})
        for derived in ("provider_choice", "profile", "api_base", "api_key", "key_tag"):
            copy.__dict__.pop(derived, None)
        return copy

    @cached_property
    def api_base(self) -> str:
        """The provider's base URL without a trailing slash. Raises SettingError naming the variables."""
        names = self.profile.base_env
        base, name = first_set(names) or self.profile.base_url, next(filter(is_set, names), names[0])
        if not base:
            raise SettingError(f"no provider URL: set {name}, for instance in .env ({self._way_out})")
        return checked_url(base, name)

    @cached_property
    def api_key(self) -> SecretStr:
        """The API key. Raises SettingError naming the variables."""
        if (path := self.api_key_file) is not None:
            return read_key(path)
        key = first_set(self.profile.key_env)
        key = (key or self.profile.key_default or "").strip()
        if not key:
            raise SettingError(f"no API key: set {self.profile.key_env[0]}, for instance in .env ({self._way_out})")
        return SecretStr(key)

    @property
    def _way_out(self) -> str:
        """Other ways than setting a variable of this provider."""
        if self.provider_choice.why or self.provider is not None:
            others = "BRIMFUL_PROVIDER, or --provider of `brimful run`, names another"
            return f"{_REHEARSE}; this is the provider {self.profile.name}; {others}"
        return f"{_REHEARSE}; with a key of another provider, set BRIMFUL_PROVIDER, as in BRIMFUL_PROVIDER=openai"

    @property
    def api_key_file(self) -> Path | None:
        """The file that holds the key, as a mounted secret does; None if a variable holds it."""
        return key_file(self.profile.key_env)

    @cached_property
    def key_tag(self) -> str:
        """The key's fingerprint, the hash tag of all its Redis keys: 64 bits of a salted SHA-256."""
        secret = self.api_key.get_secret_value().encode()
        return hashlib.sha256(b"brimful key tag\0" + secret).hexdigest()[:16]

    def with_profile(self, profile: Profile, timeout_s: float) -> Settings:
        """A copy for a client, with the workers' profile and timeout of a request. Its own prices take precedence."""
        copy = self.model_copy(update={"timeout_s": timeout_s})
        copy.__dict__["profile"] = self._with_own_prices(profile)  # takes precedence over the cached property
        return copy

    def placed(self, *, redis_url: str, api_base: str | None = None, api_key: SecretStr | None = None) -> Settings:
        """A copy for a started fleet: with its Redis, and in a rehearsal with the mock gateway's URL and its key."""
        # A Redis of its own carries the task messages too.
        places = {"redis_url": redis_url, "broker_url": self.broker_url if redis_url == self.redis_url else None}
        copy = type(self).model_construct(self.model_fields_set | {"redis_url"}, **{**dict(self), **places})
        # Values of the cached properties, which would otherwise read the environment.
        copy.__dict__["api_base"] = api_base if api_base is not None else self.api_base
        copy.__dict__["api_key"] = api_key if api_key is not None else self.api_key
        return copy

    @property
    def guard(self) -> float:
        """Seconds by which the window is widened, against jitter between grant and arrival."""
        return self.guard_s if self.guard_s is not None else default_guard_s(self.profile.window_s)
