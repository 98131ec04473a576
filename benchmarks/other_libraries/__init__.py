"""Other libraries as implementations. Each module imports its library only when it is prepared."""
