"""The interface of all models, and optional abilities."""
