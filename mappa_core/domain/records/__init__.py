"""The values that flow through MAPPA, one way.

    Problem ─▶ Episode ─▶ Observation ─▶ Action ─▶ ToolResult ─▶ Turn
                                            └─▶ CoachScore | Unscored
    Turn + score ─▶ ScoredAction ─▶ TrainingSample ─▶ UpdateReport ─▶ Checkpoint ─▶ PolicyVersion

Dimension letters, used everywhere: P problems, G episodes per problem, A agents, N actions,
T tokens, B batch, V vocabulary. Log-probabilities are natural logarithms under the model at
temperature 1, whatever temperature the token was sampled at.

Identity is a function of content (see `ids`), so writing the same thing twice is harmless.
"""

from mappa_core.domain.records.coaching import (
    Asked,
    CoachCase,
    CoachIdentity,
    CoachRequest,
    CoachScore,
    CriterionMark,
    Duty,
    Fact,
    LabelVisibility,
    ScoredAction,
    ScoreEntry,
    Spending,
    Unscored,
    UnscoredReason,
)
from mappa_core.domain.records.learning import (
    Checkpoint,
    RegisteredVersion,
    TrainingSample,
    Update,
    UpdateEntry,
    UpdateReport,
)
from mappa_core.domain.records.playing import (
    Action,
    Completion,
    Episode,
    FinishReason,
    GenerationRequest,
    Message,
    Observation,
    Outcome,
    Phase,
    PolicyVersion,
    Problem,
    Sampling,
    StopReason,
    Turn,
)
from mappa_core.domain.records.runs import (
    AgentFigures,
    EpisodeSummary,
    ExportedAction,
    HeldOutEpisode,
    IterationFigures,
    Run,
    RunStatus,
)
from mappa_core.domain.records.tools import (
    Artifact,
    Json,
    Limits,
    RefusedCall,
    RejectedFile,
    Tool,
    ToolCall,
    ToolRequest,
    ToolResult,
    ToolStatus,
)

__all__ = [
    "Action",
    "AgentFigures",
    "Artifact",
    "Asked",
    "Checkpoint",
    "CoachCase",
    "CoachIdentity",
    "CoachRequest",
    "CoachScore",
    "Completion",
    "CriterionMark",
    "Duty",
    "Episode",
    "EpisodeSummary",
    "ExportedAction",
    "Fact",
    "FinishReason",
    "GenerationRequest",
    "HeldOutEpisode",
    "IterationFigures",
    "Json",
    "LabelVisibility",
    "Limits",
    "Message",
    "Observation",
    "Outcome",
    "Phase",
    "PolicyVersion",
    "Problem",
    "RefusedCall",
    "RegisteredVersion",
    "RejectedFile",
    "Run",
    "RunStatus",
    "Sampling",
    "ScoreEntry",
    "ScoredAction",
    "Spending",
    "StopReason",
    "Tool",
    "ToolCall",
    "ToolRequest",
    "ToolResult",
    "ToolStatus",
    "TrainingSample",
    "Turn",
    "Unscored",
    "UnscoredReason",
    "Update",
    "UpdateEntry",
    "UpdateReport",
]
