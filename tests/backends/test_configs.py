"""The configuration files in collector/ and docker-compose.yml: accepted, safe, and of one mind."""

from __future__ import annotations

import re
import shutil
import subprocess
from typing import TYPE_CHECKING, Any

import pytest
import yaml

from tests.backends import programs
from tests.backends.programs import ROOT

if TYPE_CHECKING:
    from pathlib import Path

    from tests.backends.programs import Binaries

FOLDER = ROOT / "collector"
COLLECTOR_FILES = ("config.yaml", "tail-sampling.yaml", "gateway.yaml")

# Sections of a Tempo 3.0 configuration, from its published list of options; a section that is none
# of them, as the ingester and the compactor of 2.x, keeps Tempo from starting.
TEMPO_SECTIONS = {
    "target",
    "http_api_prefix",
    "memory",
    "server",
    "internal_server",
    "distributor",
    "live_store_client",
    "querier",
    "query_frontend",
    "metrics_generator",
    "ingest",
    "block_builder",
    "storage",
    "overrides",
    "memberlist",
    "usage_report",
    "cache",
    "backend_scheduler",
    "backend_scheduler_client",
    "backend_worker",
    "live_store",
    "stream_over_http_enabled",
    "multitenancy_enabled",
}


def read(path: Path) -> Any:
    """A YAML file's content."""
    return yaml.safe_load(path.read_text())


def run(*command: object) -> str:
    """What a command prints; AssertionError with it where the command fails."""
    done = subprocess.run(  # noqa: S603 - our own arguments
        [str(part) for part in command], capture_output=True, text=True, check=False, timeout=60
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.mark.parametrize("name", COLLECTOR_FILES)
def test_the_collector_accepts_the_file(binaries: Binaries, name: str) -> None:
    """`validate` finds no fault, with the defaults that hold where no variable is set."""
    run(binaries.collector, "validate", "--config", FOLDER / name)


def test_the_build_has_the_components_that_are_named_and_no_others(binaries: Binaries) -> None:
    """Every component that is built is named in a configuration, or is one that tests need."""
    built = {
        (kind, component["name"])
        for kind, components in yaml.safe_load(run(binaries.collector, "components")).items()
        if kind in ("receivers", "processors", "connectors", "exporters", "extensions")
        for component in components
    }
    configurations = [read(FOLDER / name) for name in COLLECTOR_FILES]
    configurations.append(yaml.safe_load(programs.TO_FILE))
    named = {
        (kind, component.split("/")[0])
        for configuration in configurations
        for kind in ("receivers", "processors", "connectors", "exporters", "extensions")
        for component in configuration.get(kind, ())
    }
    # test_delivered.py demands a token of whoever sends.
    for_tests = {("extensions", "bearertokenauth")}
    assert built - for_tests == named


def test_tail_sampling_differs_from_the_plain_file_only_in_sampling() -> None:
    """Whoever changes from one file to the other keeps addresses, limits, queue and metrics."""
    plain, sampling = (read(FOLDER / name) for name in ("config.yaml", "tail-sampling.yaml"))
    del sampling["processors"]["tail_sampling"]
    del plain["service"]["pipelines"]["traces"]
    del (
        sampling["service"]["pipelines"]["traces/all"],
        sampling["service"]["pipelines"]["traces/kept"],
    )
    assert sampling == plain


def test_no_metric_has_a_dimension_without_bound() -> None:
    """The fqn, the step's number and ids stay in the spans."""
    dimensions = read(FOLDER / "config.yaml")["connectors"]["span_metrics"]["dimensions"]
    assert [dimension["name"] for dimension in dimensions] == [
        "modtrack.phase",
        "modtrack.module.type",
        "modtrack.rank",
    ]


def test_prometheus_accepts_the_file() -> None:
    """`promtool check config` finds no fault."""
    promtool = shutil.which("promtool")
    if promtool is None:
        pytest.skip("promtool is not installed: it comes with Prometheus")
    run(promtool, "check", "config", FOLDER / "prometheus.yaml")


def test_tempo_has_only_sections_of_version_3() -> None:
    """No section is left from 2.x, and nothing is sent home."""
    tempo = read(FOLDER / "tempo.yaml")
    assert set(tempo) <= TEMPO_SECTIONS
    assert tempo["usage_report"] == {"reporting_enabled": False}


class TestCompose:
    """docker-compose.yml, read; `docker compose` checks it where it is installed."""

    compose: Any = read(ROOT / "docker-compose.yml")
    services: Any = compose["services"]

    def test_docker_accepts_the_file(self) -> None:
        """`docker compose config` finds no fault, and each profile has its services."""
        docker = shutil.which("docker")
        asked = [docker, "compose", "version"]
        if docker is None or subprocess.run(asked, capture_output=True, check=False).returncode:  # noqa: S603
            pytest.skip("docker compose is not installed")
        command = (docker, "compose", "--project-directory", ROOT)
        by_default = run(*command, "config", "--services").split()
        assert sorted(by_default) == ["collector-jaeger", "jaeger", "ready-jaeger"]
        tempo = run(*command, "--profile", "tempo", "config", "--services").split()
        assert sorted(tempo) == ["collector-tempo", "grafana", "prometheus", "ready-tempo", "tempo"]

    def test_every_service_is_in_one_profile(self) -> None:
        """Jaeger's is the default, named in .env; each has its Collector on the usual ports."""
        profiles = {name: service["profiles"] for name, service in self.services.items()}
        assert {profile for [profile] in profiles.values()} == {"jaeger", "tempo"}
        assert "COMPOSE_PROFILES=jaeger" in (ROOT / ".env").read_text().splitlines()
        for name in ("collector-jaeger", "collector-tempo"):
            assert self.services[name]["ports"] == ["127.0.0.1:4317:4317", "127.0.0.1:4318:4318"]

    def test_everything_is_published_on_the_loopback_address_only(self) -> None:
        """Nobody else on the network reaches a port; no service is in the machine's network."""
        for service in self.services.values():
            for port in service.get("ports", ()):
                assert re.fullmatch(r"127\.0\.0\.1:\d+:\d+", port)
            assert "network_mode" not in service

    def test_every_image_is_pinned(self) -> None:
        """To a whole version; the Collector to the one that is built and tested here."""
        images = {service["image"] for service in self.services.values()}
        assert all(re.fullmatch(r"[a-z/-]+:v?\d+\.\d+\.\d+", image) for image in images)
        version = read(ROOT / "scripts" / "backends" / "builder.yaml")["dist"]["version"]
        assert f"otel/opentelemetry-collector-contrib:{version}" in images

    def test_every_service_is_watched(self) -> None:
        """By a health check of its own, or by the container that asks for those without a shell."""
        checks = {
            name: " ".join(service["healthcheck"]["test"])
            for name, service in self.services.items()
            if "healthcheck" in service
        }
        for name in set(self.services) - set(checks):
            assert any(f"http://{name}:" in check for check in checks.values()), name

    def test_every_file_that_is_mounted_is_there(self) -> None:
        """Docker would make a folder of one that is not."""
        for service in self.services.values():
            for volume in service.get("volumes", ()):
                source = volume.split(":")[0]
                there = (
                    (ROOT / source).exists()
                    if source[0] == "."
                    else source in self.compose["volumes"]
                )
                assert there, source

    def test_every_target_of_prometheus_and_grafana_is_a_service(self) -> None:
        """Host names in their files are those of the profile's services, or an alias."""
        names = {
            name
            for service, settings in self.services.items()
            if settings["profiles"] == ["tempo"]
            for name in (
                service,
                *settings.get("networks", {}).get("default", {}).get("aliases", ()),
            )
        }
        files = ("prometheus.yaml", "grafana/provisioning/datasources/datasources.yaml")
        text = "".join((FOLDER / file).read_text() for file in files)
        hosts = re.findall(r"(?:http://|[\[ ])([a-z-]+):\d+", text)
        assert hosts
        assert set(hosts) <= names
