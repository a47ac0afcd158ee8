"""Addresses and secrets, from the environment; never recorded with a run.

These variables are read:
    MAPPA_HOME            embedded state; default ~/.mappa, for root /var/lib/mappa
    MAPPA_DATABASE_URL    Postgres to use instead of the embedded one
    MLFLOW_TRACKING_URI   MLflow server to use instead of the embedded store
    MAPPA_SANDBOXFUSION_URL   SandboxFusion server for sandbox.backend=sandbox-fusion
    PREFECT_API_URL       Prefect server to use instead of one started for the command
"""

import os
from functools import cached_property
from pathlib import Path

from pydantic import Field
from pydantic_settings import BaseSettings, SettingsConfigDict


def _default_home() -> Path:
    return Path("/var/lib/mappa") if os.geteuid() == 0 else Path.home() / ".mappa"


class Settings(BaseSettings):
    """Where things are."""

    model_config = SettingsConfigDict(frozen=True, extra="ignore")

    home: Path = Field(default_factory=_default_home, validation_alias="MAPPA_HOME")
    database_url: str | None = Field(default=None, validation_alias="MAPPA_DATABASE_URL")
    mlflow_tracking_uri: str | None = Field(default=None, validation_alias="MLFLOW_TRACKING_URI")
    sandboxfusion_url: str | None = Field(default=None, validation_alias="MAPPA_SANDBOXFUSION_URL")
    prefect_api_url: str | None = Field(default=None, validation_alias="PREFECT_API_URL")

    @cached_property
    def models(self) -> Path:
        """Converted models."""
        return self.home / "models"

    @cached_property
    def checkpoints(self) -> Path:
        """Adapters and optimiser states, one folder per run, agent and step."""
        return self.home / "checkpoints"

    @cached_property
    def workspaces(self) -> Path:
        """Files of episodes, turn by turn."""
        return self.home / "workspaces"

    @cached_property
    def postgres(self) -> Path:
        """The embedded Postgres."""
        return self.home / "postgres"

    @cached_property
    def mlflow(self) -> Path:
        """MLflow's artifacts, where no server is named."""
        return self.home / "mlflow"

    @cached_property
    def logs(self) -> Path:
        """What the servers print."""
        return self.home / "logs"
