"""Training: settings, initialisation, loss, optimiser, densification, checkpoints, the loop."""

from gart.training.config import TrainConfig, config_from, load_config, preset_names
from gart.training.plan import plan_training
from gart.training.run import Progress, train
from gart.training.trainer import Trainer

__all__ = [
    "Progress",
    "TrainConfig",
    "Trainer",
    "config_from",
    "load_config",
    "plan_training",
    "preset_names",
    "train",
]
