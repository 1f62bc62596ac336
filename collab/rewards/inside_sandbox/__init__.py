"""Programs that run inside the sandbox, sent there as text: standard library only, and only what starts fast."""
