"""The contract of all models: what can be asked of every one, and abilities that some have."""
