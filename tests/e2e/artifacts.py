"""What a run has on its page in Prefect."""

from datetime import datetime
from uuid import UUID

from prefect.client.orchestration import get_client
from prefect.client.schemas.filters import ArtifactFilter, ArtifactFilterFlowRunId
from prefect.client.schemas.objects import Artifact

from mappa_core.core.records.runs import Run


def artifacts_of(run: Run) -> list[Artifact]:
    """The artifacts of a run's flow run itself, the oldest first."""
    assert run.prefect_flow_run_id is not None
    mine = ArtifactFilterFlowRunId(any_=[UUID(run.prefect_flow_run_id)])
    with get_client(sync_client=True) as client:
        found = client.read_artifacts(artifact_filter=ArtifactFilter(flow_run_id=mine))
    return sorted(found, key=_made_at)


def _made_at(artifact: Artifact) -> datetime:
    assert artifact.created is not None
    return artifact.created
