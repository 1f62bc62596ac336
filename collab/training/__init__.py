"""Training on TRL: SFT, DPO and the online methods."""
