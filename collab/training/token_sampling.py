"""What samples a rollout: an engine over the weights in training, or vLLM with its weights kept in step with them."""

from __future__ import annotations

from concurrent.futures import Executor
from typing import Any

from collab.training.online_settings import RolloutSettings
from collab.training.turn_tokens import TurnTokens
from collab.training.weight_sync import SharedWeights, WeightSync
from simulators.chat_models.dispatcher import Dispatcher
from simulators.chat_models.token_sampler import TokenSampler
from simulators.chat_models.transformers_model import context_tokens
from simulators.errors import ConfigurationError


def make_sampler(
    trainer: Any, settings: RolloutSettings, tokens: TurnTokens, executor: Executor
) -> tuple[TokenSampler, WeightSync]:
    """Return the sampler that the settings name, and how it comes to see the current weights.

    `trainer` is TRL's. An engine in this process is called by `executor` only, which must be the thread that this is called from.

    Raises:
        ConfigurationError: when the engine does not fit the way the weights are spread, or as `make_vllm_sampler` does.
    """
    if settings.engine != "transformers":
        from collab.training.vllm_sampling import make_vllm_sampler

        return make_vllm_sampler(trainer, settings, tokens, executor)
    deepspeed = trainer.accelerator.state.deepspeed_plugin
    if trainer.is_fsdp_enabled or (deepspeed is not None and deepspeed.zero_stage == 3):
        raise ConfigurationError(
            "rollout.engine transformers samples on each rank by itself, and FSDP and DeepSpeed ZeRO-3 spread the weights "
            "over ranks; set rollout.engine to vllm_server or vllm_in_process, or use DDP or ZeRO-2"
        )
    from simulators.chat_models.transformers_decoding import TransformersEngine

    engine = TransformersEngine(trainer.model, tokens.tokenizer, tokens.eos_ids, trainer.accelerator.autocast)
    context = context_tokens(trainer.model)
    return Dispatcher(engine, "the policy", context, settings.max_batch_size, executor, closes=False), SharedWeights()
