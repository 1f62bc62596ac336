"""What an online method is: typed settings, and the trainer that they make of a run. The three of the house, by name.

A method of your own needs no entry: name its class as `module:Class` (`collab train online method=my_method:MyMethod`).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, ClassVar

from simulators.errors import ConfigurationError
from simulators.object_reference import load_object

if TYPE_CHECKING:
    from collab.training.conversation_trainer import ConversationTrainer
    from collab.training.online_run import OnlineRun

METHODS: dict[str, str] = {
    "grpo": "collab.training.grpo:GRPO",
    "online_dpo": "collab.training.online_dpo:OnlineDPO",
    "ppo": "collab.training.ppo:PPO",
}


class OnlineMethod:
    """An online method: a class that is never instantiated.

    `name` stands in logs and progress. `Settings` is a dataclass with a `rollout: RolloutSettings` in it; the command line gives
    every field of it a typed key below `method`.
    """

    name: ClassVar[str]
    Settings: ClassVar[type]

    @staticmethod
    def trainer(run: OnlineRun, settings: Any, /) -> ConversationTrainer:
        """Return the trainer of a run with these settings, ready to train.

        Raises:
            ConfigurationError: for sizes that do not divide, too few tasks, an unknown model, an unsupported TRL.
        """
        raise NotImplementedError


def load_method(name: str) -> type[OnlineMethod]:
    """Return a method by name, or as `module:Class`.

    Raises:
        ConfigurationError: an unknown name (the nearest is named), or a class without `Settings` or `trainer`.
    """
    found: Any = load_object(name, "method", METHODS)
    for needed in ("Settings", "trainer", "name"):
        if not hasattr(found, needed):
            raise ConfigurationError(f"method {name!r} has no {needed}; see collab.training.online_method.OnlineMethod")
    method: type[OnlineMethod] = found
    return method
