"""Densification strategies: which Gaussians there are, within the budget."""

from __future__ import annotations

from gart.scene import Gaussians
from gart.tracing import TraceSettings
from gart.training.config import TrainConfig
from gart.training.schedule import Schedule
from gart.training.strategies.adc import Adc
from gart.training.strategies.error import ErrorGrowth
from gart.training.strategies.mcmc import Mcmc
from gart.training.strategies.strategy import Observation, Strategy

__all__ = ["Observation", "Strategy", "make_strategy"]


def make_strategy(
    config: TrainConfig,
    schedule: Schedule,
    scene: Gaussians,
    *,
    extent: float,
    views: int,
    settings: TraceSettings,
) -> Strategy:
    """The strategy of `config`.

    Args:
        config, schedule: of the run.
        scene: the first Gaussians.
        extent: of the cameras, in scene units.
        views: number of training views.
        settings: of the run's tracer.
    """
    if config.strategy == "adc":
        return Adc(config, schedule, scene, extent)
    if config.strategy == "error":
        return ErrorGrowth(config, schedule, scene, views, settings)
    return Mcmc(config, schedule)
