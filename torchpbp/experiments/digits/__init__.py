"""Pen digits: recognition, missing points, learning curves."""
