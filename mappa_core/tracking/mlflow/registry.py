"""Checkpoints in MLflow: a logged model with the weights' files, and a version that names it.

    register_model `mappa-<team>-<agent>`
      └─ version  ── tags: run, policy version, checkpoint, hash, step ──▶ rows in the store
           ├─ run ──▶ the MLflow run that trained it
           └─ logged model ──▶ adapter_config.json, adapter_model.safetensors
                               (full weights: config.json, model.safetensors)

The files are rounded to bfloat16 where the run asks for it (`tracking.registered_dtype`).

A kill between any two calls is mended by the next `register` of the same checkpoint: the logged
model and the version are found again by their tag `mappa.checkpoint_id`.
"""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING
from uuid import UUID

from mappa_core.core.outage import OutageRetry
from mappa_core.core.records.episodes import PolicyVersion
from mappa_core.core.records.updates import Checkpoint, RegisteredVersion
from mappa_core.models.layout import layout_of
from mappa_core.tracking.mlflow.client import Mlflow, all_pages
from mappa_core.tracking.mlflow.registered_files import RegisteredDtype, registered_files

if TYPE_CHECKING:
    from mlflow.entities import LoggedModel
    from mlflow.entities.model_registry import ModelVersion


class MlflowRegistry(Mlflow):
    """`ModelRegistry` on an MLflow server, or straight on a database."""

    def __init__(
        self,
        tracking_uri: str,
        outage_retry: OutageRetry | None = None,
        dtype: RegisteredDtype = "float32",
    ) -> None:
        """Register weights as precise as `dtype`; float32 is as they are in the checkpoint."""
        super().__init__(tracking_uri, outage_retry)
        self._dtype: RegisteredDtype = dtype

    def register(
        self,
        name: str,
        policy: PolicyVersion,
        checkpoint: Checkpoint,
        *,
        tracker_run_id: str,
        tags: Mapping[str, str],
        alias: str,
    ) -> str:
        """Store the weights' files as a new version of `name` and point `alias` at it.

        Repeating it for one checkpoint returns the version it has. The alias only moves forward,
        so repeating an old registration does not take it from a newer version.

        Raises:
            TrackerError: The registry refused, or the files are not those of `checkpoint`.
        """
        told = {key: value for key, value in tags.items() if value}
        every_tag = {**told, **identity_tags(policy, checkpoint)}

        def register() -> str:
            version = self._version_of(name, checkpoint)
            if version is None:
                with registered_files(checkpoint, self._dtype) as files:
                    model = self._logged_model(policy, checkpoint, tracker_run_id, every_tag)
                    for path in files:
                        self._client.log_model_artifact(model.model_id, str(path))
                self._client.finalize_logged_model(model.model_id, "READY")
                self._open_model(name, policy)
                version = self._create_version(name, model, tracker_run_id, every_tag)
            self._point(name, alias, version)
            return str(version.version)

        return self._call(f"register step {policy.step} of {name}", register)

    def models(self) -> tuple[str, ...]:
        """The names of all models whose versions this project registered, sorted."""

        def models() -> tuple[str, ...]:
            found = all_pages(
                lambda token: self._client.search_registered_models(
                    "name LIKE 'mappa-%'", page_token=token
                )
            )
            return tuple(sorted(model.name for model in found))

        return self._call("list its registered models", models)

    def versions(self, name: str) -> tuple[RegisteredVersion, ...]:
        """A model's versions, oldest first; none where there is no such model."""

        def versions() -> tuple[RegisteredVersion, ...]:
            named = self._client.search_registered_models(f"name = '{name}'", max_results=1)
            aliases = named[0].aliases if named else {}
            found = all_pages(
                lambda token: self._client.search_model_versions(
                    f"name = '{name}'", page_token=token
                )
            )
            ours = [each for each in found if "mappa.step" in each.tags]
            ours.sort(key=lambda version: int(version.version))
            return tuple(_registered(each, aliases) for each in ours)

        return self._call(f"list the versions of {name}", versions)

    def point(self, name: str, alias: str, version: str, tags: Mapping[str, str]) -> None:
        """Set tags on a version, then move `alias` there: a moved alias has its reasons."""

        def point() -> None:
            for key, value in tags.items():
                self._client.set_model_version_tag(name, version, key, value)
            self._client.set_registered_model_alias(name, alias, version)

        self._call(f"move {alias} of {name} to version {version}", point)

    def _version_of(self, name: str, checkpoint: Checkpoint) -> "ModelVersion | None":
        found = self._client.search_model_versions(
            f"name = '{name}' and tags.`mappa.checkpoint_id` = '{checkpoint.id}'", max_results=1
        )
        return found[0] if found else None

    def _logged_model(
        self,
        policy: PolicyVersion,
        checkpoint: Checkpoint,
        tracker_run_id: str,
        tags: Mapping[str, str],
    ) -> "LoggedModel":
        experiment = self._client.get_run(tracker_run_id).info.experiment_id
        found = self._client.search_logged_models(
            [experiment],
            filter_string=f"tags.`mappa.checkpoint_id` = '{checkpoint.id}'",
            max_results=1,
        )
        if found:
            return found[0]
        return self._client.create_logged_model(
            experiment,
            name=f"{policy.agent}-step-{policy.step}",
            source_run_id=tracker_run_id,
            tags=dict(tags),
            model_type=layout_of(Path(checkpoint.directory)).library,
        )

    def _open_model(self, name: str, policy: PolicyVersion) -> None:
        from mlflow.exceptions import MlflowException

        try:
            self._client.create_registered_model(
                name,
                tags={"mappa.agent": policy.agent},
                description=f"Weights of the agent {policy.agent}, one version per update.",
            )
        except MlflowException as error:
            if error.error_code != "RESOURCE_ALREADY_EXISTS":
                raise

    def _create_version(
        self, name: str, model: "LoggedModel", tracker_run_id: str, tags: Mapping[str, str]
    ) -> "ModelVersion":
        version = self._client.create_model_version(
            name,
            # Not `models:/<id>`: on a database MLflow looks that up in its global default store.
            source=model.artifact_location,
            run_id=tracker_run_id,
            tags=dict(tags),
            await_creation_for=0,
            model_id=model.model_id,
        )
        # The link from the logged model's page to the version, as MLflow itself writes it.
        named = [{"name": name, "version": version.version}]
        self._client.set_logged_model_tags(
            model.model_id, {"mlflow.modelVersions": json.dumps(named)}
        )
        return version

    def _point(self, name: str, alias: str, version: "ModelVersion") -> None:
        current = self._client.get_registered_model(name).aliases.get(alias)
        if current is None or int(current) < int(version.version):
            self._client.set_registered_model_alias(name, alias, str(version.version))


def _registered(version: "ModelVersion", aliases: Mapping[str, str]) -> RegisteredVersion:
    number = str(version.version)
    return RegisteredVersion(
        name=version.name,
        version=number,
        run_id=UUID(version.tags["mappa.run_id"]),
        agent=version.tags["mappa.agent"],
        step=int(version.tags["mappa.step"]),
        aliases=tuple(sorted(each for each, at in aliases.items() if str(at) == number)),
        tags=dict(version.tags),
    )


def identity_tags(policy: PolicyVersion, checkpoint: Checkpoint) -> dict[str, str]:
    """What joins a model version to the rows of the store."""
    return {
        "mappa.run_id": str(policy.run_id),
        "mappa.policy_version_id": str(policy.id),
        "mappa.checkpoint_id": str(checkpoint.id),
        "mappa.agent": policy.agent,
        "mappa.step": str(policy.step),
        "mappa.base_model": policy.base_model,
        "mappa.sha256": checkpoint.sha256,
    }
