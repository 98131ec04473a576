"""Other libraries as contestants. Each module imports its library only when it is prepared."""
