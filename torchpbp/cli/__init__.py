"""Commands of ``python -m torchpbp`` on model files."""
