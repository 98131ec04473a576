"""What ``python -m torchpbp`` does with model files."""
