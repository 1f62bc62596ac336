"""Who talks: chat models, simulated users, forward sampling, conversation trees, and the journal. Knows nothing of rewards.

Public names are re-exported here and loaded on first use, so `import simulators` stays light (no torch, no network client).
"""

import importlib
from typing import Any

_HOMES = {
    "ChatModel": "simulators.chat_models.protocol",
    "ChatRequest": "simulators.chat_models.protocol",
    "ChatServer": "simulators.chat_models.server",
    "Completion": "simulators.chat_models.protocol",
    "Conversation": "simulators.conversation",
    "ConversationTree": "simulators.conversation",
    "Future": "simulators.forward_sampling",
    "Journal": "simulators.journal",
    "JournaledChatModel": "simulators.journal",
    "Message": "simulators.conversation",
    "Outcome": "simulators.conversation",
    "Policy": "simulators.policy",
    "RolePlayUser": "simulators.users.role_play",
    "SamplingSettings": "simulators.chat_models.protocol",
    "ScriptedChatModel": "simulators.chat_models.scripted",
    "ScriptedUser": "simulators.users.scripted",
    "ServerOptions": "simulators.chat_models.server_options",
    "TransformersChatModel": "simulators.chat_models.transformers_model",
    "TreeFile": "simulators.tree_file",
    "User": "simulators.users.protocol",
    "UserTurn": "simulators.users.protocol",
    "VLLMChatModel": "simulators.chat_models.vllm_model",
    "VLLMOptions": "simulators.chat_models.vllm_model",
    "read_trees": "simulators.tree_file",
    "run_blocking": "simulators.blocking",
    "sample_future": "simulators.forward_sampling",
}

__all__ = sorted(_HOMES)


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'simulators' has no attribute {name!r}")
    return getattr(importlib.import_module(_HOMES[name]), name)


def __dir__() -> list[str]:
    return __all__
