"""Inference: messages along a tree of operators, and the answers made of them."""
