"""docker-compose.yml keeps its promises: nothing open, nothing unpinned, nothing without a health check or a password."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path
from typing import Any

import pytest
import yaml

ROOT = Path(__file__).parents[2]
COMPOSE = (ROOT / "docker-compose.yml").read_text()
SERVICES: dict[str, dict[str, Any]] = yaml.safe_load(COMPOSE)["services"]
LONG_RUNNING = sorted(set(SERVICES) - {"migrate"})


def test_the_services_are_those_of_the_runtime() -> None:
    """Two servers, one migration, workers and Flower; nothing else."""
    assert set(SERVICES) == {"postgres", "redis", "migrate", "worker", "flower"}


def test_only_flower_has_a_port_and_only_on_loopback() -> None:
    """Neither database nor broker can be reached from outside of the machine, or from the host at all."""
    assert {name: service["ports"] for name, service in SERVICES.items() if "ports" in service} == {
        "flower": ["127.0.0.1:5555:5555"]
    }
    assert not [name for name, service in SERVICES.items() if service.get("network_mode") or service.get("privileged")]


@pytest.mark.parametrize("name", sorted(SERVICES))
def test_images_are_pinned(name: str) -> None:
    """By a version, in compose and in the Dockerfile; `latest` and a bare name mean another image every month."""
    assert re.fullmatch(r"[a-z/-]+:\d+\.\d+(\.\d+)?(-[a-z]+)?", SERVICES[name]["image"])
    dockerfile = (ROOT / "config/Dockerfile").read_text()
    assert re.findall(r"^FROM (.*)$", dockerfile, re.MULTILINE) == ["python:3.12-slim-trixie"]


@pytest.mark.parametrize("name", LONG_RUNNING)
def test_whatever_runs_long_is_checked_and_restarted(name: str) -> None:
    """A health check with a limit, a restart policy, and logs that cannot fill the disk."""
    service = SERVICES[name]
    assert {"test", "interval", "timeout", "retries"} <= service["healthcheck"].keys()
    assert service["restart"] == "unless-stopped"
    assert service["logging"]["options"].keys() == {"max-size", "max-file"}


def test_nothing_starts_before_what_it_needs() -> None:
    """Workers wait for the migration's success, the migration for a database that answers."""
    needs = {
        name: {to: how["condition"] for to, how in service.get("depends_on", {}).items()} for name, service in SERVICES.items()
    }
    assert needs["migrate"] == {"postgres": "service_healthy"}
    assert needs["worker"] == {"migrate": "service_completed_successfully", "redis": "service_healthy"}
    assert needs["flower"] == {"redis": "service_healthy"}
    assert SERVICES["migrate"]["restart"] == "no"


def test_there_is_no_default_password() -> None:
    """Every password is a variable that must be set, with a sentence that says so; none is written down."""
    for name in ("DEUZ_POSTGRES_PASSWORD", "FLOWER_BASIC_AUTH", "DEUZ_APP"):
        uses = re.findall(r"\$\{" + name + r"\b([^}]*)\}", COMPOSE)
        assert uses
        assert all(use.startswith(":?set ") for use in uses), uses
    assert SERVICES["flower"]["environment"]["FLOWER_BASIC_AUTH"].startswith("${FLOWER_BASIC_AUTH:?")
    assert "FLOWER_UNAUTHENTICATED_API" not in COMPOSE


def test_redis_evicts_nothing_and_postgres_keeps_what_it_acknowledged() -> None:
    """An evicted doorbell is a lost one, and an acknowledged commit is the truth."""
    redis, postgres = SERVICES["redis"]["command"], SERVICES["postgres"]["command"]
    assert redis[redis.index("--maxmemory-policy") + 1] == "noeviction"
    assert {"synchronous_commit=on", "fsync=on"} <= set(postgres)


@pytest.mark.parametrize("name", ["migrate", "worker", "flower"])
def test_our_own_processes_have_no_rights_to_lose(name: str) -> None:
    """No capabilities, no new privileges, a root that cannot be written, and an account that is not root."""
    service = SERVICES[name]
    assert service["cap_drop"] == ["ALL"]
    assert service["read_only"] is True
    assert "no-new-privileges:true" in service["security_opt"]
    assert (ROOT / "config/Dockerfile").read_text().rstrip().endswith("USER deuz")


def test_the_image_holds_no_keys() -> None:
    """The build context is a list of what goes in, so that .env and virtual environments stay outside."""
    lines = (ROOT / "config/Dockerfile.dockerignore").read_text().splitlines()
    rules = [line for line in lines if not line.startswith("#")]
    assert rules[0] == "*"
    assert set(rules[1:]) == {"!pyproject.toml", "!README.md", "!deuz_workers", "!config", "**/__pycache__"}


def test_workers_get_longer_to_stop_than_their_drain_takes() -> None:
    """Docker's patience is above `drain_grace_ms`, so that no model call is cut off after it was paid."""
    settings = tomllib.loads((ROOT / "config/deuz.toml").read_text())
    seconds = int(SERVICES["worker"]["stop_grace_period"].removesuffix("s"))
    assert seconds * 1000 > settings["drain_grace_ms"]
