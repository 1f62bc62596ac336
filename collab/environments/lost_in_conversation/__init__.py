"""Lost in Conversation: the same problem told at once or shard by shard."""
