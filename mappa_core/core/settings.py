"""Addresses and secrets, from the environment; never recorded with a run.

These variables are read; an empty one is as one that is not set:
    MAPPA_HOME            embedded state; default ~/.mappa, for root /var/lib/mappa
    MAPPA_DATABASE_URL    Postgres to use instead of the embedded one, for the store alone
    MLFLOW_TRACKING_URI   MLflow server, or database, to use instead of one in MAPPA_HOME
    MAPPA_MLFLOW_PAGES    where a browser finds MLflow's pages, for links in Prefect; default
                          MLFLOW_TRACKING_URI, if that is a server, or those of `mappa serve`
    MAPPA_OUTAGE_SECONDS  how long a run waits for a database that went away; default 600 (its old
                          name, MAPPA_PATIENCE_SECONDS, is read too)
    MAPPA_SANDBOXFUSION_URL   SandboxFusion server for sandbox.backend=sandbox-fusion, or several
                          with commas between them
    MAPPA_PROBLEMS        folder in which relative names of problem files are looked for; default:
                          where the command runs, which for a worker's run is an empty folder
    PREFECT_API_URL       Prefect server to use instead of one started for the command
    GOOGLE_API_KEY        key of the Gemini API
    VERTEX_PROJECT        project of Vertex AI; VERTEX_LOCATION its region, default global;
                          GOOGLE_APPLICATION_CREDENTIALS names the service account's file
    OPENAI_API_KEY        key of an OpenAI-compatible server; a local one needs none
    ANTHROPIC_API_KEY     key of Anthropic's API
    WANDB_API_KEY         key of Weights & Biases, for tracking.also=[wandb]; WANDB_PROJECT, default
                          mappa; WANDB_MODE=offline keeps everything on this machine
"""

import os
from functools import cached_property
from pathlib import Path
from typing import Annotated, Self
from urllib.parse import urlsplit

from pydantic import (
    AfterValidator,
    AliasChoices,
    Field,
    ModelWrapValidatorHandler,
    SecretStr,
    ValidationError,
    model_validator,
)
from pydantic_settings import BaseSettings, SettingsConfigDict

from mappa_core.core.errors import ConfigError

SERVED_PAGES = "http://127.0.0.1:5000"
"""Where `mappa serve` opens MLflow's pages."""


def _default_home() -> Path:
    return Path("/var/lib/mappa") if os.geteuid() == 0 else Path.home() / ".mappa"


def _absolute(path: Path) -> Path:
    # Paths below it are written into databases, which are read from other folders too.
    return path.expanduser().absolute()


class Settings(BaseSettings):
    """Where things are.

    Raises:
        ConfigError: A variable has a value it cannot have; the message names it.
    """

    model_config = SettingsConfigDict(frozen=True, extra="ignore", env_ignore_empty=True)

    home: Annotated[Path, AfterValidator(_absolute)] = Field(
        default_factory=_default_home, validation_alias="MAPPA_HOME"
    )
    database_url: str | None = Field(default=None, validation_alias="MAPPA_DATABASE_URL")
    mlflow_tracking_uri: str | None = Field(default=None, validation_alias="MLFLOW_TRACKING_URI")
    pages: str | None = Field(default=None, validation_alias="MAPPA_MLFLOW_PAGES")
    outage_seconds: float = Field(
        default=600.0,
        ge=0,
        validation_alias=AliasChoices("MAPPA_OUTAGE_SECONDS", "MAPPA_PATIENCE_SECONDS"),
    )
    sandboxfusion_url: str | None = Field(default=None, validation_alias="MAPPA_SANDBOXFUSION_URL")
    sandbox_image: str = Field(
        default="mappa-sandbox:local", validation_alias="MAPPA_SANDBOX_IMAGE"
    )
    problems: Path | None = Field(default=None, validation_alias="MAPPA_PROBLEMS")
    prefect_api_url: str | None = Field(default=None, validation_alias="PREFECT_API_URL")
    vertex_project: str | None = Field(default=None, validation_alias="VERTEX_PROJECT")
    vertex_location: str = Field(default="global", validation_alias="VERTEX_LOCATION")
    google_credentials: Path | None = Field(
        default=None, validation_alias="GOOGLE_APPLICATION_CREDENTIALS"
    )
    wandb_api_key: SecretStr | None = Field(default=None, validation_alias="WANDB_API_KEY")
    wandb_mode: str = Field(default="online", validation_alias="WANDB_MODE")
    wandb_project: str = Field(default="mappa", validation_alias="WANDB_PROJECT")

    @model_validator(mode="wrap")
    @classmethod
    def _named(cls, given: object, handler: ModelWrapValidatorHandler[Self]) -> Self:
        try:
            return handler(given)
        except ValidationError as error:
            first = error.errors(include_url=False, include_context=False)[0]
            name = ".".join(str(part) for part in first["loc"])
            raise ConfigError(
                f"{name}={first['input']} in the environment: {first['msg']}"
            ) from None

    @staticmethod
    def secret(variable: str) -> str | None:
        """Read a key from the environment by its variable, e.g. `OPENAI_API_KEY`; None where unset.

        Which keys there are is known to what asks for them, such as the coach's providers.
        """
        return os.environ.get(variable) or None

    @cached_property
    def mlflow_pages(self) -> str:
        """Where a browser finds MLflow's pages; without the password of a tracking server."""
        if self.pages:
            return self.pages.rstrip("/")
        server = urlsplit(self.mlflow_tracking_uri or "")
        if server.scheme not in {"http", "https"}:
            return SERVED_PAGES
        return f"{server.scheme}://{server.netloc.rpartition('@')[2]}{server.path}".rstrip("/")

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
    def mlflow_file(self) -> Path:
        """MLflow's records, where neither its server nor the embedded Postgres has them."""
        return self.mlflow / "mlflow.db"

    @cached_property
    def logs(self) -> Path:
        """What the servers print."""
        return self.home / "logs"
