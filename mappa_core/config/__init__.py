"""Hyper-parameters: what to run, recorded with the run. Addresses and secrets live in `settings`.

One YAML file in `configs/` is one `TrainConfig`; every key is documented by its `description`,
bounded, and refused when unknown. Nothing here reads the environment.
"""

from mappa_core.config.coaching import (
    BudgetConfig,
    CoachConfig,
    CoachModelConfig,
    ContextCacheConfig,
    PricesConfig,
    SecondCoachConfig,
)
from mappa_core.config.learning import (
    ALONE,
    BASELINES,
    AlgorithmConfig,
    DeepspeedConfig,
    Estimator,
    GuardConfig,
    LearnerConfig,
    LoraConfig,
    MismatchConfig,
)
from mappa_core.config.playing import (
    EngineConfig,
    ProblemsConfig,
    RolloutConfig,
    Runtime,
    SandboxConfig,
)
from mappa_core.config.section import Decay, Fraction, Positive, Section
from mappa_core.config.tools import ToolsConfig, ToolServerConfig
from mappa_core.config.train import RESUMABLE, TrainConfig
from mappa_core.config.watching import AuditConfig, EvaluationConfig, StopOn, TrackingConfig

__all__ = [
    "ALONE",
    "BASELINES",
    "RESUMABLE",
    "AlgorithmConfig",
    "AuditConfig",
    "BudgetConfig",
    "CoachConfig",
    "CoachModelConfig",
    "ContextCacheConfig",
    "Decay",
    "DeepspeedConfig",
    "EngineConfig",
    "Estimator",
    "EvaluationConfig",
    "Fraction",
    "GuardConfig",
    "LearnerConfig",
    "LoraConfig",
    "MismatchConfig",
    "Positive",
    "PricesConfig",
    "ProblemsConfig",
    "RolloutConfig",
    "Runtime",
    "SandboxConfig",
    "SecondCoachConfig",
    "Section",
    "StopOn",
    "ToolServerConfig",
    "ToolsConfig",
    "TrackingConfig",
    "TrainConfig",
]
